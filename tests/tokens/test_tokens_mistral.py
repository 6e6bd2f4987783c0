"""A folder with Mistral's tekken.json has the prompts of Mistral's own encoder."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from extproc.ir import ChatRequest, ErrorKind, RequestError, Text, Turn
from extproc.tokens.conversation import Conversation, TemplateError
from extproc.tokens.mistral import MistralEncoder
from extproc.tokens.model import ModelTokens
from extproc.tokens.source import TokenizerError
from extproc.tokens.tekken import TekkenPrompts
from extproc.tokens.tokenizer import InvalidTextError

TEKKEN = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
CALL = {"id": "c12345678", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def request(*turns: tuple[Any, str], **options: Any) -> ChatRequest:
    return ChatRequest(model="m", turns=tuple(Turn(role, (Text(text),)) for role, text in turns), **options)


@pytest.fixture(scope="module")
def reference() -> MistralTokenizer:
    return MistralTokenizer.from_file(str(TEKKEN), mode=ValidationMode.test)


TALKS: list[list[tuple[str, str]]] = [
    [("user", "hi [INST] x </s> naïve 你好 \U0001f600")],
    [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "1234567 c")],
]


async def test_a_folder_with_a_tekken_file_is_served(tmp_path: Path, reference: MistralTokenizer) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tekken.json").symlink_to(TEKKEN)
    model = await ModelTokens.load(folder, converted=tmp_path / "kept", special_tokens_in_content="escape")
    for talk in TALKS:
        prompt = model.prompt(request(*talk))
        assert isinstance(prompt, Awaitable)
        plain = ChatCompletionRequest.from_openai(messages=[{"role": role, "content": text} for role, text in talk])
        assert list((await prompt).ids) == reference.encode_chat_completion(plain).tokens
    text = "naïve 1234567 你好, doesn't it?\n\n  \U0001f600"
    encoded = list(await model.encode(text, add_special_tokens=False))
    assert encoded == reference.instruct_tokenizer.tokenizer.encode(text, bos=False, eos=False)
    detokenizer = model.detokenizer(True)
    assert detokenizer.feed(encoded) + detokenizer.finish() == text
    assert model.eos_ids == {2}
    for wrong, words in (
        (request(("user", "x"), ("assistant", "y")), "last role"),
        (request(("user", "x"), add_generation_prompt=False), "always begin the answer"),
        (request(("user", "\ud800")), "lone surrogate"),
        (request(), "empty"),
    ):
        prompt = model.prompt(wrong)
        assert isinstance(prompt, Awaitable)
        with pytest.raises(RequestError, match=words) as caught:
            await prompt
        assert caught.value.info.kind is ErrorKind.INVALID_REQUEST
    await model.aclose()


async def test_tool_calls_and_continued_answers_are_those_of_the_encoder(reference: MistralTokenizer) -> None:
    prompts = await TekkenPrompts.load(TEKKEN)
    calls: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c12345678", "content": "r"},
    ]
    broken = {**CALL, "function": {"name": "f", "arguments": '{"a'}}
    for messages in (calls, [calls[0], {**calls[1], "tool_calls": [broken]}, calls[2]]):
        ids = await prompts.encode(Conversation(messages=messages, tools=[TOOL]))
        plain = ChatCompletionRequest.from_openai(
            messages=[{key: value for key, value in one.items() if value is not None} for one in messages], tools=[TOOL]
        )
        assert list(ids) == reference.encode_chat_completion(plain).tokens
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so far"}]
    ids = await prompts.encode(Conversation(messages=talk, add_generation_prompt=False, continue_final_message=True))
    plain = ChatCompletionRequest.from_openai(messages=talk, continue_final_message=True)
    assert list(ids) == reference.encode_chat_completion(plain).tokens
    with pytest.raises(TemplateError, match="exclude each other"):
        await prompts.encode(Conversation(messages=talk, continue_final_message=True))
    image = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}
    with pytest.raises(TemplateError, match="only parts of type text"):
        await prompts.encode(Conversation(messages=[{"role": "user", "content": [image]}]))
    with pytest.raises(InvalidTextError):
        await prompts.encode(Conversation(messages=[{"role": "user", "content": "\ud800"}]))
    await prompts.aclose()


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mistral_common.protocol.instruct.request", None)
    with pytest.raises(TokenizerError, match=r"llm-extproc\[mistral\]"):
        MistralEncoder(TEKKEN)


async def test_a_wrong_file_is_refused_at_load(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        await TekkenPrompts.load(tmp_path / "tekken.json")
    with pytest.raises(TokenizerError, match="not a tekken vocabulary"):
        await ModelTokens.load(tmp_path, converted=tmp_path / "kept")
