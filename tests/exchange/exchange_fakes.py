"""An application that records what an exchange asks of it, and messages as Envoy sends them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from extproc.exchange.application import (
    AnswerHead,
    Begin,
    Forward,
    Outcome,
    Piece,
    ReadBody,
    Reply,
    RequestHead,
)
from extproc.exchange.ext_proc_pb2 import (
    BodySendMode,
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)


@dataclass
class FakeAnswer:
    """Echoes the upstream: begins with the first piece of body, or holds everything to the end."""

    held: bool = False
    end_after: int | None = None  # pieces
    raise_in: str = ""
    sign: bytes = b""
    heads: list[AnswerHead] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    ends: list[Mapping[str, str]] = field(default_factory=list)
    closed: int = 0
    begun: bool = False

    def head(self, head: AnswerHead) -> Begin | None:
        self._maybe_raise("head")
        self.heads.append(head)
        return None

    def body(self, data: bytes) -> Begin | Piece | None:
        self._maybe_raise("body")
        self.pieces.append(data)
        end = self.end_after is not None and len(self.pieces) >= self.end_after
        if self.held:
            return None
        return self._output(data, end=end)

    def end(self, trailers: Mapping[str, str]) -> Begin | Piece | None:
        self._maybe_raise("end")
        self.ends.append(trailers)
        return self._output(b"".join(self.pieces) if self.held else b"|end")

    def keep_alive(self) -> Piece | None:
        return Piece(self.sign) if self.sign else None

    def expire(self) -> Begin | Piece:
        return self._output(b"|expired", status=504, end=True)

    def fail(self) -> Begin | Piece:
        return self._output(b"|failed", status=500, end=True)

    def close(self) -> None:
        self.closed += 1

    def _output(self, body: bytes, *, status: int = 200, end: bool = False) -> Begin | Piece:
        if self.begun:
            return Piece(body, end)
        self.begun = True
        return Begin(status, (("content-type", "text/plain"),), ("grpc-status",), body, end)

    def _maybe_raise(self, where: str) -> None:
        if self.raise_in == where:
            raise RuntimeError(where)


@dataclass
class FakeApplication:
    """One request's application, which is also its own request."""

    on_head: Callable[[RequestHead], ReadBody | Outcome] = lambda head: ReadBody(1000)
    on_body: Callable[[bytes], Outcome | Awaitable[Outcome]] | None = None
    answer: FakeAnswer = field(default_factory=FakeAnswer)
    heads: list[RequestHead] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    closed: int = 0

    def request(self) -> FakeApplication:
        return self

    def head(self, head: RequestHead) -> ReadBody | Outcome:
        self.heads.append(head)
        return self.on_head(head)

    def body(self, data: bytes) -> Outcome | Awaitable[Outcome]:
        self.bodies.append(data)
        return self.on_body(data) if self.on_body else self.forward(data)

    def forward(self, body: bytes) -> Forward:
        return Forward(
            ((":path", "/up"), ("x-gateway-pool", "p")),
            ("content-length",),
            body,
            {"envoy.lb": {"destination": "10.0.0.1:1"}},
            self.answer,
        )

    def too_large(self) -> Reply:
        return Reply(413, (), b"too large")

    def no_room(self) -> Reply:
        return Reply(503, (), b"no room")

    def expire(self) -> Reply:
        return Reply(504, (), b"expired")

    def fail(self) -> Reply:
        return Reply(500, (), b"failed")

    def close(self) -> None:
        self.closed += 1


def header_map(headers: Mapping[str, str]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=k, raw_value=v.encode("latin-1")) for k, v in headers.items()])


def request_headers(*, end: bool = False, **headers: str) -> bytes:
    fields = {":method": "POST", ":path": "/v1/x", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return ProcessingRequest(
        request_headers=HttpHeaders(headers=header_map(fields), end_of_stream=end),
        protocol_config=ProtocolConfiguration(
            request_body_mode=BodySendMode.FULL_DUPLEX_STREAMED, response_body_mode=BodySendMode.FULL_DUPLEX_STREAMED
        ),
    ).SerializeToString()


def request_body(body: bytes, *, end: bool = False) -> bytes:
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end)).SerializeToString()


def request_trailers() -> bytes:
    return ProcessingRequest(request_trailers=HttpTrailers()).SerializeToString()


def response_headers(*, status: int = 200, end: bool = False, details: str = "via_upstream", **headers: str) -> bytes:
    message = ProcessingRequest(
        response_headers=HttpHeaders(
            headers=header_map({":status": str(status), **{k.replace("_", "-"): v for k, v in headers.items()}}),
            end_of_stream=end,
        )
    )
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["response.code_details"].string_value = details
    fields["upstream.address"].string_value = "10.0.0.2:1"
    return message.SerializeToString()


def response_body(body: bytes, *, end: bool = False) -> bytes:
    return ProcessingRequest(response_body=HttpBody(body=body, end_of_stream=end)).SerializeToString()


def response_trailers(**trailers: str) -> bytes:
    fields = {k.replace("_", "-"): v for k, v in (trailers or {"grpc_status": "0"}).items()}
    return ProcessingRequest(response_trailers=HttpTrailers(trailers=header_map(fields))).SerializeToString()


def parse(replies: list[bytes]) -> list[ProcessingResponse]:
    return [ProcessingResponse.FromString(reply) for reply in replies]


def kinds(replies: list[bytes]) -> list[str | None]:
    return [reply.WhichOneof("response") for reply in parse(replies)]
