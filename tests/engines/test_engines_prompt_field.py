"""A request whose ids are appended to its other fields is the same message as one that was built whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import mlx_engine_pb2, vllm_engine_pb2

from extproc.engines.prompt_field import PromptField
from extproc.token_ids import MAX_IDS, TokenIds
from extproc.transport.framing import Deframer

IDS = st.lists(st.integers(0, MAX_IDS - 1) | st.sampled_from([0, 127, 128, 16_383, 16_384, MAX_IDS - 1]), max_size=60)


@given(IDS, st.integers(0, 40))
def test_ids_survive_as_varints_of_four_bytes(ids: list[int], times: int) -> None:
    ids = ids * times  # also over more than one chunk
    kept = TokenIds.of(ids)
    assert (list(kept), len(kept)) == (ids, len(ids))
    assert TokenIds.from_packed(kept.packed()) == kept
    assert TokenIds(kept.varints + kept.varints) == TokenIds.of(ids + ids)


@pytest.mark.parametrize("ids", [[-1], [MAX_IDS], [1 << 32]])
def test_what_is_no_token_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token id"):
        TokenIds.of(ids)


@pytest.mark.parametrize("request_type", [vllm_engine_pb2.GenerateRequest, mlx_engine_pb2.GenerateRequest])
@pytest.mark.parametrize(
    "ids", [[], [5], list(range(100_000, 103_000)), [7] * 300_000], ids=["none", "one", "many", "very many"]
)
def test_appended_ids_make_the_same_message(request_type: Any, ids: list[int]) -> None:
    message = request_type(request_id="r")
    message.sampling_params.top_p = 0.5
    others = message.SerializeToString()
    message.tokenized.input_ids.extend(ids)
    field = PromptField(request_type, "tokenized", "input_ids")
    for prompt in (ids, TokenIds.of(ids)):
        (sent,) = Deframer(1 << 20).feed(field.frame(others, prompt))
        assert len(sent) < (400_000 if len(ids) > 3000 else 20_000)  # what is long is written short
        parsed = request_type.FromString(sent)
        assert parsed == message
        assert parsed.HasField("tokenized")
