"""What the engine checks before it takes a request. Every refusal is INVALID_ARGUMENT, before any message.

The texts are those of vLLM where gateways look into them, as for a prompt that is too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from smg_grpc_proto.generated import vllm_engine_pb2

from extproc.simulator.artifacts import Artifacts
from extproc.simulator.constants import MAX_LOGPROBS
from extproc.transport.status import RpcError, Status

_MAX_CHOICES = 16_384  # vLLM's VLLM_MAX_N_SEQUENCES
_GREEDY_BELOW = 1e-5  # vLLM's _SAMPLING_EPS


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters that change an answer here.

    Temperature 0 makes it the same each time, other values change nothing. Constraints (JSON schema, regex, grammar,
    choices) are not followed: what is said comes from the engine's script.
    """

    n: int
    max_tokens: int | None
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: frozenset[int]
    logit_bias: Mapping[int, float]
    ignore_eos: bool
    skip_special_tokens: bool
    logprobs: int | None
    prompt_logprobs: int | None
    seed: int | None
    greedy: bool


def read_prompt(request: vllm_engine_pb2.GenerateRequest, artifacts: Artifacts, context_tokens: int) -> list[int]:
    """The prompt's ids. Raises RpcError."""
    kind = request.WhichOneof("input")
    prompt = artifacts.encode(request.text) if kind == "text" else request.tokenized.input_ids[:]
    check_prompt(prompt, artifacts.vocabulary, context_tokens)
    length = len(prompt)
    if length == context_tokens:
        raise _refused(
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer "
            f"than the maximum model length of {context_tokens}. Make sure that `max_model_len` is no smaller than "
            "the number of text tokens (prompt + requested output tokens)."
        )
    if request.HasField("data_parallel_rank") and request.data_parallel_rank != 0:
        raise _refused(f"data_parallel_rank {request.data_parallel_rank} is out of range [0, 1).")
    return prompt


def check_prompt(prompt: Sequence[int], vocabulary: int, context_tokens: int) -> None:
    """That there is one, of known ids, and not too long. Raises RpcError."""
    length = len(prompt)
    if not length:
        raise _refused("The decoder prompt cannot be empty")
    if max(prompt) >= vocabulary:
        raise _refused(f"Token id {max(prompt)} is out of vocabulary")
    if length > context_tokens:
        raise _refused(
            f"The decoder prompt (length {length}) is longer than the maximum model length of {context_tokens}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        )


def read_sampling(params: vllm_engine_pb2.SamplingParams, vocabulary: int) -> Sampling:
    """The parameters; zeros that mean "not given" become defaults. Raises RpcError."""
    max_tokens = params.max_tokens if params.HasField("max_tokens") else None
    if params.temperature < 0:
        raise _refused(f"temperature must be non-negative, got {params.temperature}.")
    if not 0 <= params.top_p <= 1:
        raise _refused(f"top_p must be in (0, 1], got {params.top_p}.")
    if not 0 <= params.min_p <= 1:
        raise _refused(f"min_p must be in [0, 1], got {params.min_p}.")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        if not -2 <= value <= 2:
            raise _refused(f"{name} must be in [-2, 2], got {value}.")
    if params.repetition_penalty < 0:
        raise _refused(f"repetition_penalty must be greater than zero, got {params.repetition_penalty}.")
    if params.n > _MAX_CHOICES:
        raise _refused(f"n must be at most {_MAX_CHOICES}, got {params.n}.")
    greedy = params.HasField("temperature") and params.temperature < _GREEDY_BELOW
    if greedy and params.n > 1:
        raise _refused(f"n must be 1 when using greedy sampling, got {params.n}.")
    if max_tokens == 0:
        raise _refused("max_tokens must be at least 1, got 0.")
    if max_tokens is not None and params.min_tokens > max_tokens:
        raise _refused(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {params.min_tokens}.")
    if "" in params.stop:
        raise _refused("stop cannot contain an empty string.")
    bias = dict(params.logit_bias) if params.logit_bias else {}
    _known_ids("logit_bias", bias, vocabulary)
    _known_ids("stop_token_ids", params.stop_token_ids, vocabulary)
    return Sampling(
        n=params.n or 1,
        max_tokens=max_tokens,
        min_tokens=params.min_tokens,
        stop=tuple(params.stop),
        stop_token_ids=frozenset(params.stop_token_ids),
        logit_bias=bias,
        ignore_eos=params.ignore_eos,
        skip_special_tokens=params.skip_special_tokens,
        logprobs=_logprobs(params, "logprobs", "sample"),
        prompt_logprobs=_logprobs(params, "prompt_logprobs", "prompt"),
        seed=params.seed if params.HasField("seed") else None,
        greedy=greedy,
    )


def _known_ids(name: str, ids: Iterable[int], vocabulary: int) -> None:
    unknown = [token for token in ids if not 0 <= token < vocabulary]
    if unknown:
        raise _refused(
            f"token_id(s) {unknown} in {name} contain out-of-vocab token ids. Vocabulary size: {vocabulary} "
            f"(parameter={name}, value={unknown})"
        )


def _logprobs(params: vllm_engine_pb2.SamplingParams, name: str, what: str) -> int | None:
    if not params.HasField(name):
        return None
    count: int = getattr(params, name)
    if count > MAX_LOGPROBS or count == -1:  # -1 asks for the whole vocabulary, which is more
        raise _refused(f"Requested {what} logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}")
    if count < 0:
        raise _refused(f"{name} must be non-negative or -1, got {count}.")
    return count


def _refused(details: str) -> RpcError:
    return RpcError(Status.INVALID_ARGUMENT, details)
