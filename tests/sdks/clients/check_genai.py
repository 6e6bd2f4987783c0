"""Google's SDK of any major: generateContent, embedContent, countTokens, models. Run: python check_genai.py BASE_URL"""

import sys
from typing import Any

import pydantic
from checking import raises, run
from google import genai
from google.genai import errors, types

CLIENT = genai.Client(api_key="key", http_options=types.HttpOptions(base_url=sys.argv[1], timeout=30_000))
SAID = "Hello, wörld! 🚀"
ASKED = "What is the weather in Zürich?"
TOOLS: list[Any] = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(
                name="weather",
                parameters=types.Schema(
                    type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)}, required=["city"]
                ),
            ),
            types.FunctionDeclaration(name="now", parameters_json_schema={"type": "object", "properties": {}}),
        ]
    )
]
BY_HAND = types.AutomaticFunctionCallingConfig(disable=True)
THINKS = types.ThinkingConfig(include_thoughts=True)


class Answer(pydantic.BaseModel):
    degrees: int


def ask(model: str, contents: Any = ASKED, **config: Any) -> list[types.GenerateContentResponse]:
    return [
        CLIENT.models.generate_content(
            model=model,
            contents=contents,
            config=types.GenerateContentConfig(automatic_function_calling=BY_HAND, **config),
        )
    ]


def ask_streamed(model: str, contents: Any = ASKED, **config: Any) -> list[types.GenerateContentResponse]:
    return list(
        CLIENT.models.generate_content_stream(
            model=model,
            contents=contents,
            config=types.GenerateContentConfig(automatic_function_calling=BY_HAND, **config),
        )
    )


def parts_of(answers: list[types.GenerateContentResponse]) -> list[types.Part]:
    return [
        part
        for answer in answers
        for candidate in answer.candidates or ()
        if candidate.content
        for part in candidate.content.parts or ()
    ]


def text_of(answers: list[types.GenerateContentResponse]) -> str:
    return "".join(part.text or "" for part in parts_of(answers) if not part.thought)


def text() -> None:
    for answers in (
        ask("plain", system_instruction="Be brief.", temperature=0.5, seed=1),
        ask_streamed("plain", system_instruction="Be brief.", temperature=0.5, seed=1),
    ):
        assert text_of(answers) == SAID
        last = answers[-1]
        assert last.candidates
        assert (last.candidates[0].finish_reason, last.model_version) == (types.FinishReason.STOP, "plain")
        assert last.usage_metadata
        assert (last.usage_metadata.total_token_count or 0) > 0


async def text_streamed_asynchronously() -> None:
    chunks = [one async for one in await CLIENT.aio.models.generate_content_stream(model="plain", contents=ASKED)]
    assert text_of(chunks) == SAID


def chat_with_a_memory() -> None:
    chat = CLIENT.chats.create(model="plain")
    assert chat.send_message("Hello.").text == SAID
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream("Again.")) == SAID
    assert len(chat.get_history(curated=True)) >= 4


def thoughts_and_tools_there_and_back() -> None:
    for one in (ask, ask_streamed):
        answers = one("calls", tools=TOOLS, thinking_config=THINKS)
        parts = parts_of(answers)
        assert "".join(part.text or "" for part in parts if part.thought) == "The user asks for\nthe weather."
        assert text_of(answers) == "Let me look."
        calls = [part.function_call for part in parts if part.function_call]
        assert [(call.name, call.args) for call in calls] == [("weather", {"city": "Zürich"}), ("now", {})]
        results = [
            types.Part(
                function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": "21 degrees"})
            )
            for call in reversed(calls)
        ]
        contents = [
            types.UserContent(ASKED),
            *[answer.candidates[0].content for answer in answers if answer.candidates and answer.candidates[0].content],
            types.Content(role="user", parts=results),
        ]
        assert text_of(one("says", contents, tools=TOOLS, thinking_config=THINKS)) == "It is sunny."


def functions_are_called_by_the_sdk() -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"{city}: 21 degrees"

    called = CLIENT.models.generate_content(
        model="named",
        contents=ASKED,
        config=types.GenerateContentConfig(
            tools=[weather],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(maximum_remote_calls=2),
            tool_config=types.ToolConfig(
                function_calling_config=types.FunctionCallingConfig(
                    mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["weather"]
                )
            ),
        ),
    )
    history = called.automatic_function_calling_history or []
    answers = [part.function_response for content in history for part in content.parts or () if part.function_response]
    assert answers
    assert all(answer.response == {"result": "Bern: 21 degrees"} for answer in answers if answer)


def structured() -> None:
    answer = CLIENT.models.generate_content(
        model="json",
        contents="Degrees?",
        config=types.GenerateContentConfig(response_mime_type="application/json", response_schema=Answer),
    )
    assert answer.parsed == Answer(degrees=21)


def stops() -> None:
    assert text_of(ask("plain", stop_sequences=["zz", "wö"])) == "Hello, "
    short = ask("plain", max_output_tokens=1)[0]
    assert short.candidates
    assert short.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS


def counting_embedding_and_models() -> None:
    counted = CLIENT.models.count_tokens(model="plain", contents=ASKED)
    usage = ask("plain")[0].usage_metadata
    assert usage is not None
    assert counted.total_tokens == usage.prompt_token_count
    assert {"models/plain", "models/calls"} <= {model.name for model in CLIENT.models.list()}
    assert CLIENT.models.get(model="plain").name == "models/plain"
    embedded = CLIENT.models.embed_content(model="vectors", contents=["a", "b"]).embeddings or []
    assert [len(one.values or ()) for one in embedded] == [8, 8]


def failures() -> None:
    error = raises(errors.ClientError, lambda: ask("plain", temperature=-9.0))
    assert (error.code, error.status) == (400, "INVALID_ARGUMENT")
    error = raises(errors.ClientError, lambda: ask("none"))
    assert (error.code, error.status) == (404, "NOT_FOUND")
    error = raises(errors.ClientError, lambda: ask("full"))
    assert (error.code, error.status) == (429, "RESOURCE_EXHAUSTED")
    raises(errors.ServerError, lambda: ask_streamed("breaks"))


run(
    [
        text,
        text_streamed_asynchronously,
        chat_with_a_memory,
        thoughts_and_tools_there_and_back,
        functions_are_called_by_the_sdk,
        structured,
        stops,
        counting_embedding_and_models,
        failures,
    ]
)
