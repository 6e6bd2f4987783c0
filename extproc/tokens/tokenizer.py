"""Text to token ids, exactly as the reference library encodes them, without stalling the event loop.

What the cache does not know of a text is encoded: a short rest at once by the fast library where it is exact, a long
one on a few warmed threads, and texts or whole tokenizers that only the reference library encodes rightly by its child
process.

The fast library holds the interpreter lock for the first 40 to 90 ms of loading a large vocabulary, whichever thread
loads it. So whoever can loads tokenizers before serving; a large one that comes later, while requests are served, is
loaded by a child and encodes there, which costs each of its requests about 0.1 ms of CPU.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from extproc.token_ids import TokenIds
from extproc.tokens.cache import Found, TextCache, TokenCache
from extproc.tokens.cache_boundaries import Boundaries, choose
from extproc.tokens.child import Library
from extproc.tokens.fast_library import THREADS, WARM_TEXT, load_fast, warm_fast
from extproc.tokens.inspection import Inspection
from extproc.tokens.remote import RefusedError, RemoteEncoder, run_inspection
from extproc.tokens.source import locate_tokenizer

__all__ = ["InvalidTextError", "Tokenizer"]

_INLINE_BUDGET_S = 0.002
_LOCK_BUDGET_S = 0.01  # a child loads what would hold the interpreter lock for longer while requests are served
_log = logging.getLogger(__name__)


class InvalidTextError(ValueError):
    """A text that is not Unicode: it holds a lone surrogate, which JSON can write and UTF-8 cannot."""

    def __init__(self) -> None:
        super().__init__("the text holds a lone surrogate (half of a \\ud800-\\udfff pair), which is not valid Unicode")


class Tokenizer:
    """One tokenizer.json, loaded. Belongs to one event loop; close it to end its child and its threads."""

    def __init__(
        self,
        inspection: Inspection,
        remote: RemoteEncoder,
        fast: _FastEncoder | None,
        fast_remote: RemoteEncoder | None,
        store: TokenCache | None,
    ) -> None:
        """Use `load`. At most one of `fast` and `fast_remote` is given."""
        self.inspection = inspection
        self._remote = remote
        self._fast = fast
        self._fast_remote = fast_remote
        self._suspects = inspection.suspect_characters
        self._inline_characters = -1 if fast is None else fast.inline_characters
        self._store = store
        self._cache = None if store is None else self._cut_at({}, store)

    @classmethod
    async def load(cls, path: Path, store: TokenCache | None = None, *, beside_traffic: bool = False) -> Tokenizer:
        """From a folder with a tokenizer.json, or the file itself; without `store` nothing is cached.

        `beside_traffic`: this process serves requests already, and nothing may hold it up. Raises TokenizerError.
        """
        file = locate_tokenizer(path)
        inspection = await run_inspection(file)
        remote = RemoteEncoder(file, inspection.digest)
        fast: _FastEncoder | None = None
        fast_remote: RemoteEncoder | None = None
        if inspection.refusal is not None:
            await remote.start()
        elif beside_traffic and inspection.lock_s > _LOCK_BUDGET_S:
            fast_remote = RemoteEncoder(file, inspection.digest, Library.FASTOKENS)
            await fast_remote.start()
        else:
            fast = await _FastEncoder.load(file, inspection.digest)
        tokenizer = cls(inspection, remote, fast, fast_remote, store)
        why = inspection.refusal or "identical ids on all probes"
        where = "" if fast_remote is None else " in a process of its own until the next start"
        _log.info("%s is served with %s%s: %s", file, tokenizer.serves_with, where, why)
        return tokenizer

    @property
    def serves_with(self) -> Literal["fastokens", "tokenizers"]:
        """The library that encodes most texts."""
        return "tokenizers" if self._fast is None and self._fast_remote is None else "fastokens"

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
        fast, fast_remote = self._fast, self._fast_remote
        suspect = any(character in text for character in self._suspects)
        if fast is not None and not suspect:
            packed = await fast.encode_in_thread(text)
        if packed is None:
            try:
                data = text.encode()
            except UnicodeEncodeError:
                raise InvalidTextError from None
            if fast_remote is not None and not suspect:
                with suppress(RefusedError):
                    packed = await fast_remote.encode(data)
        if packed is None:
            packed = await self._remote.encode(data)
        return TokenIds.from_packed(packed).varints

    async def names(self, ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary writes them; None for an unknown id. Raises TokenizerError."""
        if self._fast is not None:
            return await self._fast.names(ids)
        return await (self._fast_remote or self._remote).names(ids)

    async def aclose(self) -> None:
        """End the child process and the threads. What is still being encoded fails."""
        if self._fast is not None:
            self._fast.close()
        if self._fast_remote is not None:
            await self._fast_remote.aclose()
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
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="encode")
        try:
            tokenizer = await asyncio.get_running_loop().run_in_executor(pool, load_fast, path, digest)
            await asyncio.to_thread(warm_fast, tokenizer, pool)
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
            encode([WARM_TEXT + str(at)])
        seconds, characters = 0.0, 0
        for at in range(1, 4):
            text = "".join(f"{WARM_TEXT}words_{at * line * 7919} привет мир, naïve\n" for line in range(32))
            started = perf_counter()
            encode([text])
            seconds += perf_counter() - started
            characters += len(text)
        return seconds / characters
