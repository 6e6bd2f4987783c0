"""What the workers of one pool hold of prompts: the prefix index with the pool's workers as its slots."""

from __future__ import annotations

import os
from collections.abc import Sequence

from xxhash import xxh3_128_digest

from extproc.routing.blocks import Hashes, chain, extend, root
from extproc.routing.facts import RouteFacts
from extproc.routing.index import PrefixIndex, Slot
from extproc.routing.index.index import SLICES
from extproc.routing.policies.base import PrefixUse
from extproc.routing.worker import Worker
from extproc.token_ids import WIDTH, TokenIds

_LONG_BYTES = 4096  # of ids: 1,024 tokens, whose chain costs as much as this lookup
_CHAINS = 64


class Prefixes:
    """Of one pool and block size; an `Observer` of the pool's membership.

    A worker's slot is replaced when its engine restarts, so ask for it (`slot`) whenever it is used.
    """

    def __init__(
        self, index: PrefixIndex, block_tokens: int, use: PrefixUse, kv_tokens: int, *, kv_tokens_fixed: bool = False
    ) -> None:
        """`kv_tokens`: what a worker's KV cache holds, whatever it says (`kv_tokens_fixed`) or until it says so."""
        self.index = index
        self.block_tokens = block_tokens
        self.learns_answers = use.answers
        self._fixed = kv_tokens_fixed or use.kv_tokens is not None
        self._kv_blocks = (use.kv_tokens or kv_tokens) // block_tokens
        self._slots: dict[Worker, Slot] = {}
        self._workers: dict[Slot, Worker] = {}
        self._chains: dict[bytes, Hashes[int]] = {}
        self._secret = int.from_bytes(os.urandom(8))  # nobody can make two prompts that look alike here
        self.with_events: set[Worker] = set()
        """Workers whose KV events come in: what was sent to them need not be remembered once they have answered."""

    def resize(self, block_tokens: int) -> None:
        """The engines' blocks are so long: what is known of others is void, and every worker gets a new slot."""
        if block_tokens != self.block_tokens:
            kv_tokens = {worker: slot.kv_blocks * self.block_tokens for worker, slot in self._slots.items()}
            self._kv_blocks = self._kv_blocks * self.block_tokens // block_tokens
            self._chains.clear()
            self.block_tokens = block_tokens
            for worker, tokens in kv_tokens.items():
                self.restarted(worker)
                self._slots[worker].kv_blocks = tokens // block_tokens

    def joined(self, worker: Worker) -> None:
        """It holds nothing yet."""
        slot = self.index.open(worker.address, worker.rank or 0, worker.incarnation, self._kv_blocks)
        self._slots[worker] = slot
        self._workers[slot] = worker

    def restarted(self, worker: Worker) -> None:
        """It holds nothing any more."""
        kv_blocks = self._slots[worker].kv_blocks
        self.left(worker)
        self.joined(worker)
        self._slots[worker].kv_blocks = kv_blocks

    def left(self, worker: Worker) -> None:
        """Nobody asks for it any more."""
        slot = self._slots.pop(worker)
        del self._workers[slot]
        self.index.retire(slot)
        self.with_events.discard(worker)
        worker.load.kv_fill = 0.0

    def slot(self, worker: Worker) -> Slot | None:
        """Its place in the index; None for a worker that has left."""
        return self._slots.get(worker)

    def holds_tokens(self, worker: Worker, kv_tokens: int) -> None:
        """The worker says how large its KV cache is."""
        slot = self._slots.get(worker)
        if slot is not None and not self._fixed and kv_tokens > 0:
            slot.kv_blocks = kv_tokens // self.block_tokens

    def look_up(self, facts: RouteFacts, candidates: Sequence[Worker]) -> None:
        """Fill in what these workers hold of the prompt. Hot."""
        block_tokens = self.block_tokens
        hashes = facts.hashes
        if hashes is None or facts.block_tokens != block_tokens:
            facts.block_tokens = block_tokens
            hashes = facts.hashes = self._chain(facts)
        slots = self._slots
        match = self.index.match(hashes, [slots[worker] for worker in candidates if worker in slots])
        workers = self._workers
        facts.precise = {workers[slot]: blocks * block_tokens for slot, blocks in match.precise.items()}
        facts.guess = {workers[slot]: blocks * block_tokens for slot, blocks in match.guess.items()}

    def _chain(self, facts: RouteFacts) -> Hashes[int]:
        """Those of long prompts are kept for a while: identical ones come again, with retries and with hot prompts."""
        start, varints = root(facts.namespace, self.block_tokens), facts.ids.varints
        if len(varints) < _LONG_BYTES:
            return chain(facts.ids, start, self.block_tokens)
        key = xxh3_128_digest(varints, start ^ self._secret)
        kept = self._chains.get(key)
        if kept is None:
            kept = chain(facts.ids, start, self.block_tokens)
            if len(self._chains) >= _CHAINS:
                del self._chains[next(iter(self._chains))]
            self._chains[key] = kept
        return kept

    def sent(self, worker: Worker, hashes: Hashes[int]) -> int:
        """The worker gets these blocks, from this processor or another. Returns how many it had anyway."""
        slot = self._slots.get(worker)
        if slot is None or not hashes:
            return len(hashes)
        known = self.index.add(slot, hashes)
        if slot.kv_blocks:
            full = min(slot.turn, SLICES - 1) * (slot.kv_blocks / SLICES) + slot.filled
            worker.load.kv_fill = min(full / slot.kv_blocks, 1.0)
        return known

    def not_sent(self, worker: Worker, hashes: Hashes[int], known: int) -> None:
        """The request failed there, or went elsewhere. `known`: what `sent` returned."""
        slot = self._slots.get(worker)
        if slot is not None and known < len(hashes):
            self.index.drop(slot, hashes[known:])

    def answered(self, worker: Worker, parent: int, varints: bytes) -> None:
        """The worker also holds what follows the block `parent`: the rest of a prompt, and its answer."""
        more = extend(parent, varints, self.block_tokens)
        if more:
            self.sent(worker, more)

    def rest(self, facts: RouteFacts) -> tuple[int, bytes]:
        """For `answered`: the last block of a prompt that was looked up, and what follows it."""
        hashes = facts.hashes
        if not hashes:
            return root(facts.namespace, self.block_tokens), facts.ids.varints
        return hashes[-1], facts.ids.varints[len(hashes) * self.block_tokens * WIDTH :]

    def forgets(self, worker: Worker, hashes: Hashes[int]) -> None:
        """Its KV events have told by now what it holds of these."""
        slot = self._slots.get(worker)
        if slot is not None and hashes:
            self.index.drop(slot, hashes)


def varints_of(rest: bytes, generated: bytes) -> bytes:
    """`rest` of a prompt and generated ids (uint32, packed). The last token is in no cache: nothing was fed it to."""
    return rest + TokenIds.from_packed(generated[:-4]).varints
