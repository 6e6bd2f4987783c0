"""ext_proc wire messages: reading what Envoy sends, building what it is answered.

Header messages come once or twice a request and go through protobuf. Body pieces come with every token, so their
reply is put together by hand around the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from google.protobuf.struct_pb2 import Struct as ProtoStruct

from extproc.exchange.application import Reply
from extproc.exchange.ext_proc_pb2 import (
    CommonResponse,
    HeaderMap,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    TrailersResponse,
)

MAX_PIECE_BYTES = 62_000
"""Largest body piece in a reply. Data planes are known that fail above 64 or 128 KB."""

FILTER_NAME = "envoy.filters.http.ext_proc"
"""Envoy's key for the attributes that it sends to us."""

_OVERWRITE = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD

_REQUEST_BODY = 3
_RESPONSE_BODY = 4


def parse(data: bytes) -> ProcessingRequest:
    """Raises google.protobuf.message.DecodeError."""
    return ProcessingRequest.FromString(data)


def header_dict(headers: HeaderMap) -> dict[str, str]:
    """Names (lower case as Envoy sends them) to values; of a repeated header the first value."""
    result: dict[str, str] = {}
    for header in headers.headers:
        key = header.key
        if key not in result:
            raw = header.raw_value
            # Header bytes are not always UTF-8; Latin-1 keeps every byte.
            result[key] = raw.decode("latin-1") if raw else header.value
    return result


def attributes(message: ProcessingRequest) -> dict[str, object]:
    """Envoy's attributes of a message, by name, such as `upstream.address`."""
    if not message.attributes:
        return {}
    result: dict[str, object] = {}
    for struct in message.attributes.values():
        for name, value in struct.fields.items():
            kind = value.WhichOneof("kind")
            result[name] = getattr(value, kind) if kind else None
    return result


def _mutation(set_headers: Iterable[tuple[str, str]], remove_headers: Iterable[str]) -> HeaderMutation:
    return HeaderMutation(
        set_headers=[
            HeaderValueOption(
                header=HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")), append_action=_OVERWRITE
            )
            for name, value in set_headers
        ],
        remove_headers=remove_headers,
    )


def _metadata(namespaces: Mapping[str, Mapping[str, str]]) -> ProtoStruct:
    metadata = ProtoStruct()
    for namespace, values in namespaces.items():
        fields = metadata.fields[namespace].struct_value.fields
        for key, value in values.items():
            fields[key].string_value = value
    return metadata


def request_headers(
    set_headers: Iterable[tuple[str, str]],
    remove_headers: Iterable[str],
    metadata: Mapping[str, Mapping[str, str]],
    body: bytes | None,
) -> bytes:
    """The reply to the request's headers. With a body, it replaces the request's body and trailers."""
    common = CommonResponse(
        header_mutation=_mutation(set_headers, remove_headers),
        clear_route_cache=True,
    )
    if body is not None:
        common.status = CommonResponse.ResponseStatus.CONTINUE_AND_REPLACE
        common.body_mutation.body = body
    return ProcessingResponse(
        request_headers=HeadersResponse(response=common), dynamic_metadata=_metadata(metadata)
    ).SerializeToString()


def response_headers(
    set_headers: Iterable[tuple[str, str]], remove_headers: Iterable[str], body: bytes | None = None
) -> bytes:
    """The reply to the response's headers. With a body, it replaces the upstream's body and trailers."""
    common = CommonResponse(header_mutation=_mutation(set_headers, remove_headers))
    if body is not None:
        common.status = CommonResponse.ResponseStatus.CONTINUE_AND_REPLACE
        common.body_mutation.body = body
    return ProcessingResponse(response_headers=HeadersResponse(response=common)).SerializeToString()


def request_trailers() -> bytes:
    """The reply to the request's trailers: they pass."""
    return ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()


def response_trailers(remove: Iterable[str]) -> bytes:
    """The reply to the response's trailers."""
    return ProcessingResponse(
        response_trailers=TrailersResponse(header_mutation=HeaderMutation(remove_headers=remove))
    ).SerializeToString()


def immediate(reply: Reply) -> bytes:
    """A whole answer in place of the upstream's."""
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=reply.status),
            headers=_mutation(reply.headers, ()),
            body=reply.body,
            details=reply.details,
        )
    ).SerializeToString()


def continue_request_headers() -> bytes:
    """The reply that changes nothing."""
    return ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()


def continue_response_headers() -> bytes:
    """The reply that changes nothing."""
    return ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()


def request_body(body: bytes, end: bool) -> list[bytes]:
    """Replies that carry a body to the upstream, in pieces."""
    return _pieces(_REQUEST_BODY, body, end)


def response_body(body: bytes, end: bool) -> list[bytes]:
    """Replies that carry a body to the client, in pieces; none for an empty body that is not the end."""
    return _pieces(_RESPONSE_BODY, body, end)


def _pieces(field: int, body: bytes, end: bool) -> list[bytes]:
    size = len(body)
    if size <= MAX_PIECE_BYTES:
        if not size and not end:
            return []
        return [_piece_prefix(field, size, end) + body + _END if end else _piece_prefix(field, size, False) + body]
    starts = range(0, size, MAX_PIECE_BYTES)
    result = []
    for start in starts:
        piece = body[start : start + MAX_PIECE_BYTES]
        last = end and start + MAX_PIECE_BYTES >= size
        prefix = _piece_prefix(field, len(piece), last)
        result.append(prefix + piece + _END if last else prefix + piece)
    return result


_END = b"\x10\x01"  # StreamedBodyResponse.end_of_stream = true


@lru_cache(maxsize=4096)
def _piece_prefix(field: int, size: int, end: bool) -> bytes:
    """What stands before `size` bytes of body in ProcessingResponse.<field>….streamed_response."""
    inner = b"\x0a" + _varint(size)  # StreamedBodyResponse.body
    length = len(inner) + size + (len(_END) if end else 0)
    for tag in (
        0x1A,
        0x1A,
        0x0A,
    ):  # BodyMutation.streamed_response, CommonResponse.body_mutation, BodyResponse.response
        inner = bytes((tag,)) + _varint(length) + inner
        length = len(inner) + size + (len(_END) if end else 0)
    return bytes((field << 3 | 2,)) + _varint(length) + inner


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
