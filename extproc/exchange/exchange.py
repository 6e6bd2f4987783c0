"""The ext_proc conversation of one HTTP request, as a state machine: messages in, messages out, no I/O.

The rule that must never be broken: an exchange never closes its stream early (Envoy would lose the answer), and what it
holds is released exactly once, in `close`, which the stream's end calls whatever happened before.

How a conversation goes. Envoy sends the request's headers and, without waiting, its body and perhaps its trailers
(FULL_DUPLEX_STREAMED). The reply to the headers is held until the body is complete and the application has decided:
`Reply` becomes an ImmediateResponse, `Forward` becomes the header reply with the transcoded body. Then the answer's
headers, body and trailers come, from the engine or as Envoy's own local reply; the reply to the headers is held again
until the application begins the client's answer. Replies keep the order headers, body, trailers; any number of replies,
none included, may follow a message.

    state      message            what happens                                          next
    HEAD       request_headers    the application looks at the head                     BODY, DECIDING, FORWARDED, OVER
    HEAD       response_headers   nothing to translate for: passes unchanged            PASSING
    BODY       request_body       collected up to the limit                             BODY, DECIDING, FORWARDED, OVER
    BODY       request_trailers   the body is complete                                  DECIDING, FORWARDED, OVER
    DECIDING   (resume)           the application's awaited outcome                     FORWARDED, OVER
    FORWARDED  response_headers   the answer may begin, or is held                      HELD, BEGUN, OVER
    HELD       response_body      the answer may begin                                  HELD, BEGUN, OVER
    BEGUN      response_body      a piece of the answer                                 BEGUN, OVER
    HELD/BEGUN response_trailers  the answer's last piece                               OVER
    PASSING    any                passes unchanged                                      PASSING
    OVER       any                ignored: duplicates, and what was in flight           OVER

A body or trailers whose headers have not come are an error (WrongModeError), since nobody would ever answer them.
A local reply of Envoy that arrives before the request was forwarded (a client's time-out, another filter) passes too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum, auto

from extproc.exchange import messages
from extproc.exchange.application import (
    Answer,
    AnswerHead,
    Application,
    Begin,
    Forward,
    Outcome,
    Piece,
    ReadBody,
    Reply,
    Request,
    RequestHead,
)
from extproc.exchange.ext_proc_pb2 import BodySendMode, ProcessingRequest
from extproc.exchange.messages import response_body, response_piece

_log = logging.getLogger(__name__)

Replies = list[bytes]

_GRPC_TRAILERS = ("grpc-status", "grpc-message", "grpc-status-details-bin")


class State(IntEnum):  # an int, because its hash is looked up for every message
    """Where the conversation stands; see the module's table."""

    HEAD = auto()
    BODY = auto()
    DECIDING = auto()
    FORWARDED = auto()
    HELD = auto()
    BEGUN = auto()
    PASSING = auto()
    OVER = auto()


_HELD = State.HELD  # a member of an enumeration is not looked up for nothing
_BEGUN = State.BEGUN


class WrongModeError(Exception):
    """Envoy is configured with a mode that this processor cannot serve."""


class HeldBodies:
    """One budget for the request bodies that all exchanges of a process hold."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0


class Exchange:
    """One HTTP request's conversation."""

    __slots__ = (
        "_answer",
        "_answer_has_body",
        "_body",
        "_body_bytes",
        "_held",
        "_limit",
        "_request",
        "_request_ends_in_trailers",
        "pending",
        "state",
    )

    def __init__(self, application: Application, held: HeldBodies) -> None:
        self.state = State.HEAD
        self._held = held
        self.pending: Awaitable[Outcome] | None = None
        """In DECIDING: what the driver waits for, and hands to `resume` or `fail`."""
        self._request: Request | None = application.request()
        self._answer: Answer | None = None
        self._answer_has_body = False  # a piece of the upstream's body has come
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._limit = 0
        self._request_ends_in_trailers = False

    # ---- what the driver calls

    def receive(self, data: bytes) -> Replies:
        """One message of Envoy's, to the replies that it leads to.

        Raises google.protobuf.message.DecodeError on bytes that are no ext_proc message; WrongModeError on a listener
        that is configured in another mode.
        """
        state = self.state
        if state is _BEGUN or state is _HELD:
            # Hot: what comes with every token. All of it stands here, since each call costs as much as its work.
            piece = response_piece(data)
            if piece is not None:
                answer = self._answer
                assert answer is not None
                self._answer_has_body = True
                try:
                    output = answer.body(piece)
                    if type(output) is Piece and not output.end:
                        return response_body(output.body, False)
                    return self._emit(output)
                except Exception:
                    _log.exception("internal error while handling response_body")
                    return self.fail()
        message = messages.parse(data)
        kind = message.WhichOneof("request")
        handler = _TRANSITIONS.get((state, kind))
        if handler is None:
            return []
        try:
            return handler(self, message)
        except WrongModeError:
            raise
        except Exception:
            _log.exception("internal error while handling %s", kind)
            return self.fail()

    def resume(self, outcome: Outcome) -> Replies:
        """The awaited outcome has come. Released again when the exchange has ended meanwhile."""
        if self.state is not State.DECIDING:
            if isinstance(outcome, Forward):
                outcome.answer.close()
            return []
        self.pending = None
        return self._decide(outcome)

    def expire(self) -> Replies:
        """The deadline has passed: the client gets a clear end, Envoy resets the upstream."""
        answer, request = self._answer, self._request
        if self.state in (State.OVER, State.PASSING):
            return []
        if answer is not None:
            return self._last(answer.expire())
        assert request is not None
        return self._decide(request.expire())

    def keep_alive(self) -> Replies:
        """An answer that has begun may need a sign of life."""
        if self.state is not _BEGUN:
            return []
        answer = self._answer
        assert answer is not None
        return self._emit(answer.keep_alive())

    def fail(self) -> Replies:
        """An internal error, logged already: the client gets a clear end."""
        answer, request = self._answer, self._request
        if self.state in (State.OVER, State.PASSING):
            return []
        self.pending = None
        if answer is not None:
            return self._last(answer.fail())
        assert request is not None
        return self._decide(request.fail())

    def close(self) -> None:
        """The stream is over: release everything. Idempotent."""
        self.state = State.OVER
        self.pending = None
        self._drop_body()
        request, self._request = self._request, None
        answer, self._answer = self._answer, None
        try:
            if request is not None:
                request.close()
        finally:
            if answer is not None:
                answer.close()

    # ---- the request

    def _request_headers(self, message: ProcessingRequest) -> Replies:
        _check_modes(message)
        headers = message.request_headers
        fields = messages.header_dict(headers.headers)
        head = RequestHead(fields.get(":method", ""), fields.get(":path", ""), fields, messages.attributes(message))
        request = self._request
        assert request is not None
        wanted = request.head(head)
        if not isinstance(wanted, ReadBody):
            return self._decide(wanted)
        self._limit = wanted.limit_bytes
        if _declared_length(fields) > self._limit:
            return self._decide(request.too_large())
        if headers.end_of_stream:
            return self._complete()
        self.state = State.BODY
        return []

    def _request_body(self, message: ProcessingRequest) -> Replies:
        body = message.request_body
        piece = body.body
        if piece:
            request = self._request
            assert request is not None
            held = self._held
            self._body_bytes += len(piece)
            held.held_bytes += len(piece)
            if self._body_bytes > self._limit:
                return self._decide(request.too_large())
            if held.held_bytes > held.limit_bytes:
                return self._decide(request.no_room())
            self._body.append(piece)
        if body.end_of_stream:
            return self._complete()
        return []

    def _request_trailers(self, message: ProcessingRequest) -> Replies:
        self._request_ends_in_trailers = True
        return self._complete()

    def _complete(self) -> Replies:
        request = self._request
        assert request is not None
        pieces = self._body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body = []
        outcome = request.body(body)
        if isinstance(outcome, (Reply, Forward)):
            return self._decide(outcome)
        self.state = State.DECIDING
        self.pending = outcome
        return []

    def _decide(self, outcome: Outcome) -> Replies:
        """Answer or forward. The one place where a request ends."""
        request, self._request = self._request, None
        self._drop_body()
        if isinstance(outcome, Reply):
            self.state = State.OVER
            replies = [messages.immediate(outcome)]
        else:
            self.state = State.FORWARDED
            self._answer = outcome.answer
            replies = self._forward(outcome)
        if request is not None:
            request.close()
        return replies

    def _drop_body(self) -> None:
        self._held.held_bytes -= self._body_bytes
        self._body_bytes = 0
        self._body = []

    def _forward(self, forward: Forward) -> Replies:
        body = forward.body
        if len(body) <= messages.MAX_PIECE_BYTES or self._request_ends_in_trailers:
            # One message in place of several, and Envoy sends nothing more of the request. With trailers it is the only
            # way: their reply makes Envoy's router, where it may retry, send the body twice.
            return [messages.request_headers(forward.set_headers, forward.remove_headers, forward.metadata, body)]
        replies = [messages.request_headers(forward.set_headers, forward.remove_headers, forward.metadata, None)]
        replies += messages.request_body(body, True)
        return replies

    # ---- the answer

    def _response_headers(self, message: ProcessingRequest) -> Replies:
        answer = self._answer
        assert answer is not None
        headers = message.response_headers
        fields = messages.header_dict(headers.headers)
        attributes = messages.attributes(message)
        details = str(attributes.get("response.code_details") or "")
        served_by = attributes.get("upstream.address")
        status = fields.get(":status", "")
        self.state = State.HELD
        begin = answer.head(
            AnswerHead(
                int(status) if status.isdecimal() and len(status) <= 3 else 0,
                fields,
                bool(details) and details != "via_upstream",
                details,
                str(served_by) if served_by else None,
                headers.end_of_stream,
            )
        )
        if headers.end_of_stream:
            if begin is None:
                last = answer.end(fields)
                assert isinstance(last, Begin), "an answer that ends without a beginning"
                begin = last
            return self._replace(begin)
        return self._emit(begin)

    def _response_body(self, message: ProcessingRequest) -> Replies:
        answer = self._answer
        assert answer is not None
        body = message.response_body
        self._answer_has_body = True
        replies = self._emit(answer.body(body.body))
        if body.end_of_stream and self.state is not State.OVER:
            replies += self._last(answer.end({}))
        return replies

    def _response_trailers(self, message: ProcessingRequest) -> Replies:
        answer = self._answer
        assert answer is not None
        output = answer.end(messages.header_dict(message.response_trailers.trailers))
        replies: Replies = []
        if isinstance(output, Begin):
            if not self._answer_has_body:
                return self._replace(output)
            replies += self._begin(output)
        else:
            assert self.state is State.BEGUN, "an answer that ends without a beginning"
            if output is not None:
                replies += response_body(output.body, False)
        replies.append(messages.response_trailers(_GRPC_TRAILERS))
        self.state = State.OVER
        return replies

    def _emit(self, output: Begin | Piece | None) -> Replies:
        """What the answer has to say now, while its upstream goes on."""
        if output is None:
            return []
        if output.end:
            return self._last(output)
        if isinstance(output, Piece):
            return response_body(output.body, False)
        return self._begin(output)

    def _begin(self, output: Begin) -> Replies:
        assert self.state is State.HELD, "an answer that begins twice"
        self.state = State.BEGUN
        replies = [messages.response_headers(_with_status(output), output.remove_headers)]
        replies += response_body(output.body, False)
        return replies

    def _last(self, output: Begin | Piece | None) -> Replies:
        """The answer's end without trailers: Envoy resets the upstream where it still sends."""
        if isinstance(output, Begin):
            if self.state is State.FORWARDED or not self._answer_has_body:
                # Envoy takes pieces of a body only after one has come, and would wait for one that is replaced.
                self.state = State.OVER
                return [messages.immediate(Reply(output.status, output.set_headers, output.body))]
            assert self.state is State.HELD, "an answer that begins twice"
            self.state = State.OVER
            replies = [messages.response_headers(_with_status(output), output.remove_headers)]
            replies += response_body(output.body, True)
            return replies
        assert self.state is State.BEGUN, "an answer that ends without a beginning"
        self.state = State.OVER
        return response_body(output.body if output is not None else b"", True)

    def _replace(self, begin: Begin) -> Replies:
        """The whole answer in the reply to its headers: where no body came, as Envoy takes no pieces of one then.

        Elsewhere it will not do, for Envoy passes the upstream's trailers on after it.
        """
        assert self.state is State.HELD, "an answer that begins twice"
        self.state = State.OVER
        return [messages.response_headers(_with_status(begin), begin.remove_headers, begin.body)]

    def _lacks_headers(self, message: ProcessingRequest) -> Replies:
        raise WrongModeError(
            f"{message.WhichOneof('request') or 'a message of no known kind'} came before any headers; the ext_proc "
            "filter must have request_header_mode and response_header_mode SEND"
        )

    # ---- what passes unchanged

    def _pass_response_headers(self, message: ProcessingRequest) -> Replies:
        request, self._request = self._request, None
        if request is not None:
            request.close()
        self.pending = None
        self._drop_body()
        self.state = State.PASSING
        return [messages.continue_response_headers()]

    def _pass_response_body(self, message: ProcessingRequest) -> Replies:
        body = message.response_body
        return response_body(body.body, body.end_of_stream)

    def _pass_response_trailers(self, message: ProcessingRequest) -> Replies:
        return [messages.response_trailers(())]


def _with_status(begin: Begin) -> tuple[tuple[str, str], ...]:
    return ((":status", str(begin.status)), *begin.set_headers)


def _declared_length(fields: dict[str, str]) -> int:
    declared = fields.get("content-length", "")
    return int(declared) if declared.isdecimal() and len(declared) < 20 else 0


def _check_modes(message: ProcessingRequest) -> None:
    if not message.HasField("protocol_config"):
        return
    config = message.protocol_config
    if (
        config.request_body_mode != BodySendMode.FULL_DUPLEX_STREAMED
        or config.response_body_mode != BodySendMode.FULL_DUPLEX_STREAMED
    ):
        raise WrongModeError(
            "the ext_proc filter must have request_body_mode and response_body_mode FULL_DUPLEX_STREAMED and both "
            f"trailer modes SEND; it has {BodySendMode.Name(config.request_body_mode)} and "
            f"{BodySendMode.Name(config.response_body_mode)}"
        )


_Handler = Callable[[Exchange, ProcessingRequest], Replies]

_TRANSITIONS: dict[tuple[State, str | None], _Handler] = {
    (State.HEAD, "request_headers"): Exchange._request_headers,
    (State.BODY, "request_body"): Exchange._request_body,
    (State.BODY, "request_trailers"): Exchange._request_trailers,
    (State.FORWARDED, "response_headers"): Exchange._response_headers,
    (State.HELD, "response_body"): Exchange._response_body,
    (State.HELD, "response_trailers"): Exchange._response_trailers,
    (State.BEGUN, "response_body"): Exchange._response_body,
    (State.BEGUN, "response_trailers"): Exchange._response_trailers,
    (State.HEAD, "response_headers"): Exchange._pass_response_headers,
    (State.BODY, "response_headers"): Exchange._pass_response_headers,
    (State.DECIDING, "response_headers"): Exchange._pass_response_headers,
    (State.HEAD, "request_body"): Exchange._lacks_headers,
    (State.HEAD, "request_trailers"): Exchange._lacks_headers,
    (State.HEAD, "response_body"): Exchange._lacks_headers,
    (State.HEAD, "response_trailers"): Exchange._lacks_headers,
    (State.HEAD, None): Exchange._lacks_headers,
    (State.FORWARDED, "response_body"): Exchange._lacks_headers,
    (State.FORWARDED, "response_trailers"): Exchange._lacks_headers,
    (State.PASSING, "response_body"): Exchange._pass_response_body,
    (State.PASSING, "response_trailers"): Exchange._pass_response_trailers,
}
"""Every message that means something in a state. All others are duplicates, or were in flight when it changed."""
