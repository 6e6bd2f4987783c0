"""Chunks written by hand are what protobuf writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.simulator.wire import ChunkWriter

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))


@given(st.lists(numbers, min_size=1, max_size=50), numbers, numbers, st.integers(0, 200))
def test_equals_protobuf(ids, prompt_tokens, cached_tokens, index):
    expected = pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=ids,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            cached_tokens=cached_tokens,
            index=index,
        )
    )
    assert ChunkWriter(prompt_tokens, cached_tokens, index).chunk(ids) == expected.SerializeToString()
