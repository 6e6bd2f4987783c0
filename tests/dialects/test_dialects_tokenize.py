"""vLLM's /tokenize and /detokenize are read and answered in its shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.dialects.json_body import BodyLimits
from extproc.dialects.vllm_tokenize import parse_detokenize, parse_tokenize, render_text, render_tokens
from extproc.ir import ErrorKind, RequestError

LIMITS = BodyLimits(max_depth=4, max_messages=3, max_token_ids=5)
USER = {"role": "user", "content": "hi"}


def test_a_prompt_gets_special_tokens_unless_told_otherwise() -> None:
    request = parse_tokenize(b'{"prompt": "hi"}', LIMITS)
    assert (request.model, request.prompt, request.conversation) == (None, "hi", None)
    assert (request.add_special_tokens, request.wants_names) == (True, False)
    request = parse_tokenize(
        b'{"model": "m", "prompt": "", "add_special_tokens": false, "return_token_strs": true}', LIMITS
    )
    assert (request.model, request.prompt, request.add_special_tokens, request.wants_names) == ("m", "", False, True)


def test_a_conversation_has_its_special_tokens_from_the_template() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [USER], "tools": None, "chat_template_kwargs": {"x": [1]}}
    request = parse_tokenize(json.dumps(body).encode(), LIMITS)
    assert request.conversation is not None
    assert (request.prompt, request.add_special_tokens) == (None, False)
    assert request.conversation.turns[0].text == "hi"
    assert request.conversation.template_kwargs == {"x": [1]}
    assert request.conversation.add_generation_prompt
    body = {"messages": [USER], "continue_final_message": True, "add_special_tokens": True}
    request = parse_tokenize(json.dumps(body).encode(), LIMITS)
    assert request.conversation is not None
    assert (request.conversation.continue_final_message, request.conversation.add_generation_prompt) == (True, False)
    assert request.add_special_tokens


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "missing_required_parameter"),
    ({"prompt": "x", "messages": [USER]}, "prompt", "invalid_value"),
    ({"prompt": ["x"]}, "prompt", "invalid_type"),
    ({"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt", "invalid_value"),
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": [USER] * 4}, "messages", "array_above_max_length"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [USER], "chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
    ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"messages": [USER], "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs", "unsupported_parameter"),
    ({"messages": [USER], "add_generation_prompt": True, "continue_final_message": True},
     "continue_final_message", "invalid_value"),
    ({"messages": [USER], "chat_template_kwargs": [1]}, "chat_template_kwargs", "invalid_type"),
    ({"messages": [USER], "chat_template_kwargs": {"a": [[[[1]]]]}}, "chat_template_kwargs", "invalid_json"),
    ({"prompt": "x", "temperature": 1}, "temperature", "unknown_parameter"),
    ({"prompt": "x", "model": ""}, "model", "empty_string"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "code"), REFUSED, ids=[f"{row[1]}-{row[2]}" for row in REFUSED])
def test_what_cannot_be_tokenized_is_named(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_tokenize(json.dumps(body).encode(), LIMITS)
    assert (caught.value.info.param, caught.value.info.code) == (param, code)
    assert caught.value.info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)


def test_ids_of_any_size_that_json_has_are_read() -> None:
    request = parse_detokenize(b'{"model": "m", "tokens": [0, 9223372036854775807]}', LIMITS)
    assert (request.model, request.ids) == ("m", [0, 2**63 - 1])


@pytest.mark.parametrize("body", [b"{}", b'{"tokens": [-1]}', b'{"tokens": ["a"]}', b'{"tokens": [1.5]}', b"[1]"])
def test_what_are_no_ids_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_detokenize(body, LIMITS)


def test_answers_have_vllms_fields() -> None:
    assert json.loads(render_tokens([1, 2], ["a", None], 100).body) == {
        "count": 2,
        "max_model_len": 100,
        "tokens": [1, 2],
        "token_strs": ["a", None],
    }
    assert json.loads(render_tokens([], None, None).body) == {
        "count": 0,
        "max_model_len": None,
        "tokens": [],
        "token_strs": None,
    }
    assert json.loads(render_text("a\u2028").body) == {"prompt": "a\u2028"}


@pytest.mark.parametrize("count", [6, 2_000])
def test_ids_over_the_limit_are_refused(count: int) -> None:
    with pytest.raises(RequestError) as caught:
        parse_detokenize(json.dumps({"tokens": [1] * count}).encode(), LIMITS)
    assert caught.value.info.param == "tokens"
    assert "at most 5" in caught.value.info.message


def test_bodies_of_very_many_strings_are_refused() -> None:
    many = b'"model": "m", ' * LIMITS.max_strings
    with pytest.raises(RequestError, match="too many strings"):
        parse_tokenize(b"{" + many + b'"prompt": "a"}', LIMITS)
    with pytest.raises(RequestError, match="too many strings"):
        parse_detokenize(b"{" + many + b'"tokens": []}', LIMITS)
