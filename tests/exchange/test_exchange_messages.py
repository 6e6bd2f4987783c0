"""The wire messages are Envoy's, and hand-made ones are what protobuf would make."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.type import v3 as envoy_type
from hypothesis import given
from hypothesis import strategies as st

from extproc.exchange import ext_proc_pb2, messages
from extproc.exchange.ext_proc_pb2 import ProcessingResponse

ROOT = Path(__file__).parents[2]


def test_every_field_has_the_number_that_envoy_gives_it() -> None:
    checked = 0
    for name, message in ext_proc_pb2.DESCRIPTOR.message_types_by_name.items():
        theirs = next((getattr(m, name) for m in (ext_proc, core, envoy_type) if hasattr(m, name)), None)
        assert theirs is not None, name
        numbers = {f.name: f.metadata["betterproto"].number for f in dataclasses.fields(theirs)}
        for field in message.fields:
            assert numbers[field.name] == field.number, f"{name}.{field.name}"
            checked += 1
    assert checked > 30


def test_the_committed_code_is_what_protoc_makes_of_the_definitions(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}/proto", f"--python_out={tmp_path}", "ext_proc.proto"],
        check=True,
    )
    made = (tmp_path / "ext_proc_pb2.py").read_text()
    assert made == (ROOT / "extproc/exchange/ext_proc_pb2.py").read_text()


@given(size=st.integers(0, 200_000), end=st.booleans())
def test_body_pieces_carry_the_body_whole_and_end_it_once(size: int, end: bool) -> None:
    body = bytes(i % 251 for i in range(size % 997)) * (size // 997 + 1)
    for build, kind in ((messages.request_body, "request_body"), (messages.response_body, "response_body")):
        got = b""
        ends = []
        for piece in build(body, end):
            reply = ProcessingResponse.FromString(piece)
            assert reply.WhichOneof("response") == kind
            streamed = getattr(reply, kind).response.body_mutation.streamed_response
            assert len(streamed.body) <= messages.MAX_PIECE_BYTES
            got += streamed.body
            ends.append(streamed.end_of_stream)
            if streamed.body:
                assert reply.SerializeToString() == piece
        assert got == body
        assert ends[-1:] == ([end] if ends else [])
        assert not any(ends[:-1])


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 61_999, 62_000, 62_001, 124_000])
def test_an_end_is_sent_also_with_an_empty_body(size: int) -> None:
    pieces = messages.response_body(bytes(size), True)
    last = ProcessingResponse.FromString(pieces[-1]).response_body.response.body_mutation.streamed_response
    assert last.end_of_stream
    assert len(pieces) == max(1, -(-size // messages.MAX_PIECE_BYTES))


def test_of_a_repeated_header_the_first_value_counts_and_no_byte_is_lost() -> None:
    headers = ext_proc_pb2.HeaderMap(
        headers=[
            ext_proc_pb2.HeaderValue(key="a", raw_value=b"1\xff"),
            ext_proc_pb2.HeaderValue(key="a", raw_value=b"2"),
            ext_proc_pb2.HeaderValue(key="b", value="old"),
        ]
    )
    assert messages.header_dict(headers) == {"a": "1\xff", "b": "old"}
