"""Peers that do what none should: engines that break their protocol, clients that use rare parts of HTTP."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from http2_peers import GRPC, OK, Script, ScriptedEngine, chunk, complete, post_with_trailers
from stack import INSTANT, Stack, StartStack, eventually

from extproc.simulator.spec import OWN_MODEL, EngineSpec
from extproc.transport.framing import Deframer

pytestmark = pytest.mark.envoy

CHAT = "/v1/chat/completions"


def body(*, stream: bool = False, content: str = "Hi!") -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": content}], "stream": stream}


@contextlib.asynccontextmanager
async def scripted(
    start_stack: StartStack, script: Script, **settings: Any
) -> AsyncIterator[tuple[Stack, ScriptedEngine]]:
    engine = ScriptedEngine(script)
    await engine.start()
    try:
        pool = {"workers": [engine.address], "tokenizer": str(OWN_MODEL)}
        async with start_stack(specs=[], pool=pool, settings=settings) as stack:
            yield stack, engine
    finally:
        await engine.stop()


@pytest.mark.parametrize("size", [10, 70_000, 600_000])
async def test_a_request_with_trailers_reaches_the_engine_once(start_stack: StartStack, size: int) -> None:
    spec = EngineSpec(**INSTANT, context_tokens=1_000_000)
    async with start_stack(specs=[spec]) as stack:
        content = "many words " * (size // 11 + 1)
        payload = json.dumps({**body(content=content), "max_tokens": 2}).encode()
        answer = await post_with_trailers(stack.http_port, CHAT, payload, [(b"x-checksum", b"1")])
        assert answer.status == 200
        assert not [name for name in answer.headers if b"grpc" in name]  # its own trailers are among them
        usage = json.loads(answer.body)["usage"]
        (request,) = stack.engines[0].requests
        assert len(request.tokenized.input_ids) == usage["prompt_tokens"]
        await stack.nothing_left()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_sends_headers_and_nothing_more_is_ended_by_the_deadline(
    start_stack: StartStack, stream: bool
) -> None:
    async with scripted(start_stack, Script(), limits={"deadline_s": 0.5}) as (stack, engine):
        answer = await stack.http.post(CHAT, json=body(stream=stream))
        assert answer.status_code == 504
        assert answer.json()["error"]["type"] == "server_error"
        await eventually(lambda: engine.open_streams == 0, "the engine's stream reset")
        await stack.nothing_left()


@pytest.mark.parametrize(("status", "http_status"), [(b"3", 400), (b"13", 500)])
async def test_an_engines_endless_message_is_cut(start_stack: StartStack, status: bytes, http_status: int) -> None:
    trailers = [(b"grpc-status", status), (b"grpc-message", b"%01" * 11_000)]
    async with scripted(start_stack, Script(trailers=trailers)) as (stack, _):
        answer = await stack.http.post(CHAT, json=body())
        assert answer.status_code == http_status
        assert 1000 < len(answer.json()["error"]["message"]) < 5000
        await stack.nothing_left()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("index", [1, 1000, 2**32 - 1])
async def test_a_choice_that_nobody_asked_for_is_the_engines_mistake(
    start_stack: StartStack, stream: bool, index: int
) -> None:
    script = Script(data=[chunk(index=index), complete(index=index)], trailers=OK)
    async with scripted(start_stack, script) as (stack, _):
        answer = await stack.http.post(CHAT, json=body(stream=stream))
        assert answer.status_code == 502
        assert answer.json()["error"]["message"] == "The engine sent an answer that cannot be read."
        await stack.nothing_left()


async def test_headers_of_the_engine_do_not_reach_the_client(start_stack: StartStack) -> None:
    headers = [*GRPC, (b"content-encoding", b"gzip"), (b"location", b"http://x"), (b"x-inside", b"1")]
    async with scripted(start_stack, Script(headers, [complete()], OK)) as (stack, _):
        answer = await stack.http.post(CHAT, json=body())
        assert answer.status_code == 200
        assert answer.json()["object"] == "chat.completion"
        assert not {"content-encoding", "location", "x-inside"} & set(answer.headers)


@pytest.mark.parametrize(
    ("status", "http_status"),
    [(b"200", 502), (b"204", 502), (b"302", 502), (b"401", 502), (b"404", 502), (b"503", 503)],
)
async def test_what_speaks_no_grpc_is_not_the_clients_mistake(
    start_stack: StartStack, status: bytes, http_status: int
) -> None:
    headers = [(b":status", status), (b"content-type", b"text/html"), (b"retry-after", b"9" * 400)]
    async with scripted(start_stack, Script(headers, trailers=())) as (stack, _):
        answer = await stack.http.post(CHAT, json=body())
        assert answer.status_code == http_status
        assert answer.json()["error"]["type"] == "server_error"
        await stack.nothing_left()


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_resets_inside_its_first_message_is_told_in_openais_form(
    start_stack: StartStack, stream: bool
) -> None:
    async with scripted(start_stack, Script(data=[chunk()[:7]], reset=True), envoy={"retries": 0}) as (stack, _):
        answer = await stack.http.post(CHAT, json=body(stream=stream))
        assert answer.status_code in (502, 503)
        assert "retry-after" in answer.headers or answer.status_code == 502
        assert answer.json()["error"]["type"] == "server_error"
        await stack.nothing_left()


async def test_clients_secrets_and_grpc_headers_do_not_reach_the_engine(start_stack: StartStack) -> None:
    async with scripted(start_stack, Script(data=[complete()], trailers=OK)) as (stack, engine):
        answer = await stack.http.post(
            CHAT,
            json=body(),
            headers={
                "authorization": "Bearer secret",
                "cookie": "a=b",
                "x-api-key": "secret",
                "grpc-timeout": "1n",
                "grpc-encoding": "gzip",
                "grpc-accept-encoding": "gzip",
                "content-encoding": "Identity",
            },
        )
        assert answer.status_code == 200
        ((head, wire),) = engine.requests
        secret = {b"authorization", b"cookie", b"x-api-key", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"}
        assert not secret & set(head)
        assert head[b"content-type"] == b"application/grpc"
        assert len(Deframer(1 << 20).feed(wire)) == 1


async def test_a_debug_answer_with_many_losses_still_has_headers_that_fit(start_stack: StartStack) -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}} for _ in range(2000)]
    async with start_stack() as stack:
        request = {"model": "simulated", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}
        answer: httpx2.Response = await stack.http.post(CHAT, json=request, headers={"x-gateway-debug": "1"})
        assert answer.status_code == 200
        assert "cache_control" in answer.headers["x-gateway-losses"]
