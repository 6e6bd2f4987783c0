"""Anthropic's SDK of any major: Messages, counting, models. Run: python check_anthropic.py BASE_URL"""

import sys
from typing import Any

import anthropic
from checking import raises, run

CLIENT = anthropic.Anthropic(
    base_url=sys.argv[1], api_key="key", max_retries=0, timeout=30.0, _strict_response_validation=True
)
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"name": "weather", "input_schema": PARAMETERS},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]


def ask(model: str, messages: Any = ASKED, **options: Any) -> Any:
    return CLIENT.messages.create(model=model, max_tokens=500, messages=messages, **options)


def ask_streamed(model: str, messages: Any = ASKED, **options: Any) -> Any:
    with CLIENT.messages.stream(model=model, max_tokens=500, messages=messages, **options) as stream:
        return stream.get_final_message()


def text() -> None:
    for answer in (ask("plain", system="Be brief."), ask_streamed("plain", system="Be brief.")):
        [block] = answer.content
        assert (block.type, block.text, answer.role) == ("text", "Hello, wörld! 🚀", "assistant")
        assert (answer.stop_reason, answer.stop_sequence, answer.model) == ("end_turn", None, "plain")
        assert answer.usage.output_tokens > 0
    with CLIENT.messages.stream(model="plain", max_tokens=50, messages=ASKED) as stream:
        assert "".join(stream.text_stream) == "Hello, wörld! 🚀"


async def text_streamed_asynchronously() -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=sys.argv[1], api_key="key", max_retries=0) as client,
        client.messages.stream(model="plain", max_tokens=50, messages=ASKED) as stream,
    ):
        assert await stream.get_final_text() == "Hello, wörld! 🚀"


def events() -> None:
    kinds = [event.type for event in CLIENT.messages.create(model="plain", max_tokens=9, messages=ASKED, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def thinking_and_tools_there_and_back() -> None:
    for answer in (ask("calls", tools=TOOLS), ask_streamed("calls", tools=TOOLS)):
        thinking, said, weather, now = answer.content
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert thinking.thinking == "The user asks for\nthe weather."
        assert thinking.signature
        assert said.text == "Let me look."
        assert (weather.name, weather.input, now.name, now.input) == ("weather", {"city": "Zürich"}, "now", {})
        assert answer.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": now.id, "content": "12:00"},
            {"type": "tool_result", "tool_use_id": weather.id, "content": "no such city", "is_error": True},
        ]
        content = [block.to_dict() for block in answer.content]
        messages = [*ASKED, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
        second = ask("says", messages, tools=TOOLS)
        assert [block.type for block in second.content] == ["thinking", "text"]
        assert second.content[1].text == "It is sunny."


def tool_that_must_be_called() -> None:
    for model, choice in (("must", {"type": "any"}), ("named", {"type": "tool", "name": "weather"})):
        for answer in (
            ask(model, tools=TOOLS, tool_choice=choice),
            ask_streamed(model, tools=TOOLS, tool_choice=choice),
        ):
            [call] = answer.content
            assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Bern"})
            assert answer.stop_reason == "tool_use"


def structured() -> None:
    schema = {"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]}
    form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    answer = ask("json", extra_body=form)
    assert answer.content[0].text == '{"degrees": 21}'


def stops() -> None:
    for answer in (ask("plain", stop_sequences=["zz", "wö"]), ask_streamed("plain", stop_sequences=["zz", "wö"])):
        assert answer.content[0].text == "Hello, "
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "wö")
    short = CLIENT.messages.create(model="plain", max_tokens=1, messages=ASKED)
    assert short.stop_reason == "max_tokens"


def counting() -> None:
    counted = CLIENT.messages.count_tokens(model="plain", messages=ASKED, system="Be brief.")
    usage = ask("plain", system="Be brief.").usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def models() -> None:
    names = [model.id for model in CLIENT.models.list()]
    assert {"plain", "calls"} <= set(names)
    assert CLIENT.models.retrieve("plain").id == "plain"


def errors() -> None:
    error = raises(anthropic.BadRequestError, lambda: ask("plain", tools=[{"name": "a b", "input_schema": 1}]))
    assert error.body["error"]["type"] == "invalid_request_error"
    assert error.request_id
    raises(anthropic.NotFoundError, lambda: ask("none"))
    raises(anthropic.RateLimitError, lambda: ask("full"))
    broken = raises(anthropic.APIStatusError, lambda: ask_streamed("breaks"))
    assert "injected fault" in str(broken)


run(
    [
        text,
        text_streamed_asynchronously,
        events,
        thinking_and_tools_there_and_back,
        tool_that_must_be_called,
        structured,
        stops,
        counting,
        models,
        errors,
    ]
)
