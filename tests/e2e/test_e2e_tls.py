"""Envoy and the processor over TCP with TLS, as `listen.processor_tls` sets both up."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from free_ports import free_port
from stack import START_S, Stack, StartStack, eventually, running_envoy

from extproc.config.schema import Config
from extproc.gateway.processor import Processor
from extproc.simulator.spec import OWN_MODEL
from extproc.transport.server import Ngh2Server
from extproc.transport.serving import TransportName

pytestmark = pytest.mark.envoy

DATA = Path(__file__).parents[1] / "transport" / "data"
BODY = {"model": "simulated", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}


def put(folder: Path, name: str) -> None:
    """Replace the processor's certificate and key by rename, as those who renew them do."""
    for suffix in (".key", ".pem"):
        shutil.copy(DATA / f"{name}{suffix}", folder / "new")
        (folder / "new").replace(folder / f"tls{suffix}")


def listen(folder: Path, **tls: Any) -> dict[str, Any]:
    """The processor's certificate where it can be replaced; `tls` changes the rest."""
    put(folder, "first")
    return {
        "processor": [f"127.0.0.1:{free_port()}"],
        "processor_tls": {
            "certificate": str(folder / "tls.pem"),
            "key": str(folder / "tls.key"),
            "ca": str(DATA / "authority.pem"),
            **tls,
        },
    }


RELOADED = "cluster.processor.client_ssl_socket_factory.ssl_context_update_by_sds"
MUTUAL = {
    "server_name": "localhost",
    "client_ca": str(DATA / "authority.pem"),
    "client_certificate": str(DATA / "client.pem"),
    "client_key": str(DATA / "client.key"),
}
STRANGER = {"client_certificate": str(DATA / "stranger.pem"), "client_key": str(DATA / "stranger.key")}


async def status(stack: Stack) -> int:
    return (await stack.http.post("/v1/chat/completions", json=BODY)).status_code


@pytest.mark.parametrize(("transport", "tls"), [("ngh2", MUTUAL), ("grpcio", {})], ids=["mutual", "server"])
async def test_exchanges_are_encrypted(
    start_stack: StartStack, tmp_path: Path, tls: dict[str, Any], transport: TransportName
) -> None:
    async with start_stack(settings={"listen": listen(tmp_path, **tls)}, transport=transport) as stack:
        assert await status(stack) == 200
        stats = await stack.stats("cluster.processor.ssl")
        assert stats["cluster.processor.ssl.handshake"] >= 1
        assert "cluster.processor.ssl.connection_error" not in stats
        assert stats.get("cluster.processor.ssl.versions.TLSv1.3", 0) >= 1
        await stack.nothing_left()


async def test_certificates_and_authorities_are_replaced_under_load(start_stack: StartStack, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    shutil.copy(DATA / "authority.pem", authority)
    async with start_stack(settings={"listen": listen(tmp_path, ca=str(authority))}) as stack:
        stop = asyncio.Event()

        async def load() -> int:
            served = 0
            while not stop.is_set():
                assert await status(stack) == 200
                served += 1
            return served

        loads = [asyncio.create_task(load()) for _ in range(4)]
        rotated = (await stack.stats("cluster.processor.client_ssl")).get(RELOADED, 0)
        # An authority that never signed the old certificate, and what it signed: both sides must take the new files.
        shutil.copy(DATA / "stranger.pem", tmp_path / "new")
        (tmp_path / "new").replace(authority)
        put(tmp_path, "stranger")

        async def reloaded() -> bool:
            return (await stack.stats("cluster.processor.client_ssl")).get(RELOADED, 0) > rotated

        await eventually(reloaded, "Envoy's new authority in use")
        (server,) = stack.processor._servers
        assert isinstance(server, Ngh2Server)
        old = list(server._connections)
        for connection in old:
            connection.drain()
        await eventually(lambda: not set(old) & server._connections, "new connections in place of the old")
        stop.set()
        assert all(await asyncio.gather(*loads))
        assert await status(stack) == 200
        await stack.nothing_left()


@pytest.mark.parametrize(
    ("tls", "stat"),
    [
        ({"ca": str(DATA / "stranger.pem")}, "ssl.fail_verify_error"),
        ({"server_name": "elsewhere"}, "ssl.fail_verify_san"),
        ({"client_ca": str(DATA / "authority.pem"), **STRANGER}, "health_check.network_failure"),
    ],
    ids=["authority", "name", "client"],
)
async def test_without_trust_nothing_reaches_the_processor(
    envoy_binaries: Mapping[str, Path], tmp_path: Path, tls: dict[str, str], stat: str
) -> None:
    config = Config(
        listen={
            "http": f"127.0.0.1:{free_port()}",
            "admin": f"127.0.0.1:{free_port()}",
            "metrics": None,
            **listen(tmp_path, **tls),
        },
        envoy={"directory": str(tmp_path / "xds")},
        pools=[{"name": "main", "models": ["simulated"], "workers": [], "tokenizer": str(OWN_MODEL)}],
    )
    processor = Processor(config)
    await processor.start()
    try:
        async with running_envoy(envoy_binaries["1.40"], config, tmp_path), httpx2.AsyncClient() as http:

            async def refused() -> bool:
                stats = await http.get(f"http://{config.listen.admin}/stats?usedonly&filter=cluster.processor")
                return f"cluster.processor.{stat}: " in stats.text

            await eventually(refused, "a handshake refused", START_S)
            answer = await http.post(f"http://{config.listen.http}/v1/chat/completions", json=BODY)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "processor_unavailable"
            assert processor.open_exchanges == 0
    finally:
        await processor.stop(settle_s=0.0, grace_s=0.0)
