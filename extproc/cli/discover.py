"""Asks workers what they serve, and groups those that are interchangeable into pools.

Interchangeable means: the same model name, tokenizer and sizes. A request's token ids may then go to any of the pool.
"""

from __future__ import annotations

import asyncio
import io
import re
import zipfile
from collections.abc import Sequence

from msgspec import Struct

from extproc.cli.errors import CommandError
from extproc.config.address import HostPort
from extproc.engines.control import ControlError, ModelInfo, WorkerControl, open_channel
from extproc.engines.registry import ENGINES

_CALL_TIMEOUT_S = 30.0
_ARCHIVE_LIMIT_BYTES = 256 << 20
_AT_ONCE = 16
_RETRY_S = 0.5


class FoundWorker(Struct, frozen=True):
    """One worker and what it said."""

    address: HostPort
    engine: str  # the protocol that it speaks, as a configuration calls it
    model: ModelInfo
    tokenizer: frozenset[tuple[str, int, int]]  # of each file: its name, CRC-32 and size


class FoundPool(Struct, frozen=True):
    """Workers that are interchangeable."""

    name: str
    engine: str
    model: str
    workers: tuple[HostPort, ...]
    context_tokens: int  # 0: the workers do not say


async def discover(addresses: Sequence[HostPort], wait_s: float) -> list[FoundPool]:
    """Ask all workers, each once it is healthy. Raises CommandError that names each worker that cannot be used."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(address: HostPort) -> FoundWorker:
        async with open_channel(str(address)) as channel:
            control = await _until_healthy([WorkerControl(str(address), channel, name) for name in ENGINES], wait_s)
            async with gate:
                model = await control.model_info(_CALL_TIMEOUT_S)
                archive = await control.tokenizer(_CALL_TIMEOUT_S, _ARCHIVE_LIMIT_BYTES)
        return FoundWorker(address, control.engine, model, _fingerprint(str(address), archive.content))

    answers = await asyncio.gather(*(ask(address) for address in addresses), return_exceptions=True)
    problems = [answer for answer in answers if isinstance(answer, BaseException)]
    for problem in problems:
        if not isinstance(problem, ControlError):
            raise problem
    if problems:
        raise CommandError("\n".join(str(problem) for problem in problems))
    return group([answer for answer in answers if isinstance(answer, FoundWorker)])


def group(workers: Sequence[FoundWorker]) -> list[FoundPool]:
    """Pools in the order in which their first workers were given."""
    pools: dict[object, list[FoundWorker]] = {}
    for worker in workers:
        model = worker.model
        key = (
            worker.engine,
            model.served_name,
            worker.tokenizer,
            model.vocabulary,
            model.context_tokens,
            model.block_tokens,
            model.eos_token_ids,
        )
        pools.setdefault(key, []).append(worker)
    names: set[str] = set()
    found = []
    for members in pools.values():
        model = members[0].model
        name = pool_name(model.served_name, names)
        names.add(name)
        addresses = tuple(member.address for member in members)
        found.append(FoundPool(name, members[0].engine, model.served_name, addresses, model.context_tokens))
    return found


def pool_name(model: str, taken: set[str]) -> str:
    """A pool's name after its model, in the form that a configuration takes: a-z, 0-9 and `-`, 63 at most."""
    base = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:56].rstrip("-") or "pool"
    # `processor` is the name of the processor's own cluster.
    candidates = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in candidates if name not in taken and name != "processor")


async def _until_healthy(protocols: Sequence[WorkerControl], wait_s: float) -> WorkerControl:
    """Of one worker's possible protocols the one in which it says that it is healthy.

    Engines load their models for minutes and answer nothing, or `not serving`, until then.
    """
    try:
        async with asyncio.timeout(wait_s):
            while True:
                for control in protocols:
                    if await control.healthy(wait_s):
                        return control
                await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        raise ControlError(
            f"worker {protocols[0].address} was not healthy within {wait_s:g} s; is a vLLM gRPC server running there "
            "(vllm serve MODEL --grpc), or one of MLX? --worker-startup-timeout-secs waits longer"
        ) from None


def _fingerprint(address: str, archive: bytes) -> frozenset[tuple[str, int, int]]:
    """What is in a tokenizer archive. Its digest will not do: it covers the files' dates, which differ among hosts."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            return frozenset((entry.filename, entry.CRC, entry.file_size) for entry in files.infolist())
    except zipfile.BadZipFile as error:
        raise ControlError(f"the tokenizer archive of worker {address} is no zip: {error}") from error
