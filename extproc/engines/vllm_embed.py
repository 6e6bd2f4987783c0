"""vLLM's Embed call: one prompt of token ids to one vector. Its message has no place for anything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError
from smg_grpc_proto.generated.vllm_engine_pb2 import EmbedRequest, EmbedResponse

from extproc.engines.base import EngineRequest, ProtocolError
from extproc.engines.grpc_status import error_of
from extproc.engines.prompt_field import PromptField
from extproc.ir import Embedding, ErrorInfo, ErrorKind
from extproc.transport.framing import Deframer, FramingError

EMBED = "/vllm.grpc.engine.VllmEngine/Embed"

_MAX_MESSAGE_BYTES = 1 << 20
"""A vector of 4096 numbers takes 16 KiB."""

_PROMPT = PromptField(EmbedRequest, "tokenized", "input_ids")


def embed_request(request_id: str, prompt: Sequence[int]) -> EngineRequest:
    """The gRPC request for one prompt."""
    return EngineRequest(EMBED, _PROMPT.frame(EmbedRequest(request_id=request_id).SerializeToString(), prompt))


class VllmVectorDecoder:
    """Decodes one answer to Embed."""

    __slots__ = ("_deframer", "vector")

    def __init__(self) -> None:
        self.vector: Embedding | None = None
        self._deframer = Deframer(_MAX_MESSAGE_BYTES)

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError."""
        try:
            for message in self._deframer.feed(data):
                response = EmbedResponse.FromString(message)
                self.vector = Embedding.of(response.embedding, response.prompt_tokens)
        except (DecodeError, FramingError) as error:
            raise ProtocolError(f"not an answer to vLLM's Embed: {error}") from error

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        """The stream's end."""
        error = error_of(trailers)
        if error is None and (self.vector is None or not self.vector.packed or self._deframer.missing_bytes):
            return ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="The engine gave no embedding.")
        return error
