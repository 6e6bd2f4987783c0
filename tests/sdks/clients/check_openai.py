"""OpenAI's SDK of any major from 1.66 on: Chat Completions and Responses. Run: python check_openai.py BASE_URL"""

import sys
from typing import Any

import openai
import pydantic
from checking import raises, run

BASE_URL = sys.argv[1]
CLIENT = openai.OpenAI(
    base_url=f"{BASE_URL}/v1", api_key="key", max_retries=0, timeout=30.0, _strict_response_validation=True
)
LOOSE = openai.OpenAI(base_url=f"{BASE_URL}/v1", api_key="key", max_retries=0, timeout=30.0)
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
FLAT: list[Any] = [
    {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False},
    {"type": "function", "name": "now", "parameters": NOTHING, "strict": False},
]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]
CALLS = [("weather", '{"city": "Zürich"}'), ("now", "{}")]


class Answer(pydantic.BaseModel):
    degrees: int


def chat_whole() -> None:
    answer = CLIENT.chat.completions.create(model="plain", messages=ASKED, temperature=0.5, seed=1, max_tokens=50)
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role) == ("Hello, wörld! 🚀", "assistant")
    assert (choice.finish_reason, answer.model, answer.object) == ("stop", "plain", "chat.completion")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


def chat_streamed() -> None:
    chunks = list(
        CLIENT.chat.completions.create(
            model="plain", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *some, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in some) == "Hello, wörld! 🚀"
    assert [chunk.choices[0].finish_reason for chunk in some if chunk.choices[0].finish_reason] == ["stop"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0


async def chat_streamed_asynchronously() -> None:
    async with openai.AsyncOpenAI(base_url=f"{BASE_URL}/v1", api_key="key", max_retries=0) as client:
        texts = []
        async for chunk in await client.chat.completions.create(model="plain", messages=ASKED, stream=True):
            texts.append(chunk.choices[0].delta.content or "")
    assert "".join(texts) == "Hello, wörld! 🚀"


def chat_several_choices() -> None:
    answer = CLIENT.chat.completions.create(model="plain", messages=ASKED, n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (index, "Hello, wörld! 🚀") for index in range(3)
    ]


def chat_logprobs() -> None:
    answer = CLIENT.chat.completions.create(model="plain", messages=ASKED, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert b"".join(bytes(one.bytes or ()) for one in logprobs.content).decode() == "Hello, wörld! 🚀"
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in logprobs.content)


def chat_tools_there_and_back() -> None:
    stream_of = getattr(CLIENT.chat.completions, "stream", None) or CLIENT.beta.chat.completions.stream
    with stream_of(model="calls", messages=ASKED, tools=TOOLS) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    whole = CLIENT.chat.completions.create(model="calls", messages=ASKED, tools=TOOLS).choices[0]
    for choice in (streamed, whole):
        message = choice.message
        assert (message.content, choice.finish_reason) == ("Let me look.", "tool_calls")
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls or ()] == CALLS
        assert message.reasoning_content == "The user asks for\nthe weather."
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
            for call in reversed(message.tool_calls or ())
        ]
        messages: Any = [*ASKED, message, *results]
        second = CLIENT.chat.completions.create(model="says", messages=messages, tools=TOOLS)
        assert second.choices[0].message.content == "It is sunny."


def chat_tool_that_must_be_called() -> None:
    for model, choice in (
        ("must", "required"),
        ("named", {"type": "function", "function": {"name": "weather"}}),
    ):
        given: Any = choice
        answer = CLIENT.chat.completions.create(
            model=model, messages=ASKED, tools=TOOLS, tool_choice=given, parallel_tool_calls=False
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        [call] = answer.choices[0].message.tool_calls or ()
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Bern"}')


def chat_structured() -> None:
    parse = getattr(CLIENT.chat.completions, "parse", None) or CLIENT.beta.chat.completions.parse
    answer = parse(model="json", messages=ASKED, response_format=Answer)
    assert answer.choices[0].message.parsed == Answer(degrees=21)


def chat_stops() -> None:
    answer = CLIENT.chat.completions.create(model="plain", messages=ASKED, stop=["zz", "wö"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello, ", "stop")
    short = CLIENT.chat.completions.create(model="plain", messages=ASKED, max_completion_tokens=1)
    assert short.choices[0].finish_reason == "length"


def errors() -> None:
    create = CLIENT.chat.completions.create
    error = raises(openai.BadRequestError, lambda: create(model="plain", messages=ASKED, temperature=9.0))
    assert (error.param, error.type) == ("temperature", "invalid_request_error")
    assert error.request_id
    error = raises(openai.NotFoundError, lambda: create(model="none", messages=ASKED))
    assert error.code == "model_not_found"
    error = raises(openai.RateLimitError, lambda: create(model="full", messages=ASKED))
    assert error.status_code == 429
    raises(openai.APIError, lambda: list(create(model="breaks", messages=ASKED, stream=True)))
    raises(openai.NotFoundError, lambda: CLIENT.files.list())


def responses_whole() -> None:
    answer = CLIENT.responses.create(model="plain", input="Hello.", instructions="Be brief.", max_output_tokens=50)
    assert (answer.output_text, answer.status, answer.model) == ("Hello, wörld! 🚀", "completed", "plain")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0


def responses_streamed() -> None:
    events = list(CLIENT.responses.create(model="plain", input="Hello.", stream=True))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "Hello, wörld! 🚀"
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Hello, wörld! 🚀"


def responses_tools_there_and_back() -> None:
    with CLIENT.responses.stream(model="calls", input=ASKED, tools=FLAT) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    whole = CLIENT.responses.create(model="calls", input=ASKED, tools=FLAT)
    for answer in (streamed, whole):
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
        calls = [item for item in answer.output if item.type == "function_call"]
        assert [(call.name, call.arguments) for call in calls] == CALLS
        assert answer.output_text == "Let me look."
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
            for call in reversed(calls)
        ]
        items: Any = [*ASKED, *answer.output, *results]
        second = CLIENT.responses.create(model="says", input=items, tools=FLAT)
        assert second.output_text == "It is sunny."


def responses_structured() -> None:
    answer = CLIENT.responses.parse(model="json", input="Degrees?", text_format=Answer)
    assert answer.output_parsed == Answer(degrees=21)


def responses_cut_short() -> None:
    answer = CLIENT.responses.create(model="plain", input="Hello.", max_output_tokens=1)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    last = list(CLIENT.responses.create(model="plain", input="Hello.", max_output_tokens=1, stream=True))[-1]
    assert last.type == "response.incomplete"


def responses_errors() -> None:
    create = CLIENT.responses.create
    error = raises(openai.BadRequestError, lambda: create(model="plain", input="a", previous_response_id="resp_1"))
    assert error.code == "previous_response_not_found"
    raises(openai.NotFoundError, lambda: create(model="none", input="a"))
    raises(openai.RateLimitError, lambda: create(model="full", input="a"))
    last = list(create(model="breaks", input="a", stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None


def models() -> None:
    names = [model.id for model in CLIENT.models.list()]
    assert {"plain", "calls"} <= set(names)
    assert CLIENT.models.retrieve("plain").id == "plain"
    raises(openai.NotFoundError, lambda: CLIENT.models.retrieve("none"))


def completions() -> None:
    answer = CLIENT.completions.create(model="plain", prompt="Once", max_tokens=50)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello, wörld! 🚀", "stop")
    # Strict mode refuses chunks without a finish reason, which OpenAI sends as well.
    chunks = LOOSE.completions.create(model="plain", prompt="Once", max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello, wörld! 🚀"
    several = CLIENT.completions.create(model="plain", prompt=["a", "b"], n=2, max_tokens=50)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def embeddings() -> None:
    # Strict mode reads no base64, for which the SDK asks by itself.
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = LOOSE.embeddings.create(model="vectors", input=["one", "two"], **form)
        assert [one.index for one in answer.data] == [0, 1]
        assert {len(one.embedding) for one in answer.data} in ({8}, {44})
    error = raises(openai.BadRequestError, lambda: LOOSE.embeddings.create(model="plain", input="one"))
    assert error.status_code == 400


run(
    [
        chat_whole,
        chat_streamed,
        chat_streamed_asynchronously,
        chat_several_choices,
        chat_logprobs,
        chat_tools_there_and_back,
        chat_tool_that_must_be_called,
        chat_structured,
        chat_stops,
        errors,
        responses_whole,
        responses_streamed,
        responses_tools_there_and_back,
        responses_structured,
        responses_cut_short,
        responses_errors,
        models,
        completions,
        embeddings,
    ]
)
