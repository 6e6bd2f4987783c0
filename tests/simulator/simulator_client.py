"""A client of simulated engines: grpcio with the protocol's own stubs, an implementation that we did not write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from extproc.simulator.artifacts import Artifacts
from extproc.simulator.fleet import RunningEngine


@dataclass
class Streamed:
    """Everything that one answer carried."""

    chunks: list[pb.GenerateStreamChunk] = field(default_factory=list)
    completes: list[pb.GenerateComplete] = field(default_factory=list)

    def ids(self, index: int = 0) -> list[int]:
        """Ids of a choice, from its chunks."""
        return [token for chunk in self.chunks if chunk.index == index for token in chunk.token_ids]

    def complete(self, index: int = 0) -> pb.GenerateComplete:
        """The only closing message of a choice."""
        (complete,) = (each for each in self.completes if each.index == index)
        return complete


class Client:
    """One engine, its tokenizer and a stub."""

    def __init__(self, engine: RunningEngine, channel: grpc.aio.Channel) -> None:
        self.engine = engine
        self.channel = channel
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)

    @property
    def artifacts(self) -> Artifacts:
        return self.engine.engine.artifacts

    def request(
        self, prompt: str | Sequence[int], *, stream: bool = True, request_id: str = "r", **sampling: Any
    ) -> pb.GenerateRequest:
        """A request as a gateway sends it."""
        ids = self.artifacts.encode(prompt) if isinstance(prompt, str) else prompt
        return pb.GenerateRequest(
            request_id=request_id,
            tokenized=pb.TokenizedInput(input_ids=ids),
            sampling_params=pb.SamplingParams(**sampling),
            stream=stream,
        )

    async def generate(self, prompt: str | Sequence[int], **options: Any) -> Streamed:
        """Ask and read to the end."""
        return await self.read(self.stub.Generate(self.request(prompt, **options)))

    async def read(self, call: Any) -> Streamed:
        """Read a call to its end."""
        answer = Streamed()
        while (message := await call.read()) is not grpc.aio.EOF:
            if message.WhichOneof("response") == "chunk":
                answer.chunks.append(message.chunk)
            else:
                answer.completes.append(message.complete)
        return answer

    async def generate_anew(self, prompt: str | Sequence[int], **options: Any) -> Streamed:
        """As `generate`, on a connection of its own: the other one may not have noticed yet that its engine is gone."""
        channel_options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.engine.address, options=channel_options) as channel:
            return await Client(self.engine, channel).generate(prompt, **options)

    async def load(self) -> pb.SchedulerLoad:
        """GetLoads of the only rank."""
        (load,) = (await self.stub.GetLoads(pb.GetLoadsRequest())).loads
        return load

    async def until(self, condition: Callable[[pb.SchedulerLoad], bool]) -> pb.SchedulerLoad:
        """Ask for the load until it is so."""
        async with asyncio.timeout(10):
            while True:
                load = await self.load()
                if condition(load):
                    return load
                await asyncio.sleep(0.005)

    def text(self, ids: Sequence[int]) -> str:
        return self.artifacts.decode(list(ids))


def chat(text: str) -> str:
    """A prompt of one user turn."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
