"""Streams that fall silent in the middle show signs of life that the SDKs overlook, in every dialect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import pytest
from google import genai
from openai_engine import OpenAIEngine, Said, event, openai_engines
from stack import Stack, StartStack

from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import Answers, EngineSpec

pytestmark = pytest.mark.envoy

ASKED: list[Any] = [{"role": "user", "content": "Hello"}]
GEMINI: dict[str, Any] = {"contents": [{"parts": [{"text": "Hello"}]}]}
COMMENT = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def slow(**spec: Any) -> list[EngineSpec]:
    script: dict[str, Any] = {"answers": Answers.SCRIPT, "texts": ("one two three",)}
    return [EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.4, **script, **spec)]


async def until(stack: Stack, path: str, body: dict[str, Any], end: bytes) -> bytes:
    """What comes of a stream until it ends so."""
    came = b""
    async with stack.http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            came += piece
            if came.endswith(end):
                break
    return came


@pytest.mark.parametrize(
    ("path", "body", "sign"),
    [
        ("/v1/chat/completions", {"messages": ASKED}, COMMENT),
        ("/v1/completions", {"prompt": "Hello"}, COMMENT),
        ("/v1/responses", {"input": "Hello"}, COMMENT),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 50}, PING),
        ("/v1beta/models/simulated:streamGenerateContent?alt=sse", GEMINI, b"\n\n"),
        ("/v1beta/models/simulated:streamGenerateContent", GEMINI, b"\n"),
    ],
)
async def test_an_engine_that_hangs_is_waited_for_with_signs_of_life(
    start_stack: StartStack, path: str, body: dict[str, Any], sign: bytes
) -> None:
    faults = Faults(break_kind=Break.STALL, break_after=2)
    async with start_stack(specs=slow(faults=faults), settings={"limits": {"keep_alive_s": 0.1}}) as stack:
        if body is not GEMINI:
            body = {"model": "simulated", "stream": True, **body}
        event_end = b"" if path.endswith(":streamGenerateContent") else b"\n\n"
        came = await asyncio.wait_for(until(stack, path, body, event_end + 3 * sign), 20.0)
        assert came.startswith((b"data: ", b"event: ", b"["))
        await stack.nothing_left()


async def test_lines_of_json_are_kept_alive_by_one_that_says_nothing(start_stack: StartStack) -> None:
    faults = Faults(break_kind=Break.STALL, break_after=2)
    async with start_stack(specs=slow(faults=faults), settings={"limits": {"keep_alive_s": 0.1}}) as stack:
        lines: list[Any] = []
        body = {"model": "simulated", "messages": ASKED}
        async with asyncio.timeout(20.0), stack.http.stream("POST", "/api/chat", json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(json.loads(line))
                if [each["message"]["content"] for each in lines[-3:]] == ["", "", ""]:
                    break
        assert all(line["done"] is False for line in lines)
        assert lines[-1]["message"]["role"] == "assistant"
        await stack.nothing_left()


async def test_the_sdks_read_on_over_signs_of_life(start_stack: StartStack) -> None:
    async with start_stack(specs=slow(), settings={"limits": {"keep_alive_s": 0.1}}) as stack:

        async def chat() -> str:
            stream = await stack.client().chat.completions.create(model="simulated", messages=ASKED, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def messages() -> str:
            base_url = stack.base_url.removesuffix("/v1")
            async with (
                anthropic.AsyncAnthropic(base_url=base_url, api_key="key", max_retries=0) as client,
                client.messages.stream(model="simulated", messages=ASKED, max_tokens=50) as stream,
            ):
                return await stream.get_final_text()

        async def generate() -> str:
            options = genai.types.HttpOptions(base_url=stack.base_url.removesuffix("/v1"))
            client = genai.Client(api_key="key", http_options=options)
            stream = await client.aio.models.generate_content_stream(model="simulated", contents="Hello")
            return "".join([piece.text or "" async for piece in stream])

        assert await asyncio.gather(chat(), messages(), generate()) == ["one two three"] * 3


async def test_a_stream_that_goes_on_shows_none(start_stack: StartStack) -> None:
    async with start_stack(settings={"limits": {"keep_alive_s": 5}}) as stack:
        body = {"model": "simulated", "messages": ASKED, "stream": True}
        answer = await stack.http.post("/v1/chat/completions", json=body)
        assert COMMENT not in answer.content
        assert answer.content.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("path", "body", "sign"), [("/v1/chat/completions", {}, COMMENT), ("/v1/messages", {"max_tokens": 50}, PING)]
)
async def test_engines_over_http_that_hang_are_waited_for_likewise(
    start_stack: StartStack, path: str, body: dict[str, Any], sign: bytes
) -> None:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "simulated"}
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None} for text in ("one", " two")]
    events = [event({**head, "choices": [choice]}) for choice in choices]
    # The second event comes in halves, between which the engine hangs.
    hangs = asyncio.Event()
    engine = OpenAIEngine(Said([events[0], events[1][:30], events[1][30:]], waits=hangs))
    pool = {"engine": "openai", "workers": [engine.address]}
    settings = {"limits": {"keep_alive_s": 0.1}}
    async with openai_engines(engine), start_stack(specs=[], pool=pool, settings=settings) as stack:
        body = {"model": "simulated", "messages": ASKED, "stream": True, **body}
        came = await asyncio.wait_for(until(stack, path, body, b"\n\n" + 3 * sign), 20.0)
        assert b"one" in came
        hangs.set()
