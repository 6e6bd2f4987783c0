"""Log probabilities that look like a model's and are the same for the same token, so that tests know them."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2


def logprob_of(token: int) -> float:
    """The log probability of a sampled token."""
    return -(token % 7 + 1) / 16


def alternatives(token: int, count: int, vocabulary: int) -> vllm_engine_pb2.TopLogProbs:
    """The likeliest tokens of a position, the sampled one first."""
    places = range(count)
    return vllm_engine_pb2.TopLogProbs(
        values=[logprob_of(token) - place / 4 for place in places],
        token_ids=[(token + 31 * place) % vocabulary for place in places],
    )


def of_output(ids: Sequence[int], count: int, vocabulary: int) -> vllm_engine_pb2.OutputLogProbs:
    """For generated tokens."""
    return vllm_engine_pb2.OutputLogProbs(
        token_logprobs=[logprob_of(token) for token in ids],
        token_ids=ids,
        # With a count of 0 there is not even an empty list for each token.
        top_logprobs=[alternatives(token, count, vocabulary) for token in ids] if count else [],
    )


def of_prompt(ids: Sequence[int], count: int, vocabulary: int) -> vllm_engine_pb2.InputLogProbs:
    """For a prompt, whose first token has none."""
    given = vllm_engine_pb2.InputTokenLogProb
    return vllm_engine_pb2.InputLogProbs(
        token_logprobs=[given(), *(given(value=logprob_of(token)) for token in ids[1:])],
        token_ids=ids,
        top_logprobs=[
            vllm_engine_pb2.TopLogProbs(),
            *(alternatives(token, count, vocabulary) for token in ids[1:]),
        ],
    )
