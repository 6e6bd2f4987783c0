"""Tokenizers that are published as ranks have the ids that tiktoken gives, and hub ids lead to the local cache."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokens_vocabularies import CORPUS, byte_level, write

from extproc.config.schema import Pool
from extproc.tokens.conversion import locate
from extproc.tokens.model import ModelTokens
from extproc.tokens.rank_files import tokenizer_json
from extproc.tokens.source import TokenizerError
from extproc.tokens.tables import token_bytes

PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


def _ranks() -> dict[bytes, int]:
    """A small vocabulary: all bytes first, then what the trainer learned, in its order."""
    vocab: dict[str, int] = byte_level()["model"]["vocab"]
    tokens = [token_bytes(name) for name, _ in sorted(vocab.items(), key=lambda one: one[1])]
    single = [bytes([byte]) for byte in range(256)]
    return {token: at for at, token in enumerate([*single, *(token for token in tokens if len(token) > 1)])}


RANKS = _ranks()
SPECIAL = {"<|end|>": len(RANKS) + 3, "<｜x｜>": len(RANKS)}
REFERENCE = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens=SPECIAL)


def lines(ranks: dict[bytes, int]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())


def tiktoken_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    added = {str(at): {"content": token, "special": True} for token, at in SPECIAL.items()}
    config = {"added_tokens_decoder": added, "chat_template": "{{ messages[0].content }}<|end|>", **config}
    (folder / "small.tiktoken").write_text(lines(RANKS))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tiktoken_folder(tmp_path_factory.mktemp("ranks"), pat_str=PATTERN)
    return Tokenizer.from_str(json.dumps(tokenizer_json(folder / "small.tiktoken")))


@settings(max_examples=300)
@given(
    text=st.text()
    | st.lists(st.sampled_from([*CORPUS, "the", "a", "aa", " ", "\n", "<|end|>", "12345", "'LL"])).map("".join)
)
def test_the_ids_are_those_of_tiktoken(converted: Tokenizer, text: str) -> None:
    ids = converted.encode(text, add_special_tokens=False).ids
    assert ids == REFERENCE.encode(text, allowed_special="all")
    assert converted.decode(ids, skip_special_tokens=False) == text


async def test_a_folder_with_a_tiktoken_file_is_served(tmp_path: Path) -> None:
    folder = tiktoken_folder(tmp_path / "model", pat_str=PATTERN)
    kept = tmp_path / "kept"
    model = await ModelTokens.load(folder, converted=kept)
    ids = await model.encode("the quick 12345 naïve<|end|>", add_special_tokens=False)
    assert list(ids) == REFERENCE.encode("the quick 12345 naïve<|end|>", allowed_special="all")
    assert model.serves_with == "fastokens"
    await model.aclose()
    (made,) = kept.iterdir()
    written = made.stat().st_mtime_ns
    again = await locate(folder, kept)
    assert (again.tokenizer, made.stat().st_mtime_ns) == (made, written)


PROGRAMS = [
    f"import os\nclass T:\n    pat_str = {PATTERN!r}\n",
    f"PAT_STR: str = {PATTERN!r}\n",
    "pat_str = '|'.join([" + ", ".join(map(repr, ("a", "b"))) + "])\nraise SystemExit('run')\n",
]


@pytest.mark.parametrize(("program", "pattern"), [*zip(PROGRAMS, (PATTERN, PATTERN, "a|b"), strict=True)])
def test_the_pattern_is_read_from_the_models_program_which_is_not_run(
    tmp_path: Path, program: str, pattern: str
) -> None:
    folder = tiktoken_folder(tmp_path)
    (folder / "tokenization_small.py").write_text(program)
    (split, _) = tokenizer_json(folder / "small.tiktoken")["pre_tokenizer"]["pretokenizers"]
    assert split["pattern"]["Regex"] == pattern.replace("{1,3}+", "{1,3}")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (lines(RANKS), {}, "by which pattern"),
    (lines(RANKS), {"pat_str": r"\p{N}{1,3}+x"}, "possessive"),
    ("no rank\n", {"pat_str": "x"}, "line 1"),
    (lines(RANKS), {"pat_str": "x", "added_tokens_decoder": {"5": {"content": "<|x|>"}}}, "same number"),
]


@pytest.mark.parametrize(("text", "config", "message"), REFUSED)
async def test_ranks_that_cannot_be_used_are_refused(
    tmp_path: Path, text: str, config: dict[str, Any], message: str
) -> None:
    folder = tiktoken_folder(tmp_path / "model", **config)
    (folder / "small.tiktoken").write_text(text)
    with pytest.raises(TokenizerError, match=message):
        await locate(folder, tmp_path / "kept")


async def test_known_files_need_nothing_beside_them(tmp_path: Path) -> None:
    (tmp_path / "cl100k_base.tiktoken").write_text(lines(RANKS))
    spec = tokenizer_json(tmp_path / "cl100k_base.tiktoken")
    assert {"<|endoftext|>": 100257}.items() <= {
        token["content"]: token["id"] for token in spec["added_tokens"]
    }.items()
    (tmp_path / "qwen.tiktoken").write_text(lines(RANKS))
    assert tokenizer_json(tmp_path / "qwen.tiktoken")["normalizer"] == {"type": "NFC"}


def test_a_tekken_file_has_special_tokens_first(tmp_path: Path) -> None:
    vocab = [{"rank": at, "token_bytes": base64.b64encode(token).decode()} for token, at in RANKS.items()]
    config = {"pattern": PATTERN, "default_num_special_tokens": 5, "default_vocab_size": len(RANKS)}
    special = [
        {"rank": 0, "token_str": "<unk>", "is_control": True},
        {"rank": 1, "token_str": "<s>", "is_control": True},
    ]
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json(tmp_path / "tekken.json")))
    # The size counts special tokens, so the last five ranks are left out.
    small = {token: at for token, at in RANKS.items() if at < len(RANKS) - 5}
    reference = tiktoken.Encoding("tekken", pat_str=PATTERN, mergeable_ranks=small, special_tokens={})
    text = " ".join(CORPUS)
    assert tokenizer.encode(text).ids == [at + 5 for at in reference.encode(text)]
    assert tokenizer.encode("<s>").ids == [1]


def hub(folder: Path, snapshots: Iterable[str], **references: str) -> None:
    repository = folder / "models--acme--small"
    for commit in snapshots:
        (repository / "snapshots" / commit).mkdir(parents=True)
    for name, commit in references.items():
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / name).write_text(commit)


def pool(tokenizer: str) -> Pool:
    return Pool.model_validate({"name": "a", "models": ["m"], "workers": [], "tokenizer": tokenizer})


def test_a_hub_id_leads_to_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hub(tmp_path, ["c0ffee", "f00d"], main="c0ffee", v2="f00d")
    snapshots = tmp_path / "models--acme--small" / "snapshots"
    assert pool("hub:acme/small").tokenizer == snapshots / "c0ffee"
    assert pool("hub:acme/small@v2").tokenizer == snapshots / "f00d"
    assert pool("hub:acme/small@f00d").tokenizer == snapshots / "f00d"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with pytest.raises(ValidationError, match=r"not in the local hub cache .*home/hub.*hf download acme/small"):
        pool("hub:acme/small")


@pytest.mark.parametrize("name", ["hub:", "hub:../x", "hub:a/b/c", "hub:a/..", "hub:a/b@../../x"])
def test_what_is_no_hub_id_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a model on the hub"):
        pool(name)


async def test_a_folder_with_a_tokenizer_json_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", byte_level())
    (folder / "old.tiktoken").write_text("")
    assert (await locate(folder, None)).tokenizer == folder / "tokenizer.json"
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json, tiktoken file or tekken\.json"):
        await locate(await asyncio.to_thread(tiktokenless, tmp_path), None)


def tiktokenless(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"
