"""Engines that speak OpenAI's dialect over HTTP, behind a real Envoy: clients' own bytes, and other dialects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai_engine import DONE, OpenAIEngine, Said, event, openai_engines
from stack import Stack, StartStack, eventually

from extproc.simulator.spec import OWN_MODEL

pytestmark = pytest.mark.envoy

TLS = Path(__file__).parents[1] / "transport" / "data"
PATH = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "simulated", "messages": [{"role": "user", "content": "Hello."}]}
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "simulated"}
USAGE_EVENT = event({**HEAD, "choices": [], "usage": USAGE})


def said(delta: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
    return event({**HEAD, "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]})


def calls(*pieces: dict[str, Any]) -> bytes:
    return said({"tool_calls": list(pieces)})


OPENER = said({"role": "assistant", "content": ""})
TEXT = OPENER + said({"content": "Grüß"}) + said({"content": " Gott"}) + said(finish="stop")
TOOLS = (
    OPENER
    + said({"reasoning_content": "The weather"})
    + said({"reasoning_content": " …"})
    + said({"content": "Let me look."})
    + calls({"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}})
    + calls({"index": 1, "id": "call_b", "type": "function", "function": {"name": "now", "arguments": "{"}})
    + calls({"index": 0, "function": {"arguments": '{"city":'}})
    + calls({"index": 1, "function": {"arguments": "}"}})
    + calls({"index": 0, "function": {"arguments": '"Zürich"}'}})
    + said(finish="tool_calls")
)
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "simulated",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Grüß Gott"}, "finish_reason": "stop"}],
    "usage": USAGE,
}


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def streamed(stream: bytes, size: int = 40, **how: Any) -> Said:
    return Said(pieces(stream, size), **how)


def answered(value: Any, status: int = 200, **headers: str) -> Said:
    body = json.dumps(value, ensure_ascii=False).encode()
    return Said(pieces(body, 50), status, "application/json", {k.replace("_", "-"): v for k, v in headers.items()})


Start = Any


@contextlib.asynccontextmanager
async def gateway(start_stack: StartStack, *engines: OpenAIEngine, **pool: Any) -> AsyncIterator[Stack]:
    tls = None
    if pool.get("http", {}).get("tls"):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(TLS / "first.pem", TLS / "first.key")
        tls.set_alpn_protocols(["http/1.1"])
    settings = {"engine": "openai", "workers": [engine.address for engine in engines], **pool}
    async with openai_engines(*engines, tls=tls), start_stack(specs=[], pool=settings) as stack:
        yield stack


@contextlib.asynccontextmanager
async def claude(stack: Stack, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{stack.http_port}",
        api_key="client-key",
        _strict_response_validation=True,
        **{"max_retries": 0, **options},
    ) as client:
        yield client


async def raw(stack: Stack, body: bytes | dict[str, Any], path: str = PATH) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await stack.http.post(
        path, content=content, headers={"content-type": "application/json", "authorization": "Bearer client-key"}
    )


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_stream_of_the_engines_own_dialect_is_echoed_byte_for_byte(start_stack: StartStack, size: int) -> None:
    answer = b": hello\n\n" + TOOLS + USAGE_EVENT + DONE
    engine = OpenAIEngine(streamed(answer, size))
    body = (
        b'{ "messages":[{"role":"user","content":[{"type":"text","text":"\\u00fc"},'
        b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],\n'
        b' "unheard_of": [1, {"of" : 2.50}], "stream": true,'
        b' "stream_options":{"include_usage":true},"model":"simulated"}'
    )
    async with gateway(start_stack, engine) as stack:
        got = await raw(stack, body)
        assert got.content == answer
        assert got.headers["content-type"].startswith("text/event-stream")
        (asked,) = engine.asked
        assert asked.body == body
        assert asked.path == PATH
        assert "authorization" not in asked.headers
        await stack.nothing_left()
        metrics = (await stack.processor.metrics()).decode()
        assert load_of(metrics) == (11.0, 7.0)


def load_of(metrics: str) -> tuple[float, float]:
    """Input and output tokens that were counted."""

    def tokens(kind: str) -> float:
        lines = [line for line in metrics.splitlines() if line.startswith("gen_ai_client_token_usage_sum{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if f'gen_ai_token_type="{kind}"' in line)

    return tokens("input"), tokens("output")


async def test_usage_is_asked_for_and_hidden_and_the_name_is_the_clients(start_stack: StartStack) -> None:
    named = (TEXT + USAGE_EVENT + DONE).replace(b'"simulated"', b'"org/Real"')
    engine = OpenAIEngine(streamed(named), models=["org/Real"])
    models = [{"name": "simulated", "aliases": ["alias"], "engine_name": "org/Real"}]
    async with gateway(start_stack, engine, models=models) as stack:
        got = await raw(stack, b'{"model":"alias","stream":true,"messages":[]}')
        assert got.content == (TEXT + DONE).replace(b'"simulated"', b'"alias"')
        assert engine.asked[0].body == (
            b'{"model":"org/Real","stream":true,"messages":[],"stream_options":{"include_usage":true}}'
        )
        assert load_of((await stack.processor.metrics()).decode()) == (11.0, 7.0)


async def test_the_only_model_of_the_workers_is_found(start_stack: StartStack) -> None:
    engine = OpenAIEngine(answered(WHOLE | {"model": "found"}), models=["found"])
    async with gateway(start_stack, engine) as stack:
        got = await raw(stack, HELLO)
        assert got.json()["model"] == "simulated"
        assert engine.asked[0].json["model"] == "found"
        listed = (await stack.http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["simulated"]


async def test_completions_and_embeddings_go_through_as_they_are(start_stack: StartStack) -> None:
    text = event({"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": "x"}]})
    vectors = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "simulated",
    }
    engine = OpenAIEngine(
        streamed(text + USAGE_EVENT + DONE), answered(vectors | {"usage": {"prompt_tokens": 3, "total_tokens": 3}})
    )
    async with gateway(start_stack, engine) as stack:
        got = await raw(stack, {"model": "simulated", "prompt": ["a", "b"], "stream": True}, "/v1/completions")
        assert got.content == text + DONE
        embedding = await stack.client().embeddings.create(model="simulated", input="a", encoding_format="float")
        assert embedding.data[0].embedding == [0.5]
        assert [asked.path for asked in engine.asked] == ["/v1/completions", "/v1/embeddings"]
        await stack.nothing_left()


async def test_openais_sdk_sees_the_engines_answers(start_stack: StartStack) -> None:
    engine = OpenAIEngine(streamed(TOOLS + USAGE_EVENT + DONE), answered(WHOLE))
    async with gateway(start_stack, engine) as stack:
        client = stack.client()
        async with client.chat.completions.stream(**HELLO) as stream:
            completion = await stream.get_final_completion()
        message = completion.choices[0].message
        assert message.content == "Let me look."
        assert message.tool_calls is not None
        assert [call.function.arguments for call in message.tool_calls] == ['{"city":"Zürich"}', "{}"]
        whole = await client.chat.completions.create(**HELLO)
        assert whole.choices[0].message.content == "Grüß Gott"
        assert whole.usage is not None
        assert whole.usage.total_tokens == 18


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("size", [3, 100_000])
async def test_a_messages_client_reads_what_the_engine_says(start_stack: StartStack, streams: bool, size: int) -> None:
    message = {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning": "The weather …",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Zürich"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }
    whole = WHOLE | {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    answer = streamed(TOOLS + USAGE_EVENT + DONE, size) if streams else answered(whole)
    engine = OpenAIEngine(answer, streamed(TEXT + DONE) if streams else answered(WHOLE))
    async with gateway(start_stack, engine) as stack, claude(stack) as client:
        request: dict[str, Any] = {
            "model": "simulated",
            "max_tokens": 100,
            "tools": [WEATHER, NOW],
            "system": "Be kind.",
        }

        async def ask(messages: list[Any]) -> anthropic.types.Message:
            if not streams:
                return await client.messages.create(messages=messages, **request)
            async with client.messages.stream(messages=messages, **request) as stream:
                return await stream.get_final_message()

        first = await ask([{"role": "user", "content": "What is the weather?"}])
        assert first.stop_reason == "tool_use"
        kinds = [block.type for block in first.content]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        weather = first.content[2]
        assert weather.type == "tool_use"
        assert (weather.id, weather.name, weather.input) == ("call_a", "weather", {"city": "Zürich"})
        assert (first.usage.input_tokens, first.usage.cache_read_input_tokens, first.usage.output_tokens) == (7, 4, 7)
        asked = engine.asked[0].json
        assert asked["messages"] == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "What is the weather?"},
        ]
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["weather", "now"]
        assert asked["max_tokens"] == 100
        assert asked.get("stream_options") == ({"include_usage": True} if streams else None)

        results = [
            {"type": "tool_result", "tool_use_id": "call_a", "content": "Sunny."},
            {"type": "tool_result", "tool_use_id": "call_b", "content": "broken", "is_error": True},
            {"type": "text", "text": "So?"},
        ]
        history = [
            {"role": "user", "content": "What is the weather?"},
            {"role": "assistant", "content": [block.model_dump() for block in first.content]},
            {"role": "user", "content": results},
        ]
        second = await ask(history)
        assert second.stop_reason == "end_turn"
        spoken = engine.asked[1].json["messages"][2:]
        assert [each["role"] for each in spoken] == ["assistant", "tool", "tool", "user"]
        assert spoken[0]["reasoning_content"] == "The weather …"
        assert [call["id"] for call in spoken[0]["tool_calls"]] == ["call_a", "call_b"]
        assert [each["content"] for each in spoken[1:]] == ["Sunny.", "Error: broken", "So?"]


async def test_a_responses_client_reads_what_the_engine_says(start_stack: StartStack) -> None:
    engine = OpenAIEngine(streamed(TEXT + USAGE_EVENT + DONE))
    async with gateway(start_stack, engine) as stack:
        async with stack.client().responses.stream(model="simulated", input="Hello.") as stream:
            response = await stream.get_final_response()
        assert response.output_text == "Grüß Gott"
        assert response.usage is not None
        assert response.usage.input_tokens == 11


async def test_a_gemini_client_reads_what_the_engine_says(start_stack: StartStack) -> None:
    engine = OpenAIEngine(streamed(TOOLS + USAGE_EVENT + DONE))
    asked = {
        "contents": [{"role": "user", "parts": [{"text": "What is the weather?"}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    }
    async with gateway(start_stack, engine) as stack:
        got = await raw(stack, asked, "/v1beta/models/simulated:streamGenerateContent?alt=sse")
        answers = [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: ")]
        parts = [part for each in answers for part in each["candidates"][0].get("content", {}).get("parts", [])]
        assert "".join(part["text"] for part in parts if part.get("thought")) == "The weather …"
        called = [part["functionCall"] for part in parts if "functionCall" in part]
        assert [(call["name"], call["args"]) for call in called] == [("weather", {"city": "Zürich"}), ("now", {})]
        assert answers[-1]["usageMetadata"]["promptTokenCount"] == 11
        assert engine.asked[0].json["messages"] == [{"role": "user", "content": "What is the weather?"}]
        refused = await raw(stack, asked, "/v1beta/models/simulated:countTokens")
        assert (refused.status_code, "no tokenizer" in refused.text) == (400, True)


@pytest.mark.parametrize("end", ["clean", "closed", "half"])
async def test_a_truncated_stream_is_an_error_in_either_dialect(start_stack: StartStack, end: str) -> None:
    stream = OPENER + said({"content": "Grüß"}) + (said({"content": "x"})[:-20] if end == "half" else b"")
    engine = OpenAIEngine(Said([stream], until_closed=end == "closed"))
    async with gateway(start_stack, engine) as stack:
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await stack.client().chat.completions.create(stream=True, **HELLO):
                pass
        async with claude(stack) as client:
            with pytest.raises(anthropic.APIError, match="broke off"):
                async with client.messages.stream(max_tokens=9, **HELLO) as messages:
                    await messages.get_final_message()
        await stack.nothing_left()


async def test_a_connection_that_breaks_is_no_clean_end(start_stack: StartStack) -> None:
    engine = OpenAIEngine(Said([OPENER, said({"content": "Grüß"})], breaks=True))
    async with gateway(start_stack, engine) as stack:
        with pytest.raises((openai.APIError, httpx2.TransportError)):
            async for _ in await stack.client().chat.completions.create(stream=True, **HELLO):
                pass
        await stack.nothing_left()


async def test_an_error_within_a_stream_reaches_either_client(start_stack: StartStack) -> None:
    broken = OPENER + said({"content": "G"}) + event({"error": {"message": "no memory", "code": 500}}) + DONE
    engine = OpenAIEngine(streamed(broken))
    async with gateway(start_stack, engine) as stack:
        with pytest.raises(openai.APIError, match="no memory"):
            async for _ in await stack.client().chat.completions.create(stream=True, **HELLO):
                pass
        async with claude(stack) as client:
            with pytest.raises(anthropic.APIError, match="no memory"):
                async with client.messages.stream(max_tokens=9, **HELLO) as messages:
                    await messages.get_final_message()


async def test_a_stream_that_begins_with_an_error_has_its_status(start_stack: StartStack) -> None:
    engine = OpenAIEngine(streamed(event({"error": {"message": "too many", "code": 429}}) + DONE))
    async with gateway(start_stack, engine) as stack:
        with pytest.raises(openai.RateLimitError, match="too many"):
            await stack.client().chat.completions.create(stream=True, **HELLO)


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [
        (
            answered({"object": "error", "message": "maximum context length is 8 tokens", "code": 400}, 400),
            openai.BadRequestError,
            400,
        ),
        (answered({"error": {"message": "bad top_k", "param": "top_k"}}, 400), openai.BadRequestError, 400),
        (answered({"error": {"message": "oops"}}, 500), openai.InternalServerError, 500),
        (answered({"detail": "Not Found"}, 404), openai.InternalServerError, 502),
        (Said([b"<html>"], 200, "text/html"), openai.InternalServerError, 502),
        (Said([b'{"choices":['], 200, "application/json"), openai.InternalServerError, 502),
    ],
)
async def test_refusals_come_in_the_clients_dialect(
    start_stack: StartStack, answer: Said, error: type[openai.APIStatusError], status: int
) -> None:
    async with gateway(start_stack, OpenAIEngine(answer)) as stack:
        with pytest.raises(error) as caught:
            await stack.client().chat.completions.create(**HELLO)
        assert caught.value.status_code == status
        async with claude(stack) as client:
            with pytest.raises(anthropic.APIStatusError) as other:
                await client.messages.create(max_tokens=9, **HELLO)
            assert other.value.status_code == status
            assert other.value.body["type"] == "error"  # type: ignore[index]


async def test_a_full_worker_is_passed_by_and_what_the_last_one_asks_to_wait_is_kept(start_stack: StartStack) -> None:
    full, other = OpenAIEngine(answered({"error": "full"}, 429, retry_after="7")), OpenAIEngine(answered(WHOLE))
    async with gateway(start_stack, full, other) as stack:
        assert [(await raw(stack, HELLO)).status_code for _ in range(2)] == [200, 200]
        assert len(full.asked) == 1
        other.answers = full.answers
        got = await raw(stack, HELLO)
        assert (got.status_code, got.headers["retry-after"]) == (429, "7")
        await stack.nothing_left()


async def test_a_key_a_host_a_prefix_and_tls_towards_the_engines(start_stack: StartStack, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret\n")
    engine = OpenAIEngine(answered(WHOLE), key="sk-secret", prefix="/openai")
    http = {
        "api_key": str(key),
        "host": "llm.example.com",
        "path_prefix": "/openai",
        "tls": {"ca": str(TLS / "authority.pem"), "server_name": "localhost"},
    }
    async with gateway(start_stack, engine, http=http) as stack:
        assert (await raw(stack, HELLO)).status_code == 200
        (asked,) = engine.asked
        assert asked.path == "/openai/v1/chat/completions"
        assert asked.headers["host"] == "llm.example.com"
        written = "".join(path.read_text() for path in (stack.folder / "xds").rglob("*.yaml"))
        assert "sk-secret" not in written + stack.envoy_log()
        dump = await stack.http.get(f"http://127.0.0.1:{stack.admin_port}/config_dump")
        assert "sk-secret" not in dump.text
        key.write_text("sk-another-one\n")
        engine._key = "sk-another-one"
        await eventually(lambda: status_is(stack, 200), "the new key in use")


async def status_is(stack: Stack, status: int) -> bool:
    return (await raw(stack, HELLO)).status_code == status


async def test_a_client_that_leaves_stops_the_engine(start_stack: StartStack) -> None:
    engine = OpenAIEngine(Said([OPENER, *[said({"content": "x" * 1000})] * 50, DONE], waits=asyncio.Event()))
    async with gateway(start_stack, engine) as stack:
        async with stack.http.stream("POST", PATH, json=HELLO | {"stream": True}) as got:
            async for _ in got.aiter_bytes():
                break
            assert stack.load()[1] == 1
        await stack.nothing_left()


async def test_what_would_command_the_engine_is_refused(start_stack: StartStack) -> None:
    async with gateway(start_stack, OpenAIEngine(answered(WHOLE))) as stack:
        for field in ("kv_transfer_params", "chat_template", "custom_logit_processor"):
            got = await raw(stack, HELLO | {field: "x"})
            assert (got.status_code, got.json()["error"]["param"]) == (400, field)
        got = await raw(stack, b'{"model":"simulated","messages":[],"model":"simulated"}')
        assert got.status_code == 400
        got = await raw(stack, {"model": "simulated", "prompt": "x"}, "/tokenize")
        assert got.status_code == 400


async def test_prompts_are_tokenized_where_there_is_a_tokenizer(start_stack: StartStack) -> None:
    engine = OpenAIEngine(answered(WHOLE))
    async with gateway(start_stack, engine, tokenizer=str(OWN_MODEL), context_tokens=50) as stack:
        assert (await raw(stack, HELLO)).status_code == 200
        long = {**HELLO, "messages": [{"role": "user", "content": "many words " * 60}]}
        got = await raw(stack, long)
        assert (got.status_code, got.json()["error"]["code"]) == (400, "context_length_exceeded")
        async with claude(stack) as client:
            counted = await client.messages.count_tokens(**HELLO)
            assert counted.input_tokens > 0
        decided = await stack.http.post(PATH, json=HELLO, headers={"x-gateway-debug": "1"})
        assert json.loads(decided.headers["x-gateway-decision"])["prompt_tokens"] == counted.input_tokens


@pytest.mark.parametrize("tokenizer", [None, str(OWN_MODEL)])
async def test_equal_beginnings_go_to_the_same_worker(start_stack: StartStack, tokenizer: str | None) -> None:
    engines = [OpenAIEngine(answered(WHOLE)) for _ in range(3)]
    pool: dict[str, Any] = {"policy": "cache_aware", **({"tokenizer": tokenizer} if tokenizer else {})}
    async with gateway(start_stack, *engines, **pool) as stack:
        system = {"role": "system", "content": "You know all about trees. " * 100}
        for turn in range(6):
            asked = [system, {"role": "user", "content": f"Question {turn}"}]
            assert (await raw(stack, HELLO | {"messages": asked})).status_code == 200
        assert sorted(len(engine.asked) for engine in engines) == [0, 0, 6]
