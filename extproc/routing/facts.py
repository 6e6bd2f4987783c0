"""What a policy sees of a request."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct, field

from extproc.routing.blocks import Hashes
from extproc.routing.worker import Worker
from extproc.token_ids import TokenIds

_NOTHING: Mapping[str, str] = MappingProxyType({})


def _nothing() -> Mapping[str, str]:
    return _NOTHING


class RouteFacts(Struct, eq=False):
    """Facts of one request. The gateway fills in what it was asked, the pool what its prefix index knows.

    Policies read and change nothing. A request that waits for admission keeps its facts, and the pool looks into the
    index again when it is its turn.
    """

    prompt_tokens: int
    ids: TokenIds = TokenIds()
    namespace: str = ""
    """All that the engine hashes beside the tokens: equal tokens in different namespaces share no block."""
    headers: Mapping[str, str] = field(default_factory=_nothing)
    """At least those of the request's headers that the pool's policy wants, by their names in lower case."""
    keys: Mapping[str, str] = field(default_factory=_nothing)
    """Fields of the request's body that may name whose it is, such as `user`."""
    tenant: str = ""
    priority: int = 0
    streams: bool = True
    """The engine's answer comes token by token, so its first token is seen."""

    now_s: float = 0.0
    """When the worker is chosen, on the pool's clock."""
    hashes: Hashes[int] | None = None
    """The prompt's chain of blocks; None where the policy wants no prefixes."""
    block_tokens: int = 0
    precise: dict[Worker, int] = field(default_factory=dict)
    """Tokens from the start of the prompt that workers hold by their KV events; none for those that are absent."""
    guess: dict[Worker, int] = field(default_factory=dict)
    """The same by what was sent to them."""

    def cached_tokens(self, worker: Worker) -> int:
        """How much of the prompt the worker need not compute, as far as anybody knows."""
        return max(self.precise.get(worker, 0), self.guess.get(worker, 0))

    def forget_ids(self) -> None:
        """The worker is chosen and the chain is known: the ids are the largest part of what waits for an answer."""
        self.ids = TokenIds()
