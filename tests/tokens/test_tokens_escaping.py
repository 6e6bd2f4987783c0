"""With `escape`, no text of a client becomes a control token, and the template's own stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokens_vocabularies import byte_level, wordpiece

from extproc.tokens.escaping import Escaper

TOKENS = ("<|s|>", "<|e|>", "<a<b>", "<b>", "[SEP]", "aba")
LETTERS = st.lists(st.sampled_from([*TOKENS, *"<|se>ab[]SEP \n", "\ue000", "\ue001"]), max_size=12).map("".join)


def _template(texts: list[str]) -> str:
    """Tokens around the texts, and texts beside one another and beside halves of tokens."""
    return "<|s|>" + "<|e|>".join(texts) + "".join(texts) + "<" + texts[0].strip() + ">" + texts[-1] + "[SEP]"


@settings(max_examples=1000)
@given(st.lists(LETTERS, min_size=1, max_size=4))
def test_only_tokens_of_the_template_are_left_in_the_pieces(texts: list[str]) -> None:
    escaper = Escaper(TOKENS)
    marked = escaper.for_request(texts)
    rendered = _template([text if marked is None else marked.value(text) for text in texts])
    pieces = [rendered] if marked is None else marked.pieces(rendered)
    assert "".join(pieces) == _template(texts)
    assert sum(escaper.count(piece) for piece in pieces) == len(texts) + 1


@pytest.mark.parametrize("text", ["plain words", "a | b < c", "it's 12 > 11", "你好"])
def test_ordinary_text_is_not_touched(text: str) -> None:
    assert Escaper(("<|im_start|>", "<|im_end|>")).for_request([{"role": "user", "content": text}]) is None


def test_a_text_that_holds_marks_itself_keeps_them() -> None:
    texts = ["<|s|>\ue000\ue001"]
    marked = Escaper(TOKENS).for_request(texts)
    assert marked is not None
    assert marked.mark == "\ue002"
    assert marked.pieces(marked.value(texts[0])) == ["<", "|s|>\ue000\ue001"]


def test_values_of_any_form_and_odd_keys_are_marked_but_not_words_that_templates_know() -> None:
    value: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "x<|s|>"}], "n": 1, "<|s|>": None}
    marked = Escaper(TOKENS).for_request([value])
    assert marked is not None
    assert marked.value(value) == {
        "role": "user",
        "content": [{"type": "text", "text": f"x<{marked.mark}|s|>"}],
        "n": 1,
        f"<{marked.mark}|s|>": None,
    }


def test_a_type_in_a_tools_schema_is_marked_like_any_text_of_the_client() -> None:
    value: dict[str, Any] = {"type": "<|s|>", "properties": {"role": {"type": "string"}}}
    marked = Escaper(TOKENS).for_request([value])
    assert marked is not None
    assert marked.value(value) == {"type": f"<{marked.mark}|s|>", "properties": {"role": {"type": "string"}}}


@pytest.mark.parametrize("build", [byte_level, wordpiece])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_reference_makes_no_control_ids_of_clients_texts(build: Any, data: st.DataObject) -> None:
    reference = tokenizers.Tokenizer.from_str(json.dumps(build()))
    added = {token.content: at for at, token in reference.get_added_tokens_decoder().items()}
    pieces = st.sampled_from([*added, *(token[:3] for token in added), *(token[3:] for token in added), "x", " "])
    text = data.draw(st.lists(pieces, max_size=8).map("".join))
    escaper = Escaper(added)
    marked = escaper.for_request([text])
    cut = [text] if marked is None else marked.pieces(marked.value(text))
    ids = [at for piece in cut for at in reference.encode(piece, add_special_tokens=False).ids]
    # [UNK] is also what stands for unknown words.
    assert not {at for token, at in added.items() if token != "[UNK]"}.intersection(ids)
