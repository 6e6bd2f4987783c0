"""The printed configuration at work in real Envoys: routing by header, retries, control headers, files that change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from scripted_processor import (
    Decision,
    Engine,
    Processor,
    RunningEnvoy,
    free_port,
    run_envoy,
    serve_engine,
    serve_processor,
)

from extproc.config.address import HostPort
from extproc.config.schema import Config
from extproc.envoyconfig import names
from extproc.envoyconfig.files import build, write, write_endpoints

pytestmark = pytest.mark.envoy

CHAT = "/v1/chat/completions"
DEAD = "127.0.0.1:1"


@dataclass
class Stack:
    envoy: RunningEnvoy
    processor: Processor
    engines: list[Engine]
    decision: Decision


@contextlib.asynccontextmanager
async def stack(
    binary: Path, folder: Path, engines: int = 2, workers: list[str] | None = None, **sections: Any
) -> AsyncIterator[Stack]:
    """One pool `chat` with engines, whose workers are those engines unless a test says otherwise."""
    decision = Decision("chat", "")
    processor = Processor(lambda: decision)
    socket = f"unix:{folder}/p.sock"
    async with contextlib.AsyncExitStack() as running:
        served = [
            await running.enter_async_context(serve_engine(Engine(f"engine-{index}"))) for index in range(engines)
        ]
        config = make_config(folder, socket, workers or [engine.address for engine in served], **sections)
        await running.enter_async_context(serve_processor(processor, socket))
        envoy = await running.enter_async_context(run_envoy(binary, config, folder / "envoy.log"))
        yield Stack(envoy, processor, served, decision)


def make_config(folder: Path, socket: str, workers: list[str], **sections: Any) -> Config:
    envoy = sections.pop("envoy", {})
    return Config(
        listen={"http": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}", "processor": [socket]},
        envoy={"directory": str(folder / "xds"), **envoy},
        pools=[{"name": "chat", "models": ["tiny"], "workers": workers}],
        **sections,
    )


async def test_a_request_goes_to_the_worker_that_the_processor_names(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path) as running:
        for engine in (1, 0, 1):
            running.decision.destinations = running.engines[engine].address
            status, body = await running.envoy.request("POST", CHAT, b"{}")
            assert status == 200
            assert body[5:] == f"engine-{engine}".encode()
        seen = running.processor.exchanges[-1]
        assert seen.request_modes == (4, 4)
        assert seen.response_attributes["response.code_details"] == "via_upstream"
        assert seen.response_attributes["upstream.address"] == running.engines[1].address


async def test_a_request_without_a_body_goes_the_same_way(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path) as running:
        running.decision.destinations = running.engines[0].address
        status, body = await running.envoy.request("GET", "/v1/models")
        assert (status, body[5:]) == (200, b"engine-0")


@pytest.mark.parametrize("first", ["dead", grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_refused_request_is_tried_on_the_next_worker_of_the_list(
    envoy_binary: Path, tmp_path: Path, first: grpc.StatusCode | str
) -> None:
    async with stack(envoy_binary, tmp_path) as running:
        refusing, good = running.engines
        list_of_two = f"{refusing.address},{good.address}"
        if isinstance(first, grpc.StatusCode):
            refusing.refuse = first
        else:
            write_endpoints(
                running.envoy.config.envoy.directory,
                "chat",
                [HostPort("127.0.0.1", 1), HostPort("127.0.0.1", good.port)],
            )
            await running.envoy.until("/clusters", lambda answer: f"chat::{DEAD}::".encode() in answer)
            list_of_two = f"{DEAD},{good.address}"
        running.decision.destinations = list_of_two
        running.decision.body = (3 << 20).to_bytes(5, "big") + bytes(3 << 20)  # over Envoy's own limit of 1 MiB
        status, body = await running.envoy.request("POST", CHAT, b"{}")
        assert (status, body[5:]) == (200, b"engine-1")
        assert good.received_bytes == [3 << 20]
        assert running.processor.exchanges[-1].response_attributes["upstream.address"] == good.address


async def test_a_request_over_the_retry_limit_is_sent_once(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, envoy={"retry_body_bytes": "2MiB"}) as running:
        refusing, good = running.engines
        refusing.refuse = grpc.StatusCode.UNAVAILABLE
        running.decision.destinations = f"{refusing.address},{good.address}"
        running.decision.body = (3 << 20).to_bytes(5, "big") + bytes(3 << 20)
        status, _ = await running.envoy.request("POST", CHAT, b"{}")
        assert status == 200  # a gRPC answer, whose status is in grpc-status
        assert running.processor.exchanges[-1].response_headers["grpc-status"] == "14"
        assert good.received_bytes == []


async def test_without_retries_the_first_refusal_is_the_answer(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, envoy={"retries": 0}) as running:
        refusing, good = running.engines
        refusing.refuse = grpc.StatusCode.UNAVAILABLE
        running.decision.destinations = f"{refusing.address},{good.address}"
        await running.envoy.request("POST", CHAT, b"{}")
        assert running.processor.exchanges[-1].response_headers["grpc-status"] == "14"
        assert good.received_bytes == []


async def test_an_unknown_pool_is_a_503_that_the_processor_can_translate(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, engines=1) as running:
        running.decision.pool = "gone"
        running.decision.destinations = running.engines[0].address
        status, _ = await running.envoy.request("POST", CHAT, b"{}")
        assert status == 503
        seen = running.processor.exchanges[-1]
        assert seen.response_headers[":status"] == "503"
        assert seen.response_attributes["response.code_details"] == "cluster_not_found"


async def test_large_bodies_reach_the_processor_whole(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, engines=1) as running:
        running.decision.destinations = running.engines[0].address
        status, _ = await running.envoy.request("POST", CHAT, bytes(20 << 20))
        assert status == 200
        assert running.processor.exchanges[-1].request_bytes == 20 << 20


async def test_control_headers_of_clients_do_not_arrive(envoy_binary: Path, tmp_path: Path) -> None:
    sent = dict.fromkeys((*names.STRIPPED_HEADERS, names.DEBUG_HEADER), "1") | {
        "x-envoy-max-retries": "5",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-mine": "stays",
    }
    async with stack(envoy_binary, tmp_path, engines=1) as running:
        running.decision.destinations = running.engines[0].address
        status, _ = await running.envoy.request("POST", CHAT, b"{}", sent)
        assert status == 200
        seen = running.processor.exchanges[-1]
        arrived = {header for header in seen.request_headers if header.startswith(("x-gateway-", "x-envoy-"))}
        assert arrived == {"x-envoy-external-address"}
        assert seen.request_headers["x-mine"] == "stays"
        assert seen.request_attributes == {}
        assert "x-envoy-max-retries" not in running.engines[0].received_headers[0]


async def test_with_debug_clients_their_header_and_the_clients_address_arrive(
    envoy_binary: Path, tmp_path: Path
) -> None:
    async with stack(envoy_binary, tmp_path, engines=1, debug={"clients": ["127.0.0.0/8"]}) as running:
        running.decision.destinations = running.engines[0].address
        headers = {names.DEBUG_HEADER: "1", names.POOL_HEADER: "x", "x-forwarded-for": "10.9.8.7"}
        await running.envoy.request("POST", CHAT, b"{}", headers)
        seen = running.processor.exchanges[-1]
        assert seen.request_headers[names.DEBUG_HEADER] == "1"
        assert names.POOL_HEADER not in seen.request_headers
        assert seen.request_attributes[names.CLIENT_ADDRESS_ATTRIBUTE].startswith("127.0.0.1:")


async def test_workers_come_and_go_by_their_file(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, workers=[DEAD]) as running:
        directory = running.envoy.config.envoy.directory
        new = running.engines[1]
        assert write_endpoints(directory, "chat", [HostPort("127.0.0.1", new.port)])
        wanted = f"chat::{new.address}::".encode()
        await running.envoy.until("/clusters", lambda answer: wanted in answer and DEAD.encode() not in answer)
        running.decision.destinations = new.address
        status, body = await running.envoy.request("POST", CHAT, b"{}")
        assert (status, body[5:]) == (200, b"engine-1")


async def test_a_new_pool_is_served_without_a_new_listener(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path) as running:
        old = running.envoy.config
        data = old.model_dump(mode="json")
        data["pools"] = [{"name": "second", "models": ["other"], "workers": [running.engines[1].address]}]
        new = Config.model_validate(data)
        write(build(new), new.envoy.directory)
        await running.envoy.until(
            "/clusters", lambda answer: b"second::127.0.0.1" in answer and b"chat::127.0.0.1" not in answer
        )
        running.decision.pool, running.decision.destinations = "second", running.engines[1].address
        status, body = await running.envoy.request("POST", CHAT, b"{}")
        assert (status, body[5:]) == (200, b"engine-1")


async def test_a_processor_that_is_gone_is_a_503_at_once_and_back_when_it_is(
    envoy_binary: Path, tmp_path: Path
) -> None:
    decision = Decision("chat", "")
    processor = Processor(lambda: decision)
    socket = f"unix:{tmp_path}/p.sock"
    async with serve_engine(Engine("engine-0")) as engine, contextlib.AsyncExitStack() as rest:
        decision.destinations = engine.address
        config = make_config(tmp_path, socket, [engine.address])
        async with serve_processor(processor, socket):
            envoy = await rest.enter_async_context(run_envoy(envoy_binary, config, tmp_path / "envoy.log"))
            assert (await envoy.request("POST", CHAT, b"{}"))[0] == 200
        await envoy.until("/clusters", lambda answer: b"/failed_active_hc" in answer)
        assert (await envoy.request("POST", CHAT, b"{}"))[0] == 503
        async with serve_processor(processor, socket):
            # The health checks find it, and then Envoy's workers hear of it.
            await envoy.until_status(200, "POST", CHAT, b"{}")


async def test_the_access_log_names_the_request_as_the_client_sent_it(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, engines=1, envoy={"access_log": True}) as running:
        running.decision.destinations = running.engines[0].address
        await running.envoy.request("POST", CHAT, b"{}")
    log = (tmp_path / "envoy.log").read_text()
    line = next(line for line in log.splitlines() if line.startswith("{"))
    assert f'"path":"{CHAT}"' in line
    assert f'"worker":"{running.engines[0].address}"' in line
    assert '"pool":"chat"' in line


async def test_nothing_that_we_print_is_deprecated(envoy_binary: Path, tmp_path: Path) -> None:
    async with stack(envoy_binary, tmp_path, envoy={"access_log": True}, debug={"clients": ["::1/128"]}):
        pass
    complaints = [
        line
        for line in (tmp_path / "envoy.log").read_text().splitlines()
        if ("[warning]" in line or "[error]" in line) and "ENVOY_SIGTERM" not in line
    ]
    assert complaints == []
