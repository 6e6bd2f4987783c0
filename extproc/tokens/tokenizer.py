"""Text to token ids, exactly as the reference library encodes them, without stalling the event loop.

What the cache does not know of a text is encoded: a short rest at once by the fast library where it is exact, a long
one on a few warmed threads, and texts or whole tokenizers that only the reference library encodes rightly by its child
process.

The fast library holds the interpreter lock for the first 40 to 90 ms of loading a large vocabulary, whichever thread
loads it, and a thread's first encoding makes state for that thread: 40 to 160 ms in fresh memory, 2 ms in memory that
the state of an ended thread has left. So a few short-lived threads encode first, and whoever can loads tokenizers
before serving.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from extproc.token_ids import TokenIds
from extproc.tokens.cache import Found, TextCache, TokenCache
from extproc.tokens.cache_boundaries import Boundaries, choose
from extproc.tokens.inspection import Inspection
from extproc.tokens.remote import RemoteEncoder, run_inspection
from extproc.tokens.source import TokenizerError, locate_tokenizer

__all__ = ["InvalidTextError", "Tokenizer"]

_INLINE_BUDGET_S = 0.002
_THREADS = 2  # each keeps 17 to 34 MB for the fast library
_WARMING_THREADS = 4  # that leave their memory to the event loop's
_WARM_TIMEOUT_S = 30.0  # only ever reached when the load was given up between its two threads
_WARM_TEXT = "Warm up: 1234 tokens, café, 你好, 😀!\n"
_WARM_LONG_TEXT = _WARM_TEXT * 4096  # long enough for the library to use threads of its own
_log = logging.getLogger(__name__)


class InvalidTextError(ValueError):
    """A text that is not Unicode: it holds a lone surrogate, which JSON can write and UTF-8 cannot."""

    def __init__(self) -> None:
        super().__init__("the text holds a lone surrogate (half of a \\ud800-\\udfff pair), which is not valid Unicode")


class Tokenizer:
    """One tokenizer.json, loaded. Belongs to one event loop; close it to end its child and its threads."""

    def __init__(
        self, inspection: Inspection, remote: RemoteEncoder, fast: _FastEncoder | None, store: TokenCache | None
    ) -> None:
        """Use `load`."""
        self.inspection = inspection
        self._remote = remote
        self._fast = fast
        self._suspects = inspection.suspect_characters
        self._inline_characters = -1 if fast is None else fast.inline_characters
        self._store = store
        self._cache = None if store is None else self._cut_at({}, store)

    @classmethod
    async def load(cls, path: Path, store: TokenCache | None = None) -> Tokenizer:
        """From a folder with a tokenizer.json, or the file itself; without `store` nothing is cached.

        Raises TokenizerError.
        """
        file = locate_tokenizer(path)
        inspection = await run_inspection(file)
        remote = RemoteEncoder(file, inspection.digest)
        fast: _FastEncoder | None = None
        if inspection.refusal is None:
            fast = await _FastEncoder.load(file, inspection.digest)
        else:
            await remote.start()
        tokenizer = cls(inspection, remote, fast, store)
        why = inspection.refusal or "identical ids on all probes"
        _log.info("%s is served with %s: %s", file, tokenizer.serves_with, why)
        return tokenizer

    @property
    def serves_with(self) -> Literal["fastokens", "tokenizers"]:
        """The library that encodes most texts."""
        return "tokenizers" if self._fast is None else "fastokens"

    def cut_like(self, sample: str, messages: Sequence[str]) -> tuple[str, ...]:
        """From now on cache texts by messages; `sample` is a conversation with the texts `messages`, rendered.

        Returns the tokens in front of which texts are cut.
        """
        markers = choose(sample, messages, self.inspection.boundary_tokens)
        if self._store is not None:
            ids = self.inspection.added_ids
            self._cache = self._cut_at({marker: ids[marker] for marker in markers}, self._store)
        return markers

    def _cut_at(self, markers: dict[str, int], store: TokenCache) -> TextCache:
        if self._fast is None:
            return TextCache(store, Boundaries(markers))
        return TextCache(store, Boundaries(markers), self._fast.seconds_per_character)

    def encode(self, text: str) -> TokenIds | None:
        """The ids, without special tokens added; None where `encode_async` has to do it.

        Raises InvalidTextError. Hot.
        """
        cache = self._cache
        if cache is None or not cache.pays():
            varints = self._encode_inline(text)
            return None if varints is None else TokenIds(varints)
        found = cache.find(text)
        if found.known == len(found.parts.texts):
            return _join(found.varints)
        varints = self._encode_inline(text[found.end :])
        return None if varints is None else _learn(cache, found, varints)

    def _encode_inline(self, text: str) -> bytes | None:
        if len(text) > self._inline_characters:
            return None
        for character in self._suspects:
            if character in text:
                return None
        try:
            packed, _ = self._fast.encode_flat([text])  # type: ignore[union-attr]
        except UnicodeEncodeError:
            raise InvalidTextError from None
        except ValueError:  # the fast library cannot encode this text
            return None
        return TokenIds.from_packed(packed).varints

    async def encode_async(self, text: str) -> TokenIds:
        """The ids, without special tokens added, of any text. Raises InvalidTextError, TokenizerError."""
        cache = self._cache
        if cache is None:
            return TokenIds(await self._encode_outside(text))
        found = cache.find(text)
        if found.known == len(found.parts.texts):
            return _join(found.varints)
        return _learn(cache, found, await self._encode_outside(text[found.end :]))

    async def _encode_outside(self, text: str) -> bytes:
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
        return TokenIds.from_packed(packed).varints

    async def names(self, ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary writes them; None for an unknown id. Raises TokenizerError."""
        if self._fast is not None:
            return await self._fast.names(ids)
        return await self._remote.names(ids)

    async def aclose(self) -> None:
        """End the child process and the threads. What is still being encoded fails."""
        if self._fast is not None:
            self._fast.close()
        await self._remote.aclose()


def _join(varints: list[bytes]) -> TokenIds:
    return TokenIds(varints[0] if len(varints) == 1 else b"".join(varints))


def _learn(cache: TextCache, found: Found, varints: bytes) -> TokenIds:
    cache.add(found, varints)
    return TokenIds(b"".join((*found.varints, varints)) if found.varints else varints)


class _FastEncoder:
    """The fast library with its warmed threads."""

    def __init__(self, library_tokenizer: Any, pool: ThreadPoolExecutor) -> None:
        self._tokenizer = library_tokenizer
        self._pool = pool
        # Makes no Python integers, and releases the interpreter lock.
        self.encode_flat = library_tokenizer.encode_batch_flat
        self.seconds_per_character = self._measure()
        self.inline_characters = int(_INLINE_BUDGET_S / self.seconds_per_character)

    @classmethod
    async def load(cls, path: Path, digest: str) -> _FastEncoder:
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="encode")
        loop = asyncio.get_running_loop()
        try:
            tokenizer = await loop.run_in_executor(pool, _load, path, digest)
            await loop.run_in_executor(pool, _leave_memory, tokenizer)
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
            packed, _ = await asyncio.get_running_loop().run_in_executor(self._pool, self.encode_flat, [text])
        except UnicodeEncodeError:
            raise InvalidTextError from None
        except ValueError:
            return None
        return bytes(packed)

    async def names(self, ids: Sequence[int]) -> list[str | None]:
        name_of = self._tokenizer.id_to_token
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: [name_of(at) for at in ids])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _measure(self) -> float:
        """Of encoding texts that no cache knows, on this thread. Warms it."""
        encode = self.encode_flat
        for at in range(8):
            encode([_WARM_TEXT + str(at)])
        seconds, characters = 0.0, 0
        for at in range(1, 4):
            text = "".join(f"{_WARM_TEXT}words_{at * line * 7919} привет мир, naïve\n" for line in range(32))
            started = perf_counter()
            encode([text])
            seconds += perf_counter() - started
            characters += len(text)
        return seconds / characters


def _load(path: Path, digest: str) -> Any:
    from fastokens import Tokenizer as FastTokenizer

    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != digest:
        raise TokenizerError(f"{path} was changed while it was loaded; load it again")
    tokenizer = FastTokenizer.from_json_str(raw.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _leave_memory(tokenizer: Any) -> None:
    for _ in range(_WARMING_THREADS):
        thread = threading.Thread(target=tokenizer.encode_batch_flat, args=([_WARM_TEXT],))
        thread.start()
        thread.join()


def _warm(tokenizer: Any, barrier: threading.Barrier) -> None:
    barrier.wait(_WARM_TIMEOUT_S)
    for at in range(4):
        tokenizer.encode_batch_flat([_WARM_TEXT + str(at)])
    tokenizer.encode_batch_flat([_WARM_LONG_TEXT])
