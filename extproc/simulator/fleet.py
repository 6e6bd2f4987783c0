"""Start engines in this process and end them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smg_grpc_proto.generated import vllm_engine_pb2

from extproc.simulator import constants
from extproc.simulator.artifacts import Artifacts
from extproc.simulator.engine import Engine, Load
from extproc.simulator.faults import Faults
from extproc.simulator.service import vllm_service
from extproc.simulator.spec import EngineSpec
from extproc.transport.health import Health
from extproc.transport.server import Ngh2Server


class RunningEngine:
    """An engine that serves."""

    def __init__(self, engine: Engine) -> None:
        self._restarting: asyncio.Task[None] | None = None
        self._take(engine)

    def _take(self, engine: Engine) -> None:
        self.engine = engine
        publisher = engine.kv_publisher
        self._kv_addresses = (publisher.endpoint, publisher.replay_endpoint) if publisher is not None else ("", "")
        self._health = Health()
        self._server = Ngh2Server(vllm_service(engine, self._health))
        engine.on_death = self._server.abort
        engine.on_restart = self._restart_by_itself

    @property
    def address(self) -> str:
        """`host:port` with the real port, or `unix:/path`."""
        return self._server.address

    @property
    def url(self) -> str:
        """The address as gateways take it."""
        return f"grpc://{self.address}"

    @property
    def requests(self) -> Sequence[vllm_engine_pb2.GenerateRequest]:
        """The last Generate requests, refused ones included, the oldest first."""
        return self.engine.requests

    @property
    def embed_requests(self) -> Sequence[vllm_engine_pb2.EmbedRequest]:
        """The last Embed requests that were answered."""
        return self.engine.embed_requests

    @property
    def aborted_ids(self) -> Sequence[str]:
        """Request ids of the last Abort calls."""
        return self.engine.aborted_ids

    @property
    def faults(self) -> Faults:
        """What it does wrong; assign to change it from the next call on."""
        return self.engine.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self.engine.faults = faults

    def load(self) -> Load:
        """What GetLoads reports."""
        return self.engine.load()

    async def start(self) -> None:
        """Listen. Raises ListenError."""
        await self._server.start(self.engine.spec.listen)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no new requests, let running ones end for `grace_s`, then cut them."""
        if self._restarting is not None:
            self._restarting.cancel()
        self._health.shut_down()
        self._health.end_watches()
        await self._server.stop(grace_s)
        self.engine.close()

    async def kill(self) -> None:
        """End as a killed process does: every connection is cut, nothing is said."""
        self.engine.close()
        self._server.abort()
        await self._server.stop(0)

    async def restart(self, down_s: float = constants.RESTART_S) -> None:
        """Killed, and after `down_s` at the same address again: an empty cache, nothing remembered."""
        await self.kill()
        await asyncio.sleep(down_s)
        ended = self.engine
        kv_zmq, kv_zmq_replay = self._kv_addresses
        spec = replace(ended.spec, listen=self.address, kv_zmq=kv_zmq, kv_zmq_replay=kv_zmq_replay)
        self._take(Engine(spec, ended.artifacts))
        await self.start()

    def _restart_by_itself(self) -> None:
        self._restarting = asyncio.get_running_loop().create_task(self.restart())


async def start_engines(specs: Sequence[EngineSpec]) -> list[RunningEngine]:
    """Start all of them, or none. Raises ArtifactError and ListenError."""
    loaded: dict[Path, Artifacts] = {}
    running: list[RunningEngine] = []
    try:
        for spec in specs:
            artifacts = loaded.get(spec.tokenizer)
            if artifacts is None:
                artifacts = loaded[spec.tokenizer] = Artifacts.load(spec.tokenizer)
            engine = RunningEngine(Engine(spec, artifacts))
            running.append(engine)
            await engine.start()
    except BaseException:
        for engine in running:
            await engine.stop()
        raise
    return running
