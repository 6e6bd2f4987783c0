"""What HTTP engines are asked: clients' own bytes with what must change, and translations."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from gateway_http_backends import http_backend
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.engines.json_members import MOST_MEMBERS
from extproc.engines.openai_request import chat_body
from extproc.gateway.http_request import OWN_FORMS, HttpRequest, known_of, own_request, read_own, translated_request
from extproc.gateway.http_target import ApiKey, HttpTarget
from extproc.ir import (
    ChatRequest,
    ErrorKind,
    Json,
    Media,
    Opaque,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningRequest,
    RequestError,
    Sampling,
    Text,
    ToolCall,
    ToolChoice,
    ToolDef,
    ToolResult,
    Turn,
)
from extproc.routing.facts import RouteFacts
from extproc.token_ids import TokenIds

CHAT = OpenAIChat(BodyLimits())
INBOUND = Inbound("POST", "/v1/chat/completions", "", {})
USER = Turn("user", (Text("Hi."),))


def facts(ids: TokenIds, user: str | None, *, streams: bool) -> RouteFacts:
    return RouteFacts(len(ids), ids, keys={"user": user} if user else {}, streams=streams)


def passed(body: bytes, target: HttpTarget, dialect: str = "openai_chat") -> HttpRequest:
    known = known_of(body)
    assert known is not None
    return own_request(read_own(known, OWN_FORMS[dialect], body), http_backend(target), facts, None)


def asked(chat: ChatRequest) -> dict[str, Any]:
    value = json.loads(chat_body(chat, "engine").body)
    assert isinstance(value, dict)
    return value


def messages(*turns: Turn) -> list[dict[str, Any]]:
    listed = asked(ChatRequest(model="m", turns=turns))["messages"]
    assert isinstance(listed, list)
    return listed


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.booleans()), max_size=5),
    st.sampled_from([None, 1, 2]),
)
def test_a_body_that_needs_no_change_goes_through_byte_for_byte(fields: dict[str, Any], indent: int | None) -> None:
    fields = {name: value for name, value in fields.items() if name not in ("model", "stream", "n", "user")}
    body = json.dumps({**fields, "model": "m", "messages": []}, indent=indent).encode()
    assert passed(body, HttpTarget(names={"m": "m"})).body == body


def test_the_model_and_the_wish_for_usage_change_in_place() -> None:
    target = HttpTarget(names={"m": "org/real"}, path_prefix="/p")
    body = b'{"stream_options": {"x":1} , "model":"m","messages":[{"model":"m"}],"stream":true}'
    request = passed(body, target)
    assert request.body == (
        b'{"stream_options": {"x":1,"include_usage":true} , "model":"org/real",'
        b'"messages":[{"model":"m"}],"stream":true}'
    )
    assert request.path == "/p/v1/chat/completions"


@pytest.mark.parametrize(
    ("options", "asks", "wanted"),
    [
        (b"null", True, b'{"include_usage":true}'),
        (b'{"include_usage":false}', True, b'{"include_usage":true}'),
        (b'{"include_usage":true}', True, b'{"include_usage":true}'),
        (b'{"include_usage":false}', False, b'{"include_usage":false}'),
    ],
)
def test_usage_is_asked_for_unless_it_is_already_or_the_engines_refuse_it(
    options: bytes, asks: bool, wanted: bytes
) -> None:
    body = b'{"model":"m","stream":true,"stream_options":%b}'
    request = passed(body % options, HttpTarget(names={"m": "m"}, asks_usage=asks))
    assert request.body == body % wanted


def test_equal_beginnings_of_prompts_are_known_by_equal_ids() -> None:
    def ids(text: str, dialect: str = "openai_chat") -> bytes:
        field = "messages" if dialect == "openai_chat" else "prompt"
        body = json.dumps({"temperature": len(text), "model": "m", field: [text], "user": "u"}).encode()
        request = passed(body, HttpTarget(names={"m": "m"}), dialect)
        assert request.facts.namespace == "text"
        assert request.facts.keys == {"user": "u"}
        return request.facts.ids.varints

    for dialect in ("openai_chat", "openai_completions"):
        assert ids("a" * 400 + "more", dialect).startswith(ids("a" * 400, dialect)[:400])
        assert len(ids("a" * 400, dialect)) in range(396, 410)


@pytest.mark.parametrize("field", ["chat_template", "kv_transfer_params", "rid", "custom_logit_processor"])
def test_a_client_does_not_command_the_engine(field: str) -> None:
    body: dict[str, Any] = {"model": "m", "messages": []}
    with pytest.raises(RequestError) as caught:
        passed(json.dumps(body | {field: "x"}).encode(), HttpTarget())
    assert (caught.value.info.kind, caught.value.info.param) == (ErrorKind.UNSUPPORTED, field)
    assert passed(json.dumps(body | {field: None}).encode(), HttpTarget()).body


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","model":"n"}',
        b'{"model":"m","n":0}',
        b'{"model":"m","chat_template_kwargs":{"chat_template":"x"}}',
        b'{"model":"m",' + b",".join(b'"f%d":1' % each for each in range(MOST_MEMBERS)) + b"}",
    ],
)
def test_what_engines_could_misunderstand_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        passed(body, HttpTarget())
    assert caught.value.info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages":[]}', b'{"model":1}', b"[" * 100_000])
def test_a_body_that_the_dialect_refuses_is_left_to_it(body: bytes) -> None:
    assert known_of(body) is None


# ---- translations


def test_everything_about_sampling_is_carried() -> None:
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=0,
        min_p=0.1,
        frequency_penalty=1.0,
        presence_penalty=-1.0,
        repetition_penalty=1.1,
        seed=7,
        n=2,
        max_tokens=10,
        min_tokens=1,
        stop=("a", "b"),
        stop_token_ids=(3,),
        include_stop=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logit_bias={5: 1.5},
        top_logprobs=2,
    )
    assert asked(ChatRequest(model="m", turns=(USER,), sampling=sampling, stream=True, user="u")) == {
        "model": "engine",
        "messages": [{"role": "user", "content": "Hi."}],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "frequency_penalty": 1.0,
        "presence_penalty": -1.0,
        "repetition_penalty": 1.1,
        "seed": 7,
        "n": 2,
        "max_tokens": 10,
        "min_tokens": 1,
        "stop": ["a", "b"],
        "stop_token_ids": [3],
        "include_stop_str_in_output": True,
        "no_stop_trim": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logit_bias": {"5": 1.5},
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
    }


def test_what_was_not_said_is_not_sent() -> None:
    assert asked(ChatRequest(model="m", turns=(USER,))).keys() == {"model", "messages"}


def test_turns_keep_their_order_and_parts() -> None:
    call = ToolCall(call_id="a", name="f", arguments='{"x":1}')
    custom = ToolCall(call_id="b", name="sh", arguments="ls", custom=True)
    result = ToolResult(call_id="a", parts=(Text("one"), Json({"two": 2})))
    failed = ToolResult(call_id="b", parts=(Text("no shell"),), is_error=True)
    signed = Reasoning("Hm.", opaque=(Opaque("anthropic", "signature", "xyz"),))
    assert messages(
        Turn("developer", (Text("Be kind."),)),
        Turn("user", (Text("a"), Text("b")), name="ann"),
        Turn("assistant", (signed, Text("Look."), call, custom)),
        Turn("user", (result, failed, Text("So?"))),
        Turn("assistant", (call,)),
        Turn("tool", (result,)),
    ) == [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning": "Hm.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "b", "type": "function", "function": {"name": "sh", "arguments": '{"input":"ls"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": 'one\n{"two":2}'},
        {"role": "tool", "tool_call_id": "b", "content": "Error: no shell"},
        {"role": "user", "content": "So?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": 'one\n{"two":2}'},
    ]


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (
            Media(modality="image", data="AA==", mime="image/png", detail="low"),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        ),
        (Media(modality="image", url="https://a/b"), {"type": "image_url", "image_url": {"url": "https://a/b"}}),
        (Media(modality="video", url="https://a/b"), {"type": "video_url", "video_url": {"url": "https://a/b"}}),
        (
            Media(modality="audio", data="AA==", mime="audio/wav"),
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        ),
        (
            Media(modality="document", data="AA==", mime="application/pdf", filename="a.pdf"),
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        ),
    ],
)
def test_media_are_carried(part: Part, wanted: dict[str, Any]) -> None:
    (message,) = messages(Turn("user", (part, Text("What is it?"))))
    assert message["content"] == [wanted, {"type": "text", "text": "What is it?"}]


@pytest.mark.parametrize(
    "part",
    [
        Media(modality="image", file_id="f", path="messages[0].content[0]"),
        Media(modality="document", url="https://a/b", path="messages[0].content[0]"),
        Media(modality="audio", data="AA==", mime="audio/ogg", path="messages[0].content[0]"),
        ToolResult(call_id="a", parts=(Media(modality="image", data="", path="messages[0].content[0]"),)),
    ],
)
def test_media_without_a_place_are_refused_by_name(part: Part) -> None:
    with pytest.raises(RequestError) as caught:
        messages(Turn("user", (part,)))
    assert (caught.value.info.kind, caught.value.info.param) == (ErrorKind.UNSUPPORTED, "messages[0].content[0]")


TOOLS = (
    ToolDef(name="f", description="d", parameters={"type": "object"}, strict=True),
    ToolDef(name="sh", custom=True),
)


@pytest.mark.parametrize(
    ("choice", "wanted", "names"),
    [
        (ToolChoice(), "auto", ["f", "sh"]),
        (ToolChoice("required"), "required", ["f", "sh"]),
        (ToolChoice("required", ("f",)), "required", ["f"]),
        (ToolChoice("named", ("f",)), {"type": "function", "function": {"name": "f"}}, ["f", "sh"]),
        (ToolChoice("none"), None, None),
    ],
)
def test_tools_and_the_choice_among_them(choice: ToolChoice, wanted: Any, names: list[str] | None) -> None:
    body = asked(ChatRequest(model="m", turns=(USER,), tools=TOOLS, tool_choice=choice, parallel_tool_calls=False))
    assert body.get("tool_choice") == wanted
    assert body.get("parallel_tool_calls") == (None if names is None else False)
    assert (body.get("tools") and [tool["function"]["name"] for tool in body["tools"]]) == names


def test_reasoning_and_the_template() -> None:
    chat = ChatRequest(
        model="m",
        turns=(USER, Turn("assistant", (Text("A"),))),
        reasoning=ReasoningRequest(effort="max", budget_tokens=5),
        template_kwargs={"thinking": "mine"},
        add_generation_prompt=False,
        continue_final_message=True,
        documents=({"title": "t"},),
    )
    body = asked(chat)
    assert body["reasoning_effort"] == "high"
    assert body["chat_template_kwargs"] == {"enable_thinking": True, "thinking": "mine"}
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
    assert body["documents"] == [{"title": "t"}]
    assert [loss.field for loss in chat_body(chat, "m").losses] == ["reasoning.budget_tokens"]
    none = asked(ChatRequest(model="m", turns=(USER,), reasoning=ReasoningRequest(effort="none")))
    assert none["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert "reasoning_effort" not in none


def test_the_form_of_the_answer() -> None:
    schema = {"type": "object"}
    output = OutputFormat(kind="json_schema", schema=schema, name="a", description="d", strict=True)
    assert asked(ChatRequest(model="m", turns=(USER,), output=output))["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": schema, "description": "d", "strict": True},
    }
    output = OutputFormat(kind="json_object")
    assert asked(ChatRequest(model="m", turns=(USER,), output=output))["response_format"] == {"type": "json_object"}
    with pytest.raises(RequestError) as caught:
        asked(ChatRequest(model="m", turns=(USER,), output=OutputFormat(kind="regex", text="a", path="guided_regex")))
    assert caught.value.info.param == "guided_regex"


@pytest.mark.parametrize("streams", [True, False])
def test_a_chat_body_that_is_translated_says_the_same_again(streams: bool) -> None:
    """What Chat's parser reads of the translation is what it was made from."""
    body = json.dumps(
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "content": "Look.",
                    "reasoning_content": "Hm.",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "done"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "required",
            "temperature": 0.5,
            "stop": ["x"],
            "response_format": {"type": "json_object"},
            "stream": streams,
        }
    ).encode()
    chat = CHAT.parse(INBOUND, body)
    request = translated_request(chat, CHAT, http_backend(HttpTarget(names={"m": "m"})), facts, None)
    again = CHAT.parse(INBOUND, request.body)
    for field in ("turns", "sampling", "tools", "tool_choice", "output", "stream"):
        assert getattr(again, field) == getattr(chat, field), field


# ---- what every request of a pool gets


def test_a_key_is_read_again_when_its_file_is_replaced_and_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("extproc.gateway.http_target.monotonic", lambda: now_s)
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "key"
    target = HttpTarget(api_key=ApiKey(file), host="llm.example.com")
    assert target.headers() == ((":authority", "llm.example.com"),)
    for key in ("sk-one", "sk-another"):
        file.write_text(f"{key}\n")
        now_s += 2
        assert target.headers()[1] == ("authorization", f"Bearer {key}")
        assert target.access().headers == (("authorization", f"Bearer {key}"),)
    for nonsense in (b"", b"sk-a\nsk-b", b"sk-\xff"):
        file.write_bytes(nonsense)
        now_s += 2
        assert target.headers()[1] == ("authorization", "Bearer sk-another")
    assert "sk-" not in caplog.text
    assert len(caplog.records) == 4
