"""Engines, clients and deadlines that end at any moment: the other side gets a clear end and nothing is left."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from stack import INSTANT, Stack, StartStack, eventually

from extproc.routing.worker import WorkerState
from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import Answers, EngineSpec

pytestmark = pytest.mark.envoy

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a long story."}]
LONG: dict[str, Any] = {
    "prefill_tokens_per_s": 0.0,
    "decode_step_s": 0.02,
    "answers": Answers.NATURAL,
    "answer_tokens": 2000,
}
"""An engine that is busy for 40 s with one answer."""


def body(*, stream: bool = True, **fields: Any) -> dict[str, Any]:
    return {"model": "simulated", "messages": MESSAGES, "stream": stream, **fields}


async def sse(response: httpx2.Response) -> list[Any]:
    """All data of a stream; the text `[DONE]` as itself."""
    return [
        line[6:] if line == "data: [DONE]" else json.loads(line[6:])
        async for line in response.aiter_lines()
        if line.startswith("data: ")
    ]


async def first_chunks(stack: Stack, count: int = 3) -> tuple[openai.AsyncStream[Any], list[Any]]:
    stream = await stack.client().chat.completions.create(**body())
    chunks = []
    async for chunk in stream:
        chunks.append(chunk)
        if len(chunks) == count:
            break
    return stream, chunks


async def test_a_client_that_goes_frees_the_engine_within_a_second(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**LONG)]) as stack:
        stream, chunks = await first_chunks(stack)
        assert len(chunks) == 3
        assert stack.running() == 1
        await stream.close()
        await stack.nothing_left(within_s=1.0)


@pytest.mark.parametrize("decode_step_s", [0.02, 5.0])
async def test_a_client_that_goes_before_the_answer_frees_the_engine(
    start_stack: StartStack, decode_step_s: float
) -> None:
    spec = EngineSpec(**{**LONG, "decode_step_s": decode_step_s})
    async with start_stack(specs=[spec]) as stack:
        request = asyncio.create_task(stack.http.post("/v1/chat/completions", json=body(stream=False)))
        await eventually(lambda: stack.running() == 1, "the engine at work")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await stack.nothing_left(within_s=1.0)


async def test_a_storm_of_clients_that_go_leaves_nothing(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**LONG), EngineSpec(**LONG)]) as stack:

        async def one(number: int) -> None:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{stack.http_port}") as http:
                try:
                    async with asyncio.timeout(0.01 * (number % 30)):
                        await http.post("/v1/chat/completions", json=body(stream=bool(number % 2)))
                except (TimeoutError, httpx2.TransportError):
                    return

        await asyncio.gather(*(one(number) for number in range(150)))
        await stack.nothing_left()

        async def served() -> bool:
            answer = await stack.http.post("/v1/chat/completions", json=body(stream=False, max_tokens=1))
            return answer.status_code == 200

        # Health checks may have failed meanwhile: the engines share this process, which was busy.
        await eventually(served, "an answer after the storm")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_ends_the_engines_work(start_stack: StartStack, stream: bool) -> None:
    """The engine is told the stop string too, but this one does not obey."""
    text = "One two three. " + "Four five six. " * 400
    spec = EngineSpec(
        prefill_tokens_per_s=0.0,
        decode_step_s=0.01,
        answers=Answers.SCRIPT,
        texts=(text,),
        faults=Faults(ignore_stop_strings=True),
    )
    if not stream:
        # Without a stream the engine says nothing before its end, so a short answer shows the cut.
        spec = EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=(text,), faults=Faults(ignore_stop_strings=True))
    async with start_stack(specs=[spec]) as stack:
        client = stack.client()
        if stream:
            chunks = [c async for c in await client.chat.completions.create(**body(stop=["e. Four", "zzz"]))]
            got = "".join(c.choices[0].delta.content or "" for c in chunks)
            finish = [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason]
        else:
            answer = await client.chat.completions.create(**body(stream=False, stop=["e. Four", "zzz"]))
            got, finish = answer.choices[0].message.content or "", [answer.choices[0].finish_reason]
        assert got == "One two thre"
        assert finish == ["stop"]
        await stack.nothing_left(within_s=1.0)


async def test_a_stop_string_that_the_engine_obeys_is_cut_too(start_stack: StartStack) -> None:
    spec = EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=("One two three. Four five six.",))
    async with start_stack(specs=[spec]) as stack:
        client = stack.client()
        for stream in (True, False):
            if stream:
                chunks = [c async for c in await client.chat.completions.create(**body(stop="e. Fo"))]
                got = "".join(c.choices[0].delta.content or "" for c in chunks)
            else:
                answer = await client.chat.completions.create(**body(stream=False, stop="e. Fo"))
                got = answer.choices[0].message.content or ""
            assert got == "One two thre"
        await stack.nothing_left()


async def test_a_deadline_in_an_answer_ends_it_with_an_error_and_the_engines_work(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**LONG)], settings={"limits": {"deadline_s": 1.0}}) as stack:
        with pytest.raises(openai.APIError, match="longer than this gateway allows"):
            async for _ in await stack.client().chat.completions.create(**body()):
                pass
        await stack.nothing_left(within_s=1.0)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline_before_the_answer_is_a_504(start_stack: StartStack, stream: bool) -> None:
    spec = EngineSpec(**{**LONG, "prefill_tokens_per_s": 0.5})
    async with start_stack(specs=[spec], settings={"limits": {"deadline_s": 1.0}}) as stack:
        answer = await stack.http.post("/v1/chat/completions", json=body(stream=stream))
        assert answer.status_code == 504
        assert answer.json()["error"]["type"] == "server_error"
        await stack.nothing_left(within_s=1.0)


async def test_a_deadline_before_the_body_is_complete_is_a_504(start_stack: StartStack) -> None:
    async with start_stack(settings={"limits": {"deadline_s": 0.5}}) as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.http_port)
        writer.write(
            b'POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n9\r\n{"model":\r\n'
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10.0)
        assert head.startswith(b"HTTP/1.1 504 ")
        writer.close()
        await stack.nothing_left()


@pytest.mark.parametrize("stream", [True, False])
async def test_engines_that_are_gone_are_a_503_that_may_be_retried(start_stack: StartStack, stream: bool) -> None:
    async with start_stack() as stack:
        for engine in stack.engines:
            await engine.kill()
        answer = await stack.http.post("/v1/chat/completions", json=body(stream=stream))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "server_error"
        await eventually(
            lambda: all(w.state is WorkerState.UNHEALTHY for w in stack.processor.fleet.workers),  # type: ignore[union-attr]
            "the dead engines noticed",
        )
        answer = await stack.http.post("/v1/chat/completions", json=body(stream=stream))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker_available")
        await stack.nothing_left()


async def test_a_dead_engine_is_left_for_the_next_without_the_client_noticing(start_stack: StartStack) -> None:
    specs = [EngineSpec(**INSTANT) for _ in range(2)]
    async with start_stack(specs=specs, settings={"health": {"interval_s": 600.0}}) as stack:
        await stack.engines[0].kill()
        client = stack.client()
        for _ in range(6):
            answer = await client.chat.completions.create(**body(stream=False))
            assert answer.choices[0].message.content == MESSAGES[0]["content"]
        await stack.nothing_left()


@pytest.mark.parametrize("kind", [Break.ERROR, Break.GARBAGE])
async def test_an_engine_that_breaks_in_an_answer_ends_it_with_an_error_and_without_done(
    start_stack: StartStack, kind: Break
) -> None:
    spec = EngineSpec(**{**LONG, "decode_step_s": 0.005}, faults=Faults(break_kind=kind, break_after=5))
    async with start_stack(specs=[spec]) as stack:
        async with stack.http.stream("POST", "/v1/chat/completions", json=body()) as response:
            assert response.status_code == 200
            data = await sse(response)
        assert "[DONE]" not in data
        assert data[-1]["error"]["type"] == "server_error"
        assert [list(chunk) for chunk in data].count(["error"]) == 1
        assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in data[:-1]) >= 1
        await stack.nothing_left()


async def collect(stack: Stack, text: list[str]) -> None:
    async with stack.http.stream("POST", "/v1/chat/completions", json=body()) as response:
        assert response.status_code == 200
        async for piece in response.aiter_text():
            text.append(piece)


@pytest.mark.parametrize("kind", [Break.DIE, Break.RESET])
async def test_an_engine_whose_connection_breaks_in_an_answer_breaks_the_clients_too(
    start_stack: StartStack, kind: Break
) -> None:
    """Envoy resets what has begun without asking the processor, so the client sees a broken transfer: no clean end."""
    spec = EngineSpec(**{**LONG, "decode_step_s": 0.05}, faults=Faults(break_kind=kind, break_after=5))
    async with start_stack(specs=[spec]) as stack:
        text: list[str] = []
        with pytest.raises(httpx2.RemoteProtocolError):
            await collect(stack, text)
        assert "data: {" in "".join(text)
        assert "[DONE]" not in "".join(text)
        await stack.nothing_left()


@pytest.mark.parametrize("kind", [Break.DIE, Break.RESET, Break.ERROR, Break.GARBAGE])
async def test_an_engine_that_breaks_before_its_answer_is_an_error_status(start_stack: StartStack, kind: Break) -> None:
    spec = EngineSpec(**INSTANT, faults=Faults(break_kind=kind, break_after=0))
    async with start_stack(specs=[spec]) as stack:
        for stream in (True, False):
            if kind is Break.DIE and not stream:
                continue
            answer = await stack.http.post("/v1/chat/completions", json=body(stream=stream))
            assert answer.status_code in (500, 502, 503), answer.text
            assert answer.json()["error"]["type"] == "server_error"
        await stack.nothing_left()


@pytest.mark.parametrize(
    ("status", "http_status", "kind", "retry_after"),
    [
        (3, 400, "invalid_request_error", False),
        (8, 429, "rate_limit_error", True),
        (13, 500, "server_error", False),
        (14, 503, "server_error", True),
        (4, 504, "server_error", False),
    ],
)
async def test_an_engines_status_becomes_the_clients(
    start_stack: StartStack, status: int, http_status: int, kind: str, retry_after: bool
) -> None:
    faults = Faults(refuse_status=status, details="no, thank you")
    async with start_stack(specs=[EngineSpec(**INSTANT, faults=faults)]) as stack:
        for stream in (True, False):
            answer = await stack.http.post("/v1/chat/completions", json=body(stream=stream))
            assert answer.status_code == http_status
            assert answer.json()["error"]["type"] == kind
            assert answer.json()["error"]["message"] == "no, thank you"
            assert ("retry-after" in answer.headers) == retry_after
        await stack.nothing_left()


@pytest.mark.parametrize("status", [8, 14])
async def test_an_engine_that_is_full_or_away_is_left_for_the_next(start_stack: StartStack, status: int) -> None:
    specs = [EngineSpec(**INSTANT, faults=Faults(refuse_status=status)), EngineSpec(**INSTANT)]
    async with start_stack(specs=specs) as stack:
        for _ in range(4):
            answer = await stack.http.post(
                "/v1/chat/completions", json=body(stream=False), headers={"x-gateway-debug": "1"}
            )
            assert answer.status_code == 200
        assert len(stack.engines[1].requests) == 4
        assert len(stack.engines[0].requests) == 2
        await stack.nothing_left()


async def test_a_client_cannot_choose_the_worker_or_the_pool(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        target = stack.engines[0].address
        for _ in range(4):
            answer = await stack.http.post(
                "/v1/chat/completions",
                json=body(stream=False),
                headers={
                    "x-gateway-destination-endpoint": target,
                    "x-gateway-pool": "processor",
                    "x-gateway-destination-endpoint-subset": target,
                },
            )
            assert answer.status_code == 200
        assert [len(engine.requests) for engine in stack.engines] == [2, 2]
        # And a request that the processor answers itself goes nowhere either.
        answer = await stack.http.get("/v1/nothing", headers={"x-gateway-pool": "main"})
        assert answer.status_code == 404


async def test_an_engine_that_stalls_is_ended_by_the_deadline(start_stack: StartStack) -> None:
    spec = EngineSpec(**INSTANT, faults=Faults(break_kind=Break.STALL, break_after=1))
    async with start_stack(specs=[spec], settings={"limits": {"deadline_s": 1.0}}) as stack:
        async with stack.http.stream("POST", "/v1/chat/completions", json=body()) as response:
            data = await sse(response)
        assert data[-1]["error"]["message"] == "The answer took longer than this gateway allows."
        await stack.nothing_left(within_s=1.0)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "simulated"', b"[" * 100_000, b'{"messages": "\\ud800"}'],
)
async def test_garbage_is_refused_in_the_clients_dialect(start_stack: StartStack, garbage: bytes) -> None:
    async with start_stack() as stack:
        answer = await stack.http.post("/v1/chat/completions", content=garbage)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        await stack.nothing_left()
