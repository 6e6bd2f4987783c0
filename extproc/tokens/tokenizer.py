"""Text to token ids, exactly as the reference library encodes them, without stalling the event loop.

Short texts are encoded at once by the fast library where it is exact. Long ones go to a few warmed threads, and texts
or whole tokenizers that only the reference library encodes rightly go to its child process.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from extproc.tokens.inspection import Inspection
from extproc.tokens.remote import RemoteEncoder, run_inspection
from extproc.tokens.source import TokenizerError, locate_tokenizer

__all__ = ["InvalidTextError", "Tokenizer"]

_INLINE_BUDGET_S = 0.002
_THREADS = 2  # each keeps 17 to 34 MB for the fast library, and its first encode costs 25 to 170 ms
_WARM_TIMEOUT_S = 30.0  # only ever reached when the load was given up between its two threads
_WARM_TEXT = "Warm up: 1234 tokens, café, 你好, 😀!\n"
_log = logging.getLogger(__name__)


class InvalidTextError(ValueError):
    """A text that is not Unicode: it holds a lone surrogate, which JSON can write and UTF-8 cannot."""

    def __init__(self) -> None:
        super().__init__("the text holds a lone surrogate (half of a \\ud800-\\udfff pair), which is not valid Unicode")


class Tokenizer:
    """One tokenizer.json, loaded. Belongs to one event loop; close it to end its child and its threads."""

    def __init__(self, inspection: Inspection, remote: RemoteEncoder, fast: _FastEncoder | None) -> None:
        """Use `load`."""
        self.inspection = inspection
        self._remote = remote
        self._fast = fast
        self._suspects = inspection.suspect_characters
        self._inline_characters = -1 if fast is None else fast.inline_characters

    @classmethod
    async def load(cls, path: Path) -> Tokenizer:
        """From a folder with a tokenizer.json, or the file itself. Raises TokenizerError."""
        file = locate_tokenizer(path)
        inspection = await run_inspection(file)
        remote = RemoteEncoder(file, inspection.digest)
        fast: _FastEncoder | None = None
        if inspection.refusal is None:
            fast = await _FastEncoder.load(file, inspection.digest)
        else:
            await remote.start()
        tokenizer = cls(inspection, remote, fast)
        why = inspection.refusal or "identical ids on all probes"
        _log.info("%s is served with %s: %s", file, tokenizer.serves_with, why)
        return tokenizer

    @property
    def serves_with(self) -> Literal["fastokens", "tokenizers"]:
        """The library that encodes most texts."""
        return "tokenizers" if self._fast is None else "fastokens"

    def encode(self, text: str) -> list[int] | None:
        """The ids, without special tokens added; None where `encode_async` has to do it.

        Raises InvalidTextError.
        """
        if len(text) > self._inline_characters:
            return None
        for character in self._suspects:
            if character in text:
                return None
        try:
            return self._fast.encode(text).ids  # type: ignore[union-attr, no-any-return]
        except UnicodeEncodeError:
            raise InvalidTextError from None
        except ValueError:  # the fast library cannot encode this text
            return None

    async def encode_async(self, text: str) -> array[int]:
        """The ids, without special tokens added, of any text. Raises InvalidTextError, TokenizerError."""
        packed: bytes | None = None
        fast = self._fast
        if fast is not None and not any(character in text for character in self._suspects):
            packed = await fast.encode_in_thread(text)
        if packed is None:
            try:
                data = text.encode()
            except UnicodeEncodeError:
                raise InvalidTextError from None
            packed = await self._remote.encode(data)
        ids = array("I")
        ids.frombytes(packed)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids

    async def aclose(self) -> None:
        """End the child process and the threads. What is still being encoded fails."""
        if self._fast is not None:
            self._fast.close()
        await self._remote.aclose()


class _FastEncoder:
    """The fast library with its warmed threads."""

    def __init__(self, library_tokenizer: Any, pool: ThreadPoolExecutor) -> None:
        self._tokenizer = library_tokenizer
        self._pool = pool
        self.encode = library_tokenizer.encode
        self.inline_characters = self._measure()

    @classmethod
    async def load(cls, path: Path, digest: str) -> _FastEncoder:
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="encode")
        loop = asyncio.get_running_loop()
        try:
            tokenizer = await loop.run_in_executor(pool, _load, path, digest)
            # A barrier, so that each thread takes one of the warming texts.
            barrier = threading.Barrier(_THREADS)
            await asyncio.gather(*(loop.run_in_executor(pool, _warm, tokenizer, barrier) for _ in range(_THREADS)))
            return cls(tokenizer, pool)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    async def encode_in_thread(self, text: str) -> bytes | None:
        """The ids as uint32, little-endian; None where the library cannot encode the text. Raises InvalidTextError."""
        try:
            # The flat call makes no Python integers, and releases the interpreter lock.
            packed, _ = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._tokenizer.encode_batch_flat, [text]
            )
        except UnicodeEncodeError:
            raise InvalidTextError from None
        except ValueError:
            return None
        return bytes(packed)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _measure(self) -> int:
        """Characters that this thread encodes within the budget, from texts that the caches do not know. Warms it."""
        encode = self.encode
        for at in range(8):
            encode(_WARM_TEXT + str(at))
        seconds, characters = 0.0, 0
        for at in range(1, 4):
            text = "".join(f"{_WARM_TEXT}words_{at * line * 7919} привет мир, naïve\n" for line in range(32))
            started = perf_counter()
            encode(text)
            seconds += perf_counter() - started
            characters += len(text)
        return int(_INLINE_BUDGET_S / (seconds / characters))


def _load(path: Path, digest: str) -> Any:
    from fastokens import Tokenizer as FastTokenizer

    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise TokenizerError(f"{path} was changed while it was loaded; load it again")
    tokenizer = FastTokenizer.from_json_str(raw.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _warm(tokenizer: Any, barrier: threading.Barrier) -> None:
    barrier.wait(_WARM_TIMEOUT_S)
    for at in range(4):
        tokenizer.encode_batch_flat([_WARM_TEXT + str(at)])
