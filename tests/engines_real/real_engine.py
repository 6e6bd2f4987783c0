"""One real engine as a process of its own: started, awaited, and ended with all of its children.

Engines start children, which a killed server leaves behind: so each engine has a process group, which is ended whole.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from install import MLX, MODELS, VLLM

START_S = 300.0
STOP_S = 30.0
API_KEY = "sk-engine"
GRPC_SERVER = "vllm.entrypoints.launchers.grpc_server"
TETHER = Path(__file__).parents[2] / "extproc/cli/tether.py"

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every worker is pinned to the first core
    "SMG_VLLM_SERVICER_WARMUP": "off",  # over a minute before the first request
}


@dataclass(frozen=True)
class EngineKind:
    """What to start, and what can be asked of it. The protocol `openai` is vLLM's HTTP server."""

    name: str
    protocol: str  # as a configuration calls it
    model: str  # folder under MODELS
    context_tokens: int
    block_tokens: int = 0  # 0: keeps no prompts
    tokens_per_chunk: int = 1
    is_slow: bool = False  # runs only the tests of sense

    @property
    def folder(self) -> Path:
        """The model's."""
        return MODELS / self.model

    @property
    def talks_sense(self) -> bool:
        """A trained model."""
        return self.model == "smollm2-135m"

    def command(self, port: int) -> list[str]:
        """The server's command line."""
        common = ["--model", str(self.folder), "--host", "127.0.0.1", "--port", str(port)]
        if self.protocol == "openai":
            common += ["--api-key", API_KEY, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
        if self.protocol == "mlx":
            return [str(MLX / "bin/python"), "-m", "smg_grpc_servicer.mlx.server", *common]
        options = {
            "--max-model-len": self.context_tokens,
            "--max-num-seqs": 16,
            "--dtype": "bfloat16",
            "--served-model-name": self.model,
            "--num-gpu-blocks-override": 256,
            "--block-size": self.block_tokens,
            "--stream-interval": self.tokens_per_chunk,
        }
        flags = [text for name, value in options.items() for text in (name, str(value))]
        server = "vllm.entrypoints.openai.api_server" if self.protocol == "openai" else GRPC_SERVER
        return [str(VLLM / "bin/python"), "-m", server, *common, "--enforce-eager", *flags]


VLLM_SMALL = EngineKind("vllm", "vllm", "smollm2-135m", context_tokens=2048, block_tokens=32)
VLLM_TINY = EngineKind(
    "vllm-chunks-of-4", "vllm", "tiny-llama", context_tokens=2048, block_tokens=64, tokens_per_chunk=4
)
VLLM_HTTP = EngineKind("vllm-http", "openai", "smollm2-135m", context_tokens=2048, block_tokens=32)
MLX_TINY = EngineKind("mlx", "mlx", "tiny-llama", context_tokens=8192)
MLX_SMALL = EngineKind("mlx-talks", "mlx", "smollm2-135m", context_tokens=8192, is_slow=True)


@dataclass(frozen=True)
class RealEngine:
    """A running one."""

    kind: EngineKind
    address: str


@contextlib.contextmanager
def running_engine(kind: EngineKind, log_file: Path) -> Iterator[RealEngine]:
    """Ready when this is entered, gone with all its processes when it is left. A failed start shows its log's end."""
    port = free_port_for_long()
    tether = [sys.executable, "-I", "-S", str(TETHER), "exec", str(os.getpid()), "--signal", "TERM"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*tether, *kind.command(port)],
            env={**os.environ, **ENVIRONMENT},
            cwd=log_file.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_serving(process, port, log_file, over_http=kind.protocol == "openai")
        yield RealEngine(kind, f"127.0.0.1:{port}")
    finally:
        _end(process)


def free_port_for_long() -> int:
    """A port that stays free until an engine binds it, half a minute later: where other tests take none.

    Above theirs (free_ports.py), and below those that the kernel gives to outgoing connections.
    """
    ports = random.sample(range(30_100, 32_700), k=100)
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port among {ports}")


def _wait_until_serving(process: subprocess.Popen[bytes], port: int, log_file: Path, *, over_http: bool) -> None:
    end = time.monotonic() + START_S
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        def serving() -> bool:
            if over_http:
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)) as connection:
                    connection.request("GET", "/health")
                    return connection.getresponse().status == 200
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

        while True:
            with contextlib.suppress(grpc.RpcError, OSError):
                if serving():
                    return
            if process.poll() is not None or time.monotonic() > end:
                tail = log_file.read_text(errors="replace")[-12_000:]
                raise RuntimeError(f"the engine did not start (exit status {process.poll()}):\n{tail}")
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the group to end, and kill what is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
