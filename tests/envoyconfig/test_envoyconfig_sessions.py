"""All requests of a conversation reach the same one of several processes, in real Envoys."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from scripted_processor import Decision, Engine, Processor, free_port, run_envoy, serve_engine, serve_processor

from extproc.config.schema import Config

pytestmark = pytest.mark.envoy

CHAT = "/v1/chat/completions"
PROCESSES = 3


async def test_a_session_has_one_process_and_sessions_share_all_of_them(envoy_binary: Path, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as running:
        engine = await running.enter_async_context(serve_engine(Engine("engine")))
        decision = Decision("chat", engine.address)
        config = Config(
            listen={
                "http": f"127.0.0.1:{free_port()}",
                "admin": f"127.0.0.1:{free_port()}",
                "processor": [f"unix:{tmp_path}/p.sock"],
            },
            envoy={"directory": str(tmp_path / "xds"), "session_headers": ["x-session-id", "session_id"]},
            pools=[{"name": "chat", "models": ["tiny"], "workers": [engine.address]}],
            processes=PROCESSES,
        )
        processors = [Processor(lambda: decision) for _ in range(PROCESSES)]
        for processor, socket in zip(processors, config.all_sockets, strict=True):
            await running.enter_async_context(serve_processor(processor, str(socket)))
        envoy = await running.enter_async_context(run_envoy(envoy_binary, config, tmp_path / "envoy.log"))

        async def served(**headers: str) -> int:
            """The process that gets a request with these headers."""
            before = [len(processor.exchanges) for processor in processors]
            status, _ = await envoy.request("POST", CHAT, b"{}", headers)
            assert status == 200
            after = [len(processor.exchanges) for processor in processors]
            (at,) = (at for at in range(PROCESSES) if after[at] > before[at])
            return at

        while {await served() for _ in range(8)} != set(range(PROCESSES)):
            pass  # until Envoy has found all of them healthy
        used = set()
        for session in range(12):
            name = f"session {session}"
            (at,) = {await served(**{"x-session-id": name}) for _ in range(6)}
            assert await served(**{"session_id": "another", "x-session-id": name}) == at
            used.add(at)
        assert used == set(range(PROCESSES))
        assert len({await served(session_id="the second header") for _ in range(6)}) == 1
