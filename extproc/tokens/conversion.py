"""From where a tokenizer is named to be to a tokenizer.json: what comes in another form is converted once and kept.

Converting takes seconds of CPU, so it runs in a child process: `python -m extproc.tokens.conversion FILE FOLDER`
writes one JSON object to standard output, with the `path` in FOLDER or an `error`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from extproc.tokens.rank_files import TEKKEN, find_rank_file, tokenizer_json
from extproc.tokens.source import TokenizerError, locate_tokenizer

__all__ = ["Located", "locate"]

_COMMAND = (sys.executable, "-P", "-m", "extproc.tokens.conversion")
_TIMEOUT_S = 120.0
_FORM = b"1"  # changes when the conversion does
_PIPE = asyncio.subprocess.PIPE


class Located(Struct, frozen=True):
    """A model's files."""

    folder: Path | None  # None for a file alone
    tokenizer: Path  # a tokenizer.json
    tekken: Path | None = None  # the file of Mistral's that the tokenizer.json was made from


async def locate(path: Path, converted: Path | None) -> Located:
    """Of a folder or a file; `converted` keeps what had to be converted. Raises TokenizerError."""
    located, ranks = await asyncio.to_thread(_look, path)
    if ranks is None:
        return located
    if converted is None:
        raise TokenizerError(f"{ranks} must be converted, and there is no folder to keep the result in")
    made = await _convert(ranks, converted)
    return Located(located.folder, made, ranks if ranks.name == TEKKEN else None)


def _look(path: Path) -> tuple[Located, Path | None]:
    """What is there, and the file that has to be converted."""
    folder = path if path.is_dir() else None
    ranks: Path | None
    if folder is not None:
        ranks = None if (folder / "tokenizer.json").is_file() else find_rank_file(folder)
    else:
        ranks = path if path.is_file() and (path.name == TEKKEN or path.suffix in (".tiktoken", ".model")) else None
    return Located(folder, locate_tokenizer(path) if ranks is None else ranks), ranks


async def _convert(ranks: Path, converted: Path) -> Path:
    try:
        process = await asyncio.create_subprocess_exec(*_COMMAND, str(ranks), str(converted), stdout=_PIPE)
    except OSError as error:
        raise TokenizerError(f"cannot start a process that converts {ranks}: {error}") from error
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answer, _ = await process.communicate()
    except TimeoutError:
        raise TokenizerError(f"converting {ranks} took longer than {_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        result = json.loads(answer)
    except ValueError:
        raise TokenizerError(f"the process that converts {ranks} ended with status {process.returncode}") from None
    if "error" in result:
        raise TokenizerError(result["error"])
    return Path(result["path"])


def _convert_here(ranks: Path, converted: Path) -> Path:
    """The tokenizer.json made of the file, which appears complete or not at all. Raises TokenizerError."""
    digest = hashlib.sha256(_FORM)
    try:
        for source in (ranks, ranks.parent / "tokenizer_config.json", *sorted(ranks.parent.glob("tokenization_*.py"))):
            if source.is_file():
                digest.update(hashlib.sha256(source.read_bytes()).digest())
        digest.update(ranks.name.encode())
        target = converted / f"{digest.hexdigest()}.tokenizer.json"
        if target.is_file():
            return target
        text = json.dumps(tokenizer_json(ranks), ensure_ascii=False)
        converted.mkdir(parents=True, exist_ok=True, mode=0o750)
        descriptor, scratch = tempfile.mkstemp(dir=converted)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as sink:
                sink.write(text)
            os.replace(scratch, target)
        except BaseException:
            os.unlink(scratch)
            raise
    except OSError as error:
        raise TokenizerError(f"cannot convert {ranks} into {converted}: {error}") from error
    return target


def main(arguments: list[str]) -> None:
    """Entry point; `arguments` as in the module's text."""
    try:
        result = {"path": str(_convert_here(Path(arguments[0]), Path(arguments[1])))}
    except TokenizerError as error:
        result = {"error": str(error)}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
