"""Archives from the network are checked before anything of them is used."""

from __future__ import annotations

import hashlib
import itertools
import stat
import threading
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.tokens import source
from extproc.tokens.source import TokenizerError, unpack_archive


def archive(*entries: tuple[str | zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as bundle:
        for name, content in entries:
            bundle.writestr(name, content)
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


GOOD = archive(("tokenizer.json", b"{}"), ("additional_chat_templates/tool_use.jinja", b"x"))


@given(cuts=st.lists(st.integers(0, len(GOOD)), max_size=8))
def test_an_archive_unpacks_the_same_from_any_pieces(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    edges = sorted({0, len(GOOD), *cuts})
    pieces = [GOOD[start:end] for start, end in itertools.pairwise(edges)]
    cache = tmp_path_factory.mktemp("cache")
    folder = unpack_archive(iter(pieces), digest(GOOD).upper(), cache)
    assert folder == cache / digest(GOOD)
    assert (folder / "tokenizer.json").read_bytes() == b"{}"
    assert (folder / "additional_chat_templates" / "tool_use.jinja").read_bytes() == b"x"
    assert list(cache.iterdir()) == [folder]


def test_the_same_archive_is_unpacked_once(tmp_path: Path) -> None:
    folder = unpack_archive(GOOD, digest(GOOD), tmp_path)
    marker = folder / "marker"
    marker.touch()
    assert unpack_archive(GOOD, digest(GOOD), tmp_path) == folder
    assert marker.exists()


def test_processes_that_unpack_at_once_agree(tmp_path: Path) -> None:
    found: list[Path] = []
    barrier = threading.Barrier(6)

    def run() -> None:
        barrier.wait(10)
        found.append(unpack_archive(GOOD, digest(GOOD), tmp_path))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {tmp_path / digest(GOOD)}
    assert len(found) == 6
    assert list(tmp_path.iterdir()) == [tmp_path / digest(GOOD)]


def _of_kind(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (mode | 0o644) << 16
    return info


def _encrypted() -> bytes:
    data = bytearray(archive(("tokenizer.json", b"{}")))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    data[data.index(b"PK\x03\x04") + 6] |= 1
    return bytes(data)


def _damaged() -> bytes:
    data = bytearray(archive(("tokenizer.json", b"content " * 100)))
    data[len(b"tokenizer.json") + 30 + 4] ^= 0xFF
    return bytes(data)


ATTACKS: list[tuple[str, Callable[[], bytes], str]] = [
    ("parent folder", lambda: archive(("../evil", b"x")), "could leave its folder"),
    ("parent folder inside", lambda: archive(("a/../../evil", b"x")), "could leave its folder"),
    ("absolute name", lambda: archive(("/etc/evil", b"x")), "could leave its folder"),
    ("backslashes", lambda: archive(("..\\evil", b"x")), "could leave its folder"),
    ("drive", lambda: archive(("C:evil", b"x")), "could leave its folder"),
    ("dot", lambda: archive(("./evil", b"x")), "could leave its folder"),
    ("empty part", lambda: archive(("a//evil", b"x")), "could leave its folder"),
    ("parent as a folder", lambda: archive(("../", b"")), "could leave its folder"),
    ("long name", lambda: archive(("n" * 300, b"x")), "could leave its folder"),
    ("symbolic link", lambda: archive((_of_kind("tokenizer.json", stat.S_IFLNK), b"/etc/passwd")), "link or a device"),
    ("fifo", lambda: archive((_of_kind("tokenizer.json", stat.S_IFIFO), b"")), "link or a device"),
    ("same name twice", lambda: archive(("Tokenizer.json", b"a"), ("tokenizer.json", b"b")), "twice"),
    ("file as folder", lambda: archive(("a", b"x"), ("a/b", b"y")), "cannot"),
    ("many entries", lambda: archive(*((f"f{at}", b"") for at in range(300))), "entries"),
    ("no archive", lambda: b"not a zip file", "cannot be unpacked"),
    ("cut short", lambda: GOOD[:-10], "cannot be unpacked"),
    ("empty", lambda: b"", "cannot be unpacked"),
    ("encrypted", _encrypted, "cannot be unpacked"),
    ("damaged inside", _damaged, "cannot be unpacked"),
]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("attack", "build", "message"), ATTACKS, ids=[attack for attack, _, _ in ATTACKS])
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, attack: str, build: Callable[[], bytes], message: str
) -> None:
    data = build()
    cache = tmp_path / "outer" / "cache"
    with pytest.raises(TokenizerError, match=message):
        unpack_archive(data, digest(data), cache)
    assert list(cache.iterdir()) == []
    assert [path.name for path in tmp_path.rglob("*")] == ["outer", "cache"]


def test_a_bomb_is_stopped_by_what_really_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_UNPACKED_BYTES", 3 << 20)
    data = archive(("a", bytes(2 << 20)), ("b", bytes(2 << 20)))
    assert len(data) < 10_000
    with pytest.raises(TokenizerError, match="unpacks to more than"):
        unpack_archive(data, digest(data), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_endless_archive_is_not_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_ARCHIVE_BYTES", 1000)
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(300)

    with pytest.raises(TokenizerError, match="larger than 1000 bytes"):
        unpack_archive(endless(), "0" * 64, tmp_path)  # type: ignore[arg-type]
    assert taken == 4


@pytest.mark.parametrize("wrong", ["", "abc", "../" + "0" * 61, "g" * 64, "0" * 65])
def test_a_digest_that_is_none_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(TokenizerError, match="without a SHA-256"):
        unpack_archive(GOOD, wrong, tmp_path)


def test_an_archive_with_another_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="damaged"):
        unpack_archive(GOOD, "0" * 64, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(TokenizerError, match="cannot write into the tokenizer cache"):
        unpack_archive(GOOD, digest(GOOD), blocked / "cache")
