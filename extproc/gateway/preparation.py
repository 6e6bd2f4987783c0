"""Makes pools ready: learns what their workers say and loads their tokenizers, beside the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from extproc.config.schema import Pool as PoolSection
from extproc.engines.control import ControlError, ModelInfo, connect
from extproc.gateway.backend import Backend
from extproc.gateway.http_models import ModelsError, served_models
from extproc.gateway.http_target import HttpTarget
from extproc.routing.blocks import block_tokens_for
from extproc.routing.worker import Worker
from extproc.tokens.cache import TokenCache
from extproc.tokens.model import ModelTokens
from extproc.tokens.source import TokenizerError, unpack_archive

_log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 10.0
_ARCHIVE_TIMEOUT_S = 60.0
_ARCHIVE_LIMIT_BYTES = 256 << 20
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0
_MOST_NAMES = 20
_LAST = ".last"  # ends the name of a pool's file that says which tokenizer its workers sent


class _Arrivals:
    """Observes a pool's membership for workers that come: there is somebody to ask."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    def joined(self, worker: Worker) -> None:
        self.came.set()

    def restarted(self, worker: Worker) -> None:
        self.came.set()

    def left(self, worker: Worker) -> None:
        pass


class Preparation:
    """Brings one pool to the point where its requests can be tokenized, trying until it succeeds."""

    def __init__(
        self,
        section: PoolSection,
        backend: Backend,
        cache: Path,
        ready: Callable[[Backend], None],
        token_cache: TokenCache | None = None,
        serves: Callable[[], bool] = lambda: False,
    ) -> None:
        """`cache`: folder for tokenizers that workers send or that are converted. `ready` is called once.

        `token_cache`: of all pools. `serves`: whether other pools' requests are served by now.
        """
        self._section = section
        self._backend = backend
        self._cache = cache
        self._ready = ready
        self._token_cache = token_cache
        self._serves = serves
        self._last = cache / f"{section.name}{_LAST}"
        self._loaded_early: tuple[Path, ModelTokens] | None = None

    async def load_early(self) -> None:
        """Load a tokenizer that is on this machine: before there is traffic, for it holds up the event loop.

        One that a worker sent is expected to be what it will send again. Does nothing where loading fails; `run` tries
        again and says why.
        """
        source = self._section.tokenizer
        if source != "worker":
            path: Path | None = source
        else:
            path = None if self._backend.http is not None else await asyncio.to_thread(self._sent_last)
        if path is not None:
            with contextlib.suppress(TokenizerError):
                self._loaded_early = path, await self._load(path)

    async def aclose(self) -> None:
        """Close a tokenizer that the pool has not got yet."""
        if self._loaded_early is not None:
            await self._loaded_early[1].aclose()

    async def run(self) -> None:
        """Returns when the pool is ready. What stands in the way is logged each time that it changes."""
        delay_s = _FIRST_DELAY_S
        told = ""
        arrivals = _Arrivals()
        self._backend.pool.members.observe(arrivals)
        while True:
            arrivals.came.clear()
            try:
                tokens = await self._attempt()
            except (ControlError, ModelsError, TokenizerError) as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("pool %s is not ready: %s", self._section.name, error)
                try:
                    await asyncio.wait_for(arrivals.came.wait(), delay_s)
                    delay_s = _FIRST_DELAY_S
                except TimeoutError:
                    delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
            else:
                if tokens is not None:
                    self._backend.tokens = tokens
                _log.info(
                    "pool %s is ready: context of %s tokens",
                    self._section.name,
                    self._backend.context_tokens or "unknown",
                )
                self._ready(self._backend)
                return

    async def _attempt(self) -> ModelTokens | None:
        """None where nothing is tokenized."""
        section = self._section
        source = section.tokenizer
        http = self._backend.http
        if http is not None:
            await self._ask_http(http)
            if source == "worker":
                return None
        if source == "worker":
            info, path = await self._from_worker()
            self._learn(info)
        else:
            path = source
            if self._backend.context_tokens is None and http is None:
                self._learn(await self._any_info())
        early, self._loaded_early = self._loaded_early, None
        if early is not None and early[0] != path:
            await early[1].aclose()
            early = None
        tokens = await self._load(path) if early is None else early[1]
        if source == "worker":
            await asyncio.to_thread(self._remember, path)
        if self._backend.context_tokens is None:
            self._backend.context_tokens = tokens.context_tokens
        return tokens

    async def _load(self, path: Path) -> ModelTokens:
        section = self._section
        return await ModelTokens.load(
            path,
            section.chat_template,
            cache=self._token_cache,
            converted=self._cache,
            special_tokens_in_content=section.special_tokens_in_content,
            beside_traffic=self._serves(),
        )

    def _sent_last(self) -> Path | None:
        """The folder of the tokenizer that a worker of this pool sent to an earlier process."""
        try:
            name = self._last.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
        folder = self._cache / name
        return folder if folder.is_dir() and folder.resolve().parent == self._cache.resolve() else None

    def _remember(self, folder: Path) -> None:
        beside = self._last.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # it is only for the next start
            beside.write_text(folder.name, encoding="utf-8")
            beside.replace(self._last)

    def _learn(self, info: ModelInfo | None) -> None:
        prefixes = self._backend.pool.prefixes
        if info is not None and prefixes is not None and self._section.block_tokens is None:
            prefixes.resize(block_tokens_for(info.block_tokens))
        if info is not None and info.context_tokens and self._backend.context_tokens is None:
            self._backend.context_tokens = info.context_tokens

    async def _from_worker(self) -> tuple[ModelInfo, Path]:
        """The first worker that answers gives the tokenizer; the pool's workers all have the same."""
        problem: Exception = ControlError(
            "it has no workers to get a tokenizer from; set `tokenizer` of the pool to a folder"
        )
        for worker in self._backend.pool.workers:
            try:
                async with connect(worker.address, self._section.engine) as control:
                    info = await control.model_info(_CALL_TIMEOUT_S)
                    archive = await control.tokenizer(_ARCHIVE_TIMEOUT_S, _ARCHIVE_LIMIT_BYTES)
                path = await asyncio.to_thread(unpack_archive, archive.content, archive.sha256, self._cache)
            except (ControlError, TokenizerError) as error:
                problem = error
            else:
                return info, path
        raise problem

    async def _any_info(self) -> ModelInfo | None:
        """What a worker says, where one answers: the tokenizer's folder does not need it."""
        for worker in self._backend.pool.workers:
            try:
                async with connect(worker.address, self._section.engine) as control:
                    return await control.model_info(_CALL_TIMEOUT_S)
            except ControlError:
                continue
        return None

    async def _ask_http(self, target: HttpTarget) -> None:
        """The first worker that answers says what models there are, and how long their contexts. Raises ModelsError."""
        name = self._section.name
        problem = ModelsError("it has no workers to ask for their models")
        for worker in self._backend.pool.workers:
            try:
                served = await served_models(target, worker.address)
            except ModelsError as error:
                problem = error
                continue
            by_id = {model.id: model for model in served}
            wanted = target.engine_names
            missing = sorted(wanted - by_id.keys())
            if missing and len(served) == 1 and len(wanted) == 1:
                _log.info("pool %s: its workers call the model %s", name, served[0].id)
                target.rename(served[0].id)
            elif missing and served:
                _log.warning(
                    "pool %s: worker %s does not list %s among its models (%s): set `engine_name` of the model",
                    name,
                    worker.label,
                    ", ".join(missing),
                    ", ".join(sorted(by_id)[:_MOST_NAMES]),
                )
            lengths = [by_id[model].context_tokens for model in target.engine_names if model in by_id]
            shortest = min(lengths, default=0)
            if shortest and self._backend.context_tokens is None:
                self._backend.context_tokens = shortest
            return
        raise problem
