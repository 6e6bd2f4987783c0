"""Where a tokenizer's files come from: a folder, a single tokenizer.json, or a zip archive sent by a worker.

An archive comes from the network and is untrusted: its digest, names, kinds, count and sizes are checked before
anything of it can be found in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = [
    "MAX_ARCHIVE_BYTES",
    "TokenizerError",
    "locate_tokenizer",
    "read_json_object",
    "read_text",
    "unpack_archive",
]

MAX_ARCHIVE_BYTES = 128 << 20
MAX_UNPACKED_BYTES = 512 << 20  # the largest published tokenizer folders are under 100 MB
MAX_ENTRIES = 256
MAX_JSON_BYTES = 256 << 20
MAX_SIDE_FILE_BYTES = 16 << 20  # templates and configurations
_PIECE_BYTES = 1 << 20
_DIRECTORY_ENTRY = b"PK\x01\x02"
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError)
_DIGEST = re.compile(r"[0-9a-f]{64}")


class TokenizerError(Exception):
    """A tokenizer, its files or its process cannot be used; the message says what the operator can change."""


def locate_tokenizer(path: Path) -> Path:
    """The tokenizer.json of a folder, or the file itself. Raises TokenizerError where there is none."""
    if path.is_dir():
        candidate = path / "tokenizer.json"
        if candidate.is_file():
            return candidate
        raise TokenizerError(
            f"no tokenizer.json, tiktoken file or tekken.json in the folder {path}: "
            "name a folder that has one, or the file"
        )
    if path.is_file():
        return path
    raise TokenizerError(f"no such tokenizer folder or file: {path}")


def read_text(path: Path, max_bytes: int = MAX_SIDE_FILE_BYTES) -> str | None:
    """A file's text, or None where there is no such file. Raises TokenizerError where it cannot be read."""
    try:
        if path.stat().st_size > max_bytes:
            raise TokenizerError(f"{path} is larger than {max_bytes} bytes")
        return path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"cannot read {path}: {error}") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is no such file. Raises TokenizerError on anything else."""
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} does not hold a JSON object")
    return value


def unpack_archive(data: bytes | Iterable[bytes], sha256: str, cache_dir: Path) -> Path:
    """Unpack a tokenizer archive (zip, whole or in pieces) once and return its folder below `cache_dir`.

    `sha256` is the archive's digest in hex as its sender states it, and names the folder. The folder appears complete
    or not at all, also when several processes unpack the same archive at once.
    Raises TokenizerError where digest, names, sizes or the archive itself are wrong. Blocks: call it in a thread.
    """
    digest = sha256.strip().lower()
    if not _DIGEST.fullmatch(digest):
        raise TokenizerError(f"the tokenizer archive came without a SHA-256 digest (got {sha256[:80]!r})")
    archive = _collect(data)
    actual = hashlib.sha256(archive).hexdigest()
    if actual != digest:
        raise TokenizerError(f"the tokenizer archive is damaged: its SHA-256 is {actual}, its sender says {digest}")
    folder = cache_dir / digest
    if folder.is_dir():
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o750)
        scratch = Path(tempfile.mkdtemp(prefix=f".{digest[:16]}-", dir=cache_dir))
    except OSError as error:
        raise TokenizerError(f"cannot write into the tokenizer cache {cache_dir}: {error}") from error
    try:
        _extract(archive, scratch)
        scratch.rename(folder)
    except OSError as error:
        # Another process was first: a folder that is not empty is never replaced by a rename.
        if not folder.is_dir():
            raise TokenizerError(f"cannot write into the tokenizer cache {cache_dir}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _collect(data: bytes | Iterable[bytes]) -> bytes:
    pieces = [data] if isinstance(data, bytes) else data
    whole = bytearray()
    for piece in pieces:
        if len(whole) + len(piece) > MAX_ARCHIVE_BYTES:
            raise TokenizerError(f"the tokenizer archive is larger than {MAX_ARCHIVE_BYTES} bytes")
        whole += piece
    return bytes(whole)


def _extract(archive: bytes, folder: Path) -> None:
    # Counted before the directory is parsed, which costs half a kilobyte of memory an entry.
    if archive.count(_DIRECTORY_ENTRY) > MAX_ENTRIES:
        raise TokenizerError(f"the tokenizer archive has more than {MAX_ENTRIES} entries")
    try:
        with zipfile.ZipFile(BytesIO(archive)) as bundle:
            entries = bundle.infolist()
            budget = MAX_UNPACKED_BYTES
            seen: set[str] = set()
            for entry in entries:
                name = _safe_name(entry)
                if name is None:
                    continue
                if name.lower() in seen:
                    raise TokenizerError(f"the tokenizer archive holds {name!r} twice")
                seen.add(name.lower())
                budget = _extract_entry(bundle, entry, folder / name, budget)
    except _ARCHIVE_ERRORS as error:
        raise TokenizerError(f"the tokenizer archive cannot be unpacked: {error}") from error


def _safe_name(entry: zipfile.ZipInfo) -> str | None:
    """The entry's relative name; None for a folder. Raises TokenizerError on names that could leave the folder."""
    name = entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise TokenizerError(f"the tokenizer archive holds {name!r}, which is a link or a device")
    parts = name.rstrip("/").split("/")
    if (
        not name
        or len(name) > 255
        or name.startswith("/")
        or any(part in ("", ".", "..") for part in parts)
        or any(character in name for character in ("\\", ":", "\0"))
    ):
        raise TokenizerError(f"the tokenizer archive holds the name {name!r}, which could leave its folder")
    return None if entry.is_dir() else str(PurePosixPath(*parts))


def _extract_entry(bundle: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, budget: int) -> int:
    """Write one entry and return what is left of `budget` (bytes). Counts what really comes, not what it declares."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with bundle.open(entry) as source, os.fdopen(descriptor, "wb") as sink:
        while piece := source.read(_PIECE_BYTES):
            budget -= len(piece)
            if budget < 0:
                raise TokenizerError(f"the tokenizer archive unpacks to more than {MAX_UNPACKED_BYTES} bytes")
            sink.write(piece)
    return budget
