"""vLLM's Embed call: what is sent, and what its answers mean, however they are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated.vllm_engine_pb2 import EmbedRequest, EmbedResponse

from extproc.engines.base import ProtocolError
from extproc.engines.mlx import MlxEngine
from extproc.engines.vllm import VllmEngine
from extproc.ir import ErrorKind, RequestError
from extproc.transport.framing import frame

OK = {"grpc-status": "0"}


def test_a_prompt_is_one_call() -> None:
    request = VllmEngine().embed("embd-1", [1, 300, 70_000])
    assert request.path == "/vllm.grpc.engine.VllmEngine/Embed"
    message = EmbedRequest.FromString(request.body[5:])
    assert (message.request_id, list(message.tokenized.input_ids)) == ("embd-1", [1, 300, 70_000])


def test_an_engine_without_embeddings_says_so() -> None:
    with pytest.raises(RequestError) as caught:
        MlxEngine().embed("embd-1", [1])
    assert caught.value.info.kind is ErrorKind.UNSUPPORTED


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1), st.data())
def test_a_vector_arrives_however_its_bytes_are_cut(values: list[float], data: Any) -> None:
    decoder = VllmEngine().vector_decoder()
    body = frame(EmbedResponse(embedding=values, prompt_tokens=7, embedding_dim=len(values)).SerializeToString())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
    for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        decoder.feed(body[begin:end])
    assert decoder.end(OK) is None
    assert decoder.vector is not None
    assert (decoder.vector.values(), decoder.vector.prompt_tokens) == (pytest.approx(values), 7)


def test_what_is_no_vector_is_an_error() -> None:
    decoder = VllmEngine().vector_decoder()
    nothing = decoder.end(OK)
    assert nothing is not None
    assert nothing.kind is ErrorKind.BAD_GATEWAY
    decoder = VllmEngine().vector_decoder()
    refused = decoder.end({"grpc-status": "3", "grpc-message": "This model does not support pooling"})
    assert refused is not None
    assert (refused.kind, refused.message) == (ErrorKind.INVALID_REQUEST, "This model does not support pooling")
    with pytest.raises(ProtocolError):
        VllmEngine().vector_decoder().feed(frame(b"\xff\xff\xff"))
