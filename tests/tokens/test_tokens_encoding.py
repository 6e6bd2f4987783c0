"""Ids are the reference library's, whichever library or process encodes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tokens_vocabularies import KINDS, byte_fallback_unstripped, byte_level, deepseek_folder, wordpiece, write

from extproc.tokens.inspection import Inspection, inspect_tokenizer
from extproc.tokens.remote import RemoteEncoder
from extproc.tokens.source import TokenizerError
from extproc.tokens.tokenizer import InvalidTextError, Tokenizer

FAST_KINDS = ["byte_level", "byte_fallback_legacy", "byte_fallback_unstripped", "deepseek"]
REFERENCE_KINDS = ["byte_fallback_metaspace", "unigram", "unigram_byte_fallback", "wordpiece", "without_decoder"]
TEXTS = [
    "",
    "Hello, world! It's 12345 times <|im_start|>faster<|im_end|> 你好 😀 naïve",
    "  spaces \n\n\t and\r\nlines  ",
    "</s><s>[CLS]<tool>▁extra▁<é>",
    "\x00\x01\u200d\U000e0041\U0010ffff",
]


class Loaded:
    """A tokenizer on a loop of its own, beside the reference."""

    def __init__(self, kind: str, folder: Path) -> None:
        if kind == "deepseek":
            folder = deepseek_folder()
        else:
            write(folder, KINDS[kind]())
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.tokenizer = self.runner.run(Tokenizer.load(folder))
        self.reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.reference.no_truncation()
        self.reference.no_padding()

    def expected(self, text: str) -> list[int]:
        return list(self.reference.encode(text, add_special_tokens=False).ids)

    def encode_async(self, text: str) -> list[int]:
        return list(self.runner.run(self.tokenizer.encode_async(text)))

    def close(self) -> None:
        self.runner.run(self.tokenizer.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    @functools.cache
    def load(kind: str) -> Loaded:
        opened.append(Loaded(kind, tmp_path_factory.mktemp(kind)))
        return opened[-1]

    opened: list[Loaded] = []
    yield load
    for one in opened:
        one.close()


@pytest.mark.parametrize("kind", FAST_KINDS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60) | st.sampled_from(TEXTS))
def test_the_fast_library_gives_the_reference_ids(loaded: Any, kind: str, text: str) -> None:
    one = loaded(kind)
    assert one.tokenizer.serves_with == "fastokens"
    ids = one.tokenizer.encode(text)
    assert (one.encode_async(text) if ids is None else list(ids)) == one.expected(text)


@pytest.mark.parametrize("kind", REFERENCE_KINDS)
@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60) | st.sampled_from(TEXTS))
def test_what_the_fast_library_cannot_load_is_encoded_by_the_child(loaded: Any, kind: str, text: str) -> None:
    one = loaded(kind)
    assert one.tokenizer.serves_with == "tokenizers"
    assert one.tokenizer.encode(text) is None
    assert one.encode_async(text) == one.expected(text)


@pytest.mark.parametrize(("kind", "lines"), [("deepseek", 20_000), ("wordpiece", 2_000)])
def test_a_long_text_leaves_the_loop_and_keeps_its_ids(loaded: Any, kind: str, lines: int) -> None:
    one = loaded(kind)
    text = "A long text with 数字 12345 and naïve words, again and again.\n" * lines
    assert one.tokenizer.encode(text) is None
    assert one.encode_async(text) == one.expected(text)


@pytest.mark.parametrize("kind", ["deepseek", "wordpiece"])
def test_texts_encoded_at_once_do_not_mix(loaded: Any, kind: str) -> None:
    one = loaded(kind)
    texts = [f"text {at} " * (1 + at % 5 * 200) for at in range(40)]

    async def together() -> list[list[int]]:
        return [list(ids) for ids in await asyncio.gather(*map(one.tokenizer.encode_async, texts))]

    assert one.runner.run(together()) == [one.expected(text) for text in texts]


@pytest.mark.parametrize("kind", ["deepseek", "wordpiece"])
def test_a_lone_surrogate_is_a_clear_error(loaded: Any, kind: str) -> None:
    one = loaded(kind)
    with pytest.raises(InvalidTextError, match="lone surrogate"):
        one.encode_async("half \ud800 pair")
    if kind == "deepseek":
        with pytest.raises(InvalidTextError, match="lone surrogate"):
            one.tokenizer.encode("half \ud800 pair")


async def test_truncation_and_padding_of_the_file_do_not_touch_prompts(tmp_path: Path) -> None:
    spec = byte_level()
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = await Tokenizer.load(write(tmp_path, spec))
    try:
        text = "the quick ſlow brown fox jumps"
        bare = tokenizers.Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))
        expected = bare.encode(text).ids
        assert len(expected) > 8
        assert list(tokenizer.encode(text) or ()) == expected
        assert list(await tokenizer.encode_async(text)) == expected
    finally:
        await tokenizer.aclose()
    spec["pre_tokenizer"] = None  # now the child serves
    tokenizer = await Tokenizer.load(write(tmp_path, spec))
    try:
        bare = tokenizers.Tokenizer.from_str(json.dumps({**spec, "truncation": None, "padding": None}))
        assert tokenizer.serves_with == "tokenizers"
        assert list(await tokenizer.encode_async(text)) == bare.encode(text).ids
    finally:
        await tokenizer.aclose()


async def test_a_text_that_the_fast_library_refuses_goes_to_the_child(tmp_path: Path) -> None:
    spec = byte_level()
    vocabulary = spec["model"]["vocab"]
    # Without the letter that stands for byte 0x04 the fast library raises where the reference drops the byte.
    last = max(vocabulary, key=vocabulary.get)
    gap = vocabulary.pop("Ą")
    spec["model"]["merges"] = [pair for pair in spec["model"]["merges"] if last != "".join(pair)]
    vocabulary[last] = gap
    spec["added_tokens"] = []
    folder = write(tmp_path, spec)
    tokenizer = await Tokenizer.load(folder)
    try:
        expected = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a\x04b").ids
        assert tokenizer.serves_with == "fastokens"
        assert tokenizer.encode("a\x04b") is None
        assert list(await tokenizer.encode_async("a\x04b")) == expected
    finally:
        await tokenizer.aclose()


def _inspected(folder: Path, spec: dict[str, Any]) -> Inspection:
    result = inspect_tokenizer(write(folder, spec) / "tokenizer.json")
    assert isinstance(result, Inspection)
    return result


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def test_rules_of_the_file_refuse_the_fast_library(tmp_path: Path) -> None:
    spec = byte_level()
    assert _inspected(tmp_path, spec).refusal is None
    assert "counted repetition" in (
        _inspected(tmp_path, {**spec, "pre_tokenizer": _split(r"\p{N}{1,3}+|\s+|\S")}).refusal or ""
    )
    assert "without a pre-tokenizer" in (_inspected(tmp_path, {**spec, "pre_tokenizer": None}).refusal or "")
    random_merges = {**spec, "model": {**spec["model"], "dropout": 0.5}}
    assert "at random" in (_inspected(tmp_path, random_merges).refusal or "")


def test_tokens_of_characters_that_are_no_tokens_refuse_the_fast_library(tmp_path: Path) -> None:
    spec = byte_fallback_unstripped(alphabet="abcdefx041")  # no < and no >, as in <0x41>
    assert "no tokens themselves" in (_inspected(tmp_path, spec).refusal or "")


def test_added_tokens_numbered_with_a_gap_refuse_the_fast_library(tmp_path: Path) -> None:
    spec = byte_level()
    spec["added_tokens"][-1]["id"] += 100
    assert "added tokens differently" in (_inspected(tmp_path, spec).refusal or "")


async def test_texts_with_a_long_s_go_to_the_child_where_contractions_ignore_case(tmp_path: Path) -> None:
    spec = {**byte_level(), "pre_tokenizer": _split(r"(?i:'s|'t|'re)|\s+|\p{L}+|\p{N}{1,3}|[^\s\p{L}\p{N}]+")}
    tokenizer = await Tokenizer.load(write(tmp_path, spec))
    try:
        assert tokenizer.serves_with == "fastokens"
        assert tokenizer.encode("it's") is not None
        assert tokenizer.encode("it'ſ") is None
        assert (
            list(await tokenizer.encode_async("it'ſ"))
            == tokenizers.Tokenizer.from_str(json.dumps(spec)).encode("it'ſ").ids
        )
    finally:
        await tokenizer.aclose()


BROKEN_FILES: list[tuple[str, str]] = [
    ("no JSON", "{"),
    ("no tokenizer", "{}"),
    ("no model type", '{"model": {"type": "Magic", "vocab": {}}}'),
    ("merges of unknown tokens", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}'),
    ("no text", "\x80"),
]


@pytest.mark.parametrize(("what", "content"), BROKEN_FILES, ids=[what for what, _ in BROKEN_FILES])
async def test_a_broken_file_is_a_clear_error(tmp_path: Path, what: str, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        await Tokenizer.load(tmp_path)


async def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json, .* in the folder"):
        await Tokenizer.load(tmp_path)
    with pytest.raises(TokenizerError, match="no such tokenizer"):
        await Tokenizer.load(tmp_path / "absent")


@pytest.fixture
def remote_file(tmp_path: Path) -> Path:
    return write(tmp_path, wordpiece()) / "tokenizer.json"


def _remote(file: Path) -> RemoteEncoder:
    result = inspect_tokenizer(file)
    assert isinstance(result, Inspection)
    return RemoteEncoder(file, result.digest)


async def test_a_child_that_died_is_started_again(remote_file: Path) -> None:
    remote = _remote(remote_file)
    try:
        ids = await remote.encode(b"the quick")
        first = remote.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await remote.encode(b"the quick") == ids
        assert remote.pid not in (None, first)
    finally:
        await remote.aclose()


async def test_a_text_that_a_dying_child_held_is_encoded_by_the_next(remote_file: Path) -> None:
    remote = _remote(remote_file)
    try:
        ids = await remote.encode(b"the quick")
        first = remote.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.create_task(remote.encode(b"the quick"))
        await asyncio.sleep(0)  # the request is written before the first wait
        os.kill(first, signal.SIGKILL)
        assert await waiting == ids
    finally:
        await remote.aclose()


async def test_a_child_that_dies_on_each_try_is_a_clear_error(
    remote_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = _remote(remote_file)
    running = remote._running
    stopped: list[int] = []

    async def stopped_then_killed() -> Any:
        """Stopped before it gets the text, killed once the text is written."""
        child = await running()
        stopped.append(child.process.pid)
        os.kill(child.process.pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_soon(os.kill, child.process.pid, signal.SIGKILL)
        return child

    monkeypatch.setattr(remote, "_running", stopped_then_killed)
    try:
        with pytest.raises(TokenizerError, match="died twice"):
            await remote.encode(b"poison")
        assert len(set(stopped)) == 2
        monkeypatch.undo()
        assert await remote.encode(b"the quick")
    finally:
        await remote.aclose()


async def test_a_file_changed_after_the_load_is_not_used(remote_file: Path) -> None:
    remote = _remote(remote_file)
    with remote_file.open("a") as file:
        file.write("\n")
    with pytest.raises(TokenizerError, match="changed after it was loaded"):
        await remote.encode(b"the quick")
    await remote.aclose()


async def test_a_caller_that_gives_up_does_not_disturb_others(remote_file: Path) -> None:
    remote = _remote(remote_file)
    try:
        ids = await remote.encode(b"the quick")
        gone = asyncio.create_task(remote.encode(b"word " * 100_000))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await remote.encode(b"the quick") == ids
    finally:
        await remote.aclose()


async def test_a_closed_encoder_refuses_and_its_child_is_gone(remote_file: Path) -> None:
    remote = _remote(remote_file)
    await remote.start()
    await remote.aclose()
    assert remote.pid is None
    with pytest.raises(TokenizerError, match="closed"):
        await remote.encode(b"x")


_PARENT = """
import asyncio, sys
from pathlib import Path
from extproc.tokens.tokenizer import Tokenizer

async def main():
    tokenizer = await Tokenizer.load(Path(sys.argv[1]))
    assert tokenizer.serves_with == "tokenizers"
    print("loaded", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_the_child_ends_when_its_parent_is_killed(remote_file: Path) -> None:
    command = [sys.executable, "-c", _PARENT, str(remote_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"loaded\n"
        parent.kill()
        # The child holds the same standard error: its end is reached when both are gone.
        parent.communicate(timeout=30)


def test_serving_with_the_fast_library_never_imports_the_reference(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    script = """
import asyncio, sys
from pathlib import Path
from extproc.tokens.tokenizer import Tokenizer
from extproc.tokens.detokenizer import DetokenizerTable

async def main():
    tokenizer = await Tokenizer.load(Path(sys.argv[1]))
    ids = tokenizer.encode("the quick brown fox")
    text = DetokenizerTable(tokenizer.inspection.table).detokenizer(True).feed(ids)
    await tokenizer.aclose()
    print(text, "tokenizers" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "the quick brown fox False\n"
