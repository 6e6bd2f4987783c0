"""vLLM's gRPC protocol, `vllm.grpc.engine.VllmEngine`, as its Python servicer speaks it.

proto3 sends every scalar without presence, so a field that is left alone arrives as 0: top_p, repetition_penalty and n
are always sent. In a stream each chunk counts only its own tokens, and the closing message of a choice repeats the last
chunk: once a chunk of a choice has come, the closing message's ids and counts are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import msgspec
from google.protobuf.message import DecodeError
from msgspec import UNSET
from smg_grpc_proto.generated.vllm_engine_pb2 import (
    GenerateRequest,
    GenerateResponse,
    GenerateStreamChunk,
    SamplingParams,
)

from extproc.engines.base import Decoder, Ended, EngineEvent, EngineRequest, ProtocolError, Tokens
from extproc.engines.fields import logprobs_to_ask, scores
from extproc.engines.grpc_status import error_of
from extproc.engines.prompt_field import PromptField
from extproc.engines.rank_field import RankField
from extproc.engines.vllm_embed import VllmVectorDecoder, embed_request
from extproc.ir import TRUNCATED, ErrorInfo, ErrorKind, FinishReason, OutputFormat, Sampling
from extproc.transport.framing import Deframer, FramingError

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message taken from an engine. One with all ids, scores and alternatives of a long answer is a few MB."""

_PROMPT = PromptField(GenerateRequest, "tokenized", "input_ids")
_RANK = RankField(GenerateRequest, "data_parallel_rank")
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}

# The servicer gives vLLM's own refusal of an over-long prompt as INVALID_ARGUMENT with this in its text.
_TOO_LONG = "longer than the maximum model length"


class VllmEngine:
    """The codec of one vLLM worker or many: it holds no state."""

    name = "vllm"

    def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        stream: bool,
        output: OutputFormat | None = None,
    ) -> EngineRequest:
        """The gRPC request for one prompt of token ids."""
        message = GenerateRequest(request_id=request_id, stream=stream)
        _fill_sampling(message.sampling_params, sampling)
        if output is not None:
            _constrain(message.sampling_params, output)
        return EngineRequest(GENERATE, _PROMPT.frame(message.SerializeToString(), prompt))

    def with_rank(self, request: EngineRequest, rank: int) -> EngineRequest:
        """The same request for one data-parallel rank."""
        return _RANK.add(request, rank)

    def decoder(self, choices: int) -> Decoder:
        """For the answer to one `generate`."""
        return VllmDecoder(choices)

    def embed(self, request_id: str, prompt: Sequence[int]) -> EngineRequest:
        """The gRPC request for one vector."""
        return embed_request(request_id, prompt)

    def vector_decoder(self) -> VllmVectorDecoder:
        """For the answer to one `embed`."""
        return VllmVectorDecoder()


def _fill_sampling(params: SamplingParams, sampling: Sampling) -> None:
    params.top_p = 1.0 if sampling.top_p is UNSET else sampling.top_p
    params.repetition_penalty = 1.0 if sampling.repetition_penalty is UNSET else sampling.repetition_penalty
    params.n = sampling.n
    params.spaces_between_special_tokens = True
    params.skip_special_tokens = sampling.skip_special_tokens
    if sampling.stop:
        params.stop.extend(sampling.stop)
    if sampling.stop_token_ids:
        params.stop_token_ids.extend(sampling.stop_token_ids)
    if sampling.ignore_eos:
        params.ignore_eos = True
    if sampling.include_stop:
        params.include_stop_str_in_output = True
    if sampling.logit_bias:
        params.logit_bias.update(sampling.logit_bias)
    if sampling.temperature is not UNSET:
        params.temperature = sampling.temperature
    if sampling.top_k is not UNSET:
        params.top_k = max(sampling.top_k, 0)  # -1 and 0 both mean off
    if sampling.min_p is not UNSET:
        params.min_p = sampling.min_p
    if sampling.frequency_penalty is not UNSET:
        params.frequency_penalty = sampling.frequency_penalty
    if sampling.presence_penalty is not UNSET:
        params.presence_penalty = sampling.presence_penalty
    if sampling.max_tokens is not UNSET:
        params.max_tokens = sampling.max_tokens
    if sampling.min_tokens is not UNSET:
        params.min_tokens = sampling.min_tokens
    if sampling.seed is not UNSET:
        seed = sampling.seed
        # The wire has 32 bits. A larger seed is folded, so that different ones stay different, not clamped to one.
        params.seed = seed if -(1 << 31) <= seed < 1 << 31 else seed & 0x7FFF_FFFF
    if sampling.top_logprobs is not None:
        params.logprobs = logprobs_to_ask(sampling.top_logprobs)


def _constrain(params: SamplingParams, output: OutputFormat) -> None:
    match output.kind:
        case "json_schema":
            params.json_schema = msgspec.json.encode(output.schema).decode()
        case "json_object":
            params.json_object = True
        case "regex":
            params.regex = output.text
        case "grammar":
            params.grammar = output.text
        case "choice":
            params.choice.choices.extend(output.choices)
        case "structural_tag":
            params.structural_tag = msgspec.json.encode(output.schema).decode()


class _ChunkForm:
    """What the chunks of a stream have in common: all but their ids.

    A chunk that is like the one before is not parsed again: its ids are read from where they must stand. 0.3 us, where
    protobuf takes 1.0.
    """

    __slots__ = ("_heads", "_tail", "choice", "completion_tokens")

    def __init__(self, tail: bytes, choice: int, completion_tokens: int) -> None:
        self._tail = tail  # of GenerateResponse: what follows the ids
        self._heads = _chunk_heads(len(tail))
        self.choice = choice
        self.completion_tokens = completion_tokens

    @classmethod
    def of(cls, message: bytes, chunk: GenerateStreamChunk) -> _ChunkForm | None:
        """None where the next chunk cannot be told so: log probabilities, or lengths of more than a byte."""
        head = _chunk_heads(0).get(len(message))
        if head is None or message[:3] != head[:3] or message[3] > len(message) - 4:
            return None
        if chunk.HasField("output_logprobs"):
            return None
        return cls(message[4 + message[3] :], chunk.index, chunk.completion_tokens)

    def ids(self, message: bytes) -> list[int] | None:
        """The ids of a chunk of this form; None where it has another."""
        tail = self._tail
        head = self._heads.get(len(message))
        if head is None or not message.startswith(head) or not message.endswith(tail):
            return None
        packed = message[4 : len(message) - len(tail)]
        if len(packed) == 3:  # what most ids of large vocabularies take
            value = int.from_bytes(packed, "little")
            if value & 0x80_8080 == 0x8080:
                return [value & 0x7F | value >> 1 & 0x3F80 | value >> 2 & 0x1F_C000]
        ids = []
        value = shift = 0
        for byte in packed:
            if byte < 0x80:
                ids.append(value | byte << shift)
                value = shift = 0
            else:
                value |= (byte & 0x7F) << shift
                shift += 7
                if shift > 21:  # no id of a vocabulary
                    return None
        return None if shift else ids


@cache
def _chunk_heads(tail_bytes: int) -> dict[int, bytes]:
    """By a message's size, what stands before its ids, all lengths being of one byte: chunk {token_ids}."""
    return {4 + size + tail_bytes: bytes((0x0A, 2 + size + tail_bytes, 0x0A, size)) for size in range(126 - tail_bytes)}


class VllmDecoder:
    """Decodes one answer to Generate, streamed or not."""

    __slots__ = (
        "_choices",
        "_deframer",
        "_ended",
        "_last",
        "_streamed",
        "cached_tokens",
        "completion_tokens",
        "prompt_tokens",
    )

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._deframer = Deframer(MAX_MESSAGE_BYTES)
        self._streamed: set[int] = set()  # choices of which a chunk came
        self._ended = 0
        self._last: _ChunkForm | None = None

    @property
    def finished(self) -> bool:
        """Every choice has ended."""
        return self._ended >= self._choices

    def feed(self, data: bytes) -> list[EngineEvent]:
        """Raises ProtocolError."""
        deframer = self._deframer
        only = deframer.only(data)
        if only is not None:
            last = self._last
            if last is not None and (ids := last.ids(only)) is not None:
                self.completion_tokens += last.completion_tokens
                return [Tokens(last.choice, ids)]
        events: list[EngineEvent] = []
        try:
            for message in deframer.feed(data) if only is None else (only,):
                response = GenerateResponse.FromString(message)
                if response.HasField("chunk"):
                    chunk = response.chunk
                    self._last = _ChunkForm.of(message, chunk)
                    choice = chunk.index
                    self._streamed.add(choice)
                    self.completion_tokens += chunk.completion_tokens
                    self.prompt_tokens = chunk.prompt_tokens
                    self.cached_tokens = chunk.cached_tokens
                    found = scores(chunk.output_logprobs) if chunk.HasField("output_logprobs") else None
                    events.append(Tokens(choice, chunk.token_ids, found))
                elif response.HasField("complete"):
                    self._complete(response, events)
                else:
                    raise ProtocolError("an engine message with neither a chunk nor an end")
        except (DecodeError, FramingError) as error:
            raise ProtocolError(f"not an answer to vLLM's Generate: {error}") from error
        return events

    def _complete(self, response: GenerateResponse, events: list[EngineEvent]) -> None:
        complete = response.complete
        choice = complete.index
        self._ended += 1
        if complete.prompt_tokens:
            self.prompt_tokens = complete.prompt_tokens
            self.cached_tokens = complete.cached_tokens
        if choice not in self._streamed:
            self.completion_tokens += complete.completion_tokens
            found = scores(complete.output_logprobs) if complete.HasField("output_logprobs") else None
            events.append(Tokens(choice, complete.output_ids, found))
        reason = _FINISH.get(complete.finish_reason, FinishReason.ABORT)
        matched = complete.WhichOneof("matched_stop")
        if matched == "matched_stop_str":
            events.append(Ended(choice, FinishReason.STOP_SEQUENCE, complete.matched_stop_str))
        elif matched == "matched_token_id":
            events.append(Ended(choice, reason, None, complete.matched_token_id))
        else:
            events.append(Ended(choice, reason))

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        """The stream's end."""
        error = error_of(trailers)
        if error is not None:
            if error.kind is ErrorKind.INVALID_REQUEST and _TOO_LONG in error.message:
                return ErrorInfo(
                    kind=ErrorKind.CONTEXT_LENGTH,
                    message=error.message,
                    param="messages",
                    code="context_length_exceeded",
                )
            return error
        if self._deframer.missing_bytes or not self.finished:
            return TRUNCATED
        return None
