"""Ollama's SDK: chat, generate, embed, models. Run: python check_ollama.py BASE_URL"""

import sys
from collections.abc import Callable
from typing import Any

import ollama
from checking import raises, run

CLIENT = ollama.Client(host=sys.argv[1], timeout=30.0)
SAID = "Hello, wörld! 🚀"
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def ask(model: str, messages: Any = ASKED, **fields: Any) -> list[ollama.ChatResponse]:
    return [CLIENT.chat(model=model, messages=messages, **fields)]


def ask_streamed(model: str, messages: Any = ASKED, **fields: Any) -> list[ollama.ChatResponse]:
    return list(CLIENT.chat(model=model, messages=messages, stream=True, **fields))


BOTH: tuple[Callable[..., list[ollama.ChatResponse]], ...] = (ask, ask_streamed)


def text_of(answers: list[ollama.ChatResponse]) -> str:
    return "".join(one.message.content or "" for one in answers)


def text() -> None:
    for one in BOTH:
        answers = one("plain", options={"temperature": 0.5, "seed": 1})
        assert text_of(answers) == SAID
        last = answers[-1]
        assert (last.done, last.done_reason, last.model) == (True, "stop", "plain")
        assert (last.prompt_eval_count or 0) > 0
        assert (last.eval_count or 0) > 0
        assert (last.total_duration or 0) > 0
        assert not any(one.done for one in answers[:-1])


async def text_streamed_asynchronously() -> None:
    client = ollama.AsyncClient(host=sys.argv[1])
    chunks = [one async for one in await client.chat(model="plain", messages=ASKED, stream=True)]
    assert text_of(chunks) == SAID


def tools_there_and_back() -> None:
    for one in BOTH:
        answers = one("calls", tools=TOOLS)
        assert text_of(answers) == "Let me look."
        calls = [call for answer in answers for call in answer.message.tool_calls or ()]
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("weather", {"city": "Zürich"}),
            ("now", {}),
        ]
        results = [
            {"role": "tool", "tool_name": call.function.name, "content": "21 degrees"} for call in reversed(calls)
        ]
        said = {"role": "assistant", "content": "Let me look.", "tool_calls": [call.model_dump() for call in calls]}
        assert text_of(one("says", [*ASKED, said, *results], tools=TOOLS)) == "It is sunny."


def structured() -> None:
    schema = {"type": "object", "properties": {"degrees": {"type": "integer"}}, "required": ["degrees"]}
    assert text_of(ask("json", format=schema)) == '{"degrees": 21}'


def stops() -> None:
    assert text_of(ask_streamed("plain", options={"stop": ["zz", "wö"]})) == "Hello, "
    assert ask("plain", options={"num_predict": 1})[0].done_reason == "length"


def generate() -> None:
    assert CLIENT.generate(model="plain", prompt="Hello.", system="Be brief.").response == SAID
    chunks = list(CLIENT.generate(model="plain", prompt="Hello.", stream=True))
    assert "".join(chunk.response for chunk in chunks) == SAID
    assert chunks[-1].done


def embed() -> None:
    embedded = CLIENT.embed(model="vectors", input=["a", "b"])
    assert [len(one) for one in embedded.embeddings] == [8, 8]


def models() -> None:
    assert {"plain", "calls"} <= {model.model for model in CLIENT.list().models}
    CLIENT.show("plain")


def errors() -> None:
    for call, status in (
        (lambda: ask("none"), 404),
        (lambda: ask("full"), 429),
        (lambda: ask("plain", options={"temperature": "hot"}), 400),
    ):
        error = raises(ollama.ResponseError, call)
        assert error.status_code == status, error
    error = raises(ollama.ResponseError, lambda: ask_streamed("breaks"))
    assert "injected fault" in str(error)


run(
    [
        text,
        text_streamed_asynchronously,
        tools_there_and_back,
        structured,
        stops,
        generate,
        embed,
        models,
        errors,
    ]
)
