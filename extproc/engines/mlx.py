"""MLX's gRPC protocol, `mlx.grpc.engine.MlxEngine`, as its servicer speaks it.

It resembles vLLM's, with other rules: a chunk's count is that of all tokens so far, the closing message of a stream has
no ids but the true counts, the model's own end is told like a stop token, and an aborted stream ends without any
closing message. There is one choice, no prefix cache, and no check of what is sent: a value that its sampler cannot
take stops the engine for everybody, so what it lacks is refused here, and ids and top_k are checked before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError
from msgspec import UNSET
from smg_grpc_proto.generated.mlx_engine_pb2 import (
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
)

from extproc.engines.base import (
    Decoder,
    Ended,
    EngineEvent,
    EngineRequest,
    ProtocolError,
    Tokens,
    VectorDecoder,
)
from extproc.engines.fields import logprobs_to_ask, scores
from extproc.engines.grpc_status import error_of
from extproc.engines.prompt_field import PromptField
from extproc.ir import TRUNCATED, ErrorInfo, ErrorKind, FinishReason, OutputFormat, RequestError, Sampling
from extproc.transport.framing import Deframer, FramingError

GENERATE = "/mlx.grpc.engine.MlxEngine/Generate"

MAX_MESSAGE_BYTES = 64 << 20

_PROMPT = PromptField(GenerateRequest, "tokenized", "input_ids")
_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class MlxEngine:
    """The codec of one MLX worker or many: it holds no state."""

    name = "mlx"

    def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        stream: bool,
        output: OutputFormat | None = None,
    ) -> EngineRequest:
        """The gRPC request for one prompt of token ids. Raises RequestError (UNSUPPORTED)."""
        if output is not None:
            raise _unsupported(output.path, "answers that are bound to a form")
        if sampling.n != 1:
            raise _unsupported("n", "more than one choice")
        if sampling.min_tokens is not UNSET and sampling.min_tokens > 0:
            raise _unsupported("min_tokens", "a least number of tokens")
        message = GenerateRequest(
            request_id=request_id,
            sampling_params=_sampling_params(sampling),
            # It knows no stop strings. Only a stream can be ended where one matches; whole, it would run to its length.
            stream=stream or bool(sampling.stop),
        )
        return EngineRequest(GENERATE, _PROMPT.frame(message.SerializeToString(), prompt))

    def with_rank(self, request: EngineRequest, rank: int) -> EngineRequest:
        """Its protocol has none."""
        raise ValueError("requests to mlx cannot name a data-parallel rank")

    def decoder(self, choices: int) -> Decoder:
        """For the answer to one `generate`, which has one choice."""
        return MlxDecoder()

    def embed(self, request_id: str, prompt: Sequence[int]) -> EngineRequest:
        """Its protocol has no embeddings."""
        raise _no_embeddings()

    def vector_decoder(self) -> VectorDecoder:
        """Its protocol has no embeddings."""
        raise _no_embeddings()


def _no_embeddings() -> RequestError:
    return RequestError(
        ErrorInfo(
            kind=ErrorKind.UNSUPPORTED,
            message="This model's engine gives no embeddings.",
            param="model",
            code="unsupported_value",
        )
    )


def _unsupported(field: str, what: str) -> RequestError:
    return RequestError(
        ErrorInfo(
            kind=ErrorKind.UNSUPPORTED,
            message=f"Unsupported parameter: '{field}'. This model's engine does not support {what}.",
            param=field,
            code="unsupported_parameter",
        )
    )


def _sampling_params(sampling: Sampling) -> SamplingParams:
    # The penalty is never left out: requests without any penalty or bias put mlx-lm's list of them out of step with its
    # requests (0.31), which then go without theirs, or with those of others. 1 changes nothing.
    params = SamplingParams(
        top_p=1.0 if sampling.top_p is UNSET else sampling.top_p,
        repetition_penalty=1.0 if sampling.repetition_penalty is UNSET else sampling.repetition_penalty,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=sampling.logit_bias,
    )
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
    if sampling.seed is not UNSET:
        params.seed = sampling.seed & 0x7FFF_FFFF  # a negative one is an internal error to it
    if sampling.top_logprobs is not None:
        params.logprobs = logprobs_to_ask(sampling.top_logprobs)
    return params


class MlxDecoder:
    """Decodes one answer to Generate, streamed or not."""

    __slots__ = ("_deframer", "_streamed", "cached_tokens", "completion_tokens", "finished", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finished = False
        self._deframer = Deframer(MAX_MESSAGE_BYTES)
        self._streamed = False

    def feed(self, data: bytes) -> list[EngineEvent]:
        """Raises ProtocolError."""
        events: list[EngineEvent] = []
        try:
            for message in self._deframer.feed(data):
                response = GenerateResponse.FromString(message)
                if response.HasField("chunk"):
                    chunk = response.chunk
                    self._streamed = True
                    self.completion_tokens = chunk.completion_tokens
                    self.prompt_tokens = chunk.prompt_tokens
                    self.cached_tokens = chunk.cached_tokens
                    found = scores(chunk.output_logprobs) if chunk.HasField("output_logprobs") else None
                    events.append(Tokens(chunk.index, chunk.token_ids, found))
                elif response.HasField("complete"):
                    self._complete(response, events)
                else:
                    raise ProtocolError("an engine message with neither a chunk nor an end")
        except (DecodeError, FramingError) as error:
            raise ProtocolError(f"not an answer to MLX's Generate: {error}") from error
        return events

    def _complete(self, response: GenerateResponse, events: list[EngineEvent]) -> None:
        complete = response.complete
        choice = complete.index
        self.finished = True
        self.prompt_tokens = complete.prompt_tokens
        self.completion_tokens = complete.completion_tokens
        self.cached_tokens = complete.cached_tokens
        if not self._streamed:
            found = scores(complete.output_logprobs) if complete.HasField("output_logprobs") else None
            events.append(Tokens(choice, complete.output_ids, found))
        reason = _FINISH.get(complete.finish_reason, FinishReason.ABORT)
        matched = complete.matched_stop_token_id if complete.HasField("matched_stop_token_id") else None
        events.append(Ended(choice, reason, None, matched))

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        """The stream's end."""
        error = error_of(trailers)
        if error is not None:
            return error
        if self._deframer.missing_bytes or not self.finished:
            return TRUNCATED
        return None
