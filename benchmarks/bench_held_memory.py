"""Memory that a request holds while it waits for its answer: growth of resident memory, in KB per waiting exchange.

In this process: exchange and gateway without a transport. With --envoy: a real Envoy and `extproc serve` in processes
of their own, an engine that never answers, and a client connection for each request. Each prompt is new text.

Run: python benchmarks/bench_held_memory.py [--exchanges N] [--tokens N] [--blame | --envoy]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import sys
import tempfile
import tracemalloc
from pathlib import Path

import yaml
from gateway import model
from in_process import BUILD, InProcess, Prompts, answer, request
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.cli.ports import free_ports
from extproc.config.load import load
from extproc.engines.vllm import GENERATE
from extproc.envoyconfig.binary import find_envoy
from extproc.envoyconfig.files import BOOTSTRAP, build, write
from extproc.exchange.exchange import Exchange, State
from extproc.transport.adapters import unary
from extproc.transport.server import Ngh2Server
from extproc.transport.service import Call

_BYTES_PER_TOKEN = 4.1  # of the text that Prompts makes
_HOST = "127.0.0.1"


def resident_bytes(pid: int | str = "self") -> int:
    """Of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def give_back() -> None:
    """Free what is unused, so that later growth is growth."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


async def run_here(exchanges: int, tokens: int, *, blame: bool) -> None:
    """Print the figures."""
    gateway = await InProcess.load()
    prompts = Prompts()

    async def waiting() -> Exchange:
        exchange = gateway.exchange()
        for message in request(prompts.body(int(tokens * _BYTES_PER_TOKEN))):
            exchange.receive(message)
        if exchange.pending is not None:
            exchange.resume(await exchange.pending)
        assert exchange.state is State.FORWARDED
        return exchange

    # What is made once, caches of the tokenizer included, is not what a request holds.
    for _ in range(200):
        (await waiting()).close()
    give_back()
    workers = gateway.fleet.workers
    if blame:
        tracemalloc.start(12)
    before = resident_bytes()
    held = [await waiting() for _ in range(exchanges)]
    peak = resident_bytes()
    prompt_tokens = sum(worker.waiting_tokens for worker in workers) / exchanges
    gc.collect()
    after = resident_bytes()
    print(f"{exchanges} exchanges of {prompt_tokens:.0f} prompt tokens each wait for their answers")
    print(f"resident memory grew by {(after - before) / 1e6:.1f} MB: {(after - before) / exchanges / 1000:.1f} KB each")
    print(f"before a garbage collection: {(peak - before) / exchanges / 1000:.1f} KB each")
    if blame:
        held_bytes = sum(trace.size for trace in tracemalloc.take_snapshot().traces)
        print(f"in Python objects: {held_bytes / exchanges / 1000:.1f} KB each")
        for line in tracemalloc.take_snapshot().statistics("lineno")[:12]:
            print(f"  {line.size / exchanges:8.0f} bytes each, {line.count / exchanges:6.1f} objects: {line.traceback}")
        tracemalloc.stop()
    replies = 0
    for exchange in held:
        for message in answer(range(1000, 1004), 12_000):
            replies += len(exchange.receive(message))
        exchange.close()
    assert replies >= 3 * exchanges
    assert not any(worker.running for worker in workers)
    await gateway.aclose()


class Silent:
    """A call of an engine that never answers."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, data: bytes) -> None:
        """The request is dropped: this process is not what is measured."""

    def half_close(self) -> None:
        """It waits for ever."""

    def closed(self) -> None:
        """The gateway has given it up."""


async def run_with_envoy(exchanges: int, tokens: int) -> None:
    """Print the figures of the processor's and of Envoy's process."""
    healthy = pb.HealthCheckResponse(healthy=True).SerializeToString()
    engine = Ngh2Server({GENERATE: Silent, "/vllm.grpc.engine.VllmEngine/HealthCheck": unary(lambda _: healthy)})
    await engine.start(f"{_HOST}:0")
    http, admin, metrics = free_ports(_HOST, 3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        pool = {"name": "main", "models": [model.MODEL], "workers": [engine.address], "context_tokens": 100_000}
        settings = {
            "listen": {
                "http": f"{_HOST}:{http}",
                "admin": f"{_HOST}:{admin}",
                "metrics": f"{_HOST}:{metrics}",
                "processor": ["unix:p.sock"],
            },
            "envoy": {"directory": "envoy"},
            "pools": [{**pool, "tokenizer": str(model.make(BUILD / "model"))}],
        }
        await asyncio.to_thread(file.write_text, yaml.safe_dump(settings))
        config = load(file)
        write(build(config), Path(config.envoy.directory))
        serve = [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file), "--settle-s", "0"]
        run_envoy = [str(find_envoy().path), "--config-path", str(Path(config.envoy.directory, BOOTSTRAP))]
        processor = await asyncio.create_subprocess_exec(*serve)
        envoy = await asyncio.create_subprocess_exec(*run_envoy, "--disable-hot-restart", "--log-level", "error")
        try:
            prompts = Prompts()
            while not (await _get(http, "/v1/models")).startswith(b"HTTP/1.1 200"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            # Warm as in use, then all requests of that are given up.
            warm = [await _post(http, prompts.body(int(tokens * _BYTES_PER_TOKEN))) for _ in range(200)]
            await _until(metrics, len(warm))
            for writer in warm:
                writer.close()
            await _until(metrics, 0)
            before = {process.pid: resident_bytes(process.pid) for process in (processor, envoy)}
            writers = []
            for _ in range(exchanges):
                writers.append(await _post(http, prompts.body(int(tokens * _BYTES_PER_TOKEN))))
            waiting_tokens = await _until(metrics, exchanges)
            print(f"{exchanges} requests of {waiting_tokens / exchanges:.0f} prompt tokens each wait for their answers")
            for name, process in (("processor", processor), ("Envoy", envoy)):
                was, now = before[process.pid], resident_bytes(process.pid)
                each = (now - was) / exchanges / 1000
                print(f"{name}: resident memory went from {was / 1e6:.0f} to {now / 1e6:.0f} MB, {each:.1f} KB each")
            for writer in writers:
                writer.close()
            await _until(metrics, 0)
        finally:
            for process in (envoy, processor):
                process.kill()
                await process.wait()
            await engine.stop(0)


async def _get(port: int, path: str) -> bytes:
    try:
        reader, writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        return b""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    text = await reader.read()
    writer.close()
    return text


async def _post(port: int, body: bytes) -> asyncio.StreamWriter:
    """Send a request and wait for no answer."""
    _, writer = await asyncio.open_connection(_HOST, port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
    await writer.drain()
    return writer


async def _until(metrics: int, running: int) -> float:
    """Wait until the processor has so many requests with the engine; returns their prompt tokens."""
    while True:
        shown = dict(
            line.rsplit(b" ", 1) for line in (await _get(metrics, "/metrics")).splitlines() if b"{pool" in line
        )
        values = {name.partition(b"{")[0]: float(value) for name, value in shown.items()}
        if values.get(b"extproc_worker_running_requests") == running:
            return values[b"extproc_worker_waiting_tokens"]
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exchanges", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--blame", action="store_true", help="name the lines that hold most; slow")
    parser.add_argument("--envoy", action="store_true", help="the whole way, with a real Envoy")
    given = parser.parse_args()
    if given.envoy:
        asyncio.run(run_with_envoy(given.exchanges, given.tokens))
    else:
        asyncio.run(run_here(given.exchanges, given.tokens, blame=given.blame))
