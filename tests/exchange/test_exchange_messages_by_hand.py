"""What is read and built without protobuf is what protobuf reads and builds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.exchange import messages
from extproc.exchange.ext_proc_pb2 import (
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)

NAMES = st.text("abcdefgh-:", min_size=1, max_size=200)
VALUES = st.text(st.characters(max_codepoint=0x2FF), max_size=300)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple)
BODIES = st.one_of(st.none(), st.binary(max_size=300), st.integers(0, 70_000).map(bytes))


def headers_reply(
    headers: tuple[tuple[str, str], ...], removed: tuple[str, ...], body: bytes | None, *, clear: bool
) -> HeadersResponse:
    common = CommonResponse(
        header_mutation=HeaderMutation(
            set_headers=[
                HeaderValueOption(
                    header=HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")),
                    append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
                )
                for name, value in headers
            ],
            remove_headers=removed,
        ),
        clear_route_cache=clear,
    )
    if body is not None:
        common.status = CommonResponse.CONTINUE_AND_REPLACE
        common.body_mutation.body = body
    return HeadersResponse(response=common)


@given(headers=HEADERS, removed=st.lists(NAMES, max_size=4).map(tuple), body=BODIES)
def test_the_reply_to_the_responses_headers(
    headers: tuple[tuple[str, str], ...], removed: tuple[str, ...], body: bytes | None
) -> None:
    expected = ProcessingResponse(response_headers=headers_reply(headers, removed, body, clear=False))
    assert ProcessingResponse.FromString(messages.response_headers(headers, removed, body)) == expected


@given(
    headers=HEADERS,
    removed=st.lists(NAMES, max_size=4).map(tuple),
    body=BODIES,
    metadata=st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), max_size=3),
)
def test_the_reply_to_the_requests_headers(
    headers: tuple[tuple[str, str], ...],
    removed: tuple[str, ...],
    body: bytes | None,
    metadata: dict[str, dict[str, str]],
) -> None:
    expected = ProcessingResponse(request_headers=headers_reply(headers, removed, body, clear=True))
    for namespace, values in metadata.items():
        fields = expected.dynamic_metadata.fields[namespace].struct_value.fields
        for key, value in values.items():
            fields[key].string_value = value
    assert ProcessingResponse.FromString(messages.request_headers(headers, removed, metadata, body)) == expected


@given(size=st.one_of(st.integers(0, 400), st.integers(16_000, 17_000), st.just(3_000_000)))
def test_a_piece_of_the_response_is_read_whatever_its_size(size: int) -> None:
    body = bytes(i % 251 for i in range(size % 997)) + bytes(size - size % 997)
    message = ProcessingRequest(response_body=HttpBody(body=body)).SerializeToString()
    assert messages.response_piece(message) == (body or None)


@given(
    message=st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda body, end, observed: ProcessingRequest(
                response_body=HttpBody(body=body, end_of_stream=end), observability_mode=observed
            ).SerializeToString(),
            st.binary(max_size=300),
            st.booleans(),
            st.booleans(),
        ),
        st.builds(lambda body: ProcessingRequest(request_body=HttpBody(body=body)).SerializeToString(), st.binary()),
        st.just(ProcessingRequest(response_headers=HttpHeaders()).SerializeToString()),
    )
)
def test_what_is_taken_for_a_piece_of_the_response_is_nothing_else(message: bytes) -> None:
    piece = messages.response_piece(message)
    if piece is not None:
        assert ProcessingRequest.FromString(message) == ProcessingRequest(response_body=HttpBody(body=piece))
