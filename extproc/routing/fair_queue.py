"""Who is next among requests that wait: bands of priority, and in a band the tenants in turn by deficit round robin.

A tenant's turn gives it a quantum of prompt tokens, and it goes while its next request costs no more than it has saved;
so tenants get equal numbers of tokens, whatever the size and number of their requests. A tenant with nothing waiting
saves nothing.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_QUANTUM_TOKENS = 4096


class Waiting:
    """What waits: subclass it. Its place is by tenant and priority, in the order of arrival."""

    __slots__ = ("priority", "tenant", "tokens")

    def __init__(self, tokens: int, tenant: str, priority: int) -> None:
        self.tokens = tokens
        self.tenant = tenant
        self.priority = priority


_W = TypeVar("_W", bound=Waiting)


class _Flow(Generic[_W]):
    """One tenant's in a band."""

    __slots__ = ("items", "saved", "served")

    def __init__(self) -> None:
        self.items: dict[_W, None] = {}  # in the order of arrival
        self.saved = 0
        self.served = False  # it is its turn, and it has got the turn's quantum


class FairQueue(Generic[_W]):
    """All operations cost little, whatever waits; `next` looks at every tenant of one band at most."""

    def __init__(self) -> None:
        self._bands: dict[int, dict[str, _Flow[_W]]] = {}  # tenants in the order of their turns
        self._order: list[int] = []  # priorities, highest first
        self._length = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._length

    def add(self, item: _W) -> None:
        """At the end of its tenant's."""
        band = self._bands.get(item.priority)
        if band is None:
            band = self._bands[item.priority] = {}
            self._order = sorted(self._bands, reverse=True)
        flow = band.get(item.tenant)
        if flow is None:
            flow = band[item.tenant] = _Flow()
        flow.items[item] = None
        self._length += 1
        self.tokens += item.tokens

    def next(self) -> _W | None:
        """Who is next. The same again until it is taken, or a higher priority comes."""
        if not self._order:
            return None
        band = self._bands[self._order[0]]
        tenant, flow = next(iter(band.items()))
        if flow.served:
            item = next(iter(flow.items))
            if flow.saved >= item.tokens:
                return item
            _end_turn(band, tenant)
        # As many whole rounds at once as nobody can use: a long prompt costs no more turns than a short one.
        rounds = min([_rounds(each) for each in band.values()]) - 1
        if rounds > 0:
            for each in band.values():
                each.saved += rounds * _QUANTUM_TOKENS
        while True:
            tenant, flow = next(iter(band.items()))
            flow.served = True
            flow.saved += _QUANTUM_TOKENS
            item = next(iter(flow.items))
            if flow.saved >= item.tokens:
                return item
            _end_turn(band, tenant)

    def take(self, item: _W) -> None:
        """What `next` gave goes."""
        flow = self._bands[item.priority][item.tenant]
        flow.saved -= item.tokens
        self.remove(item)

    def remove(self, item: _W) -> bool:
        """It waits no more. False if it did not."""
        band = self._bands.get(item.priority)
        flow = band.get(item.tenant) if band is not None else None
        if band is None or flow is None or item not in flow.items:
            return False
        del flow.items[item]
        self._length -= 1
        self.tokens -= item.tokens
        if not flow.items:
            del band[item.tenant]
            if not band:
                del self._bands[item.priority]
                self._order.remove(item.priority)
        return True

    def last_below(self, priority: int) -> _W | None:
        """The newest of the lowest band below a priority: who makes room for it. None if there is none."""
        if not self._order or self._order[-1] >= priority:
            return None
        # Of the tenant with most waiting, so that none pays for another's crowd.
        flow = max(self._bands[self._order[-1]].values(), key=lambda each: len(each.items))
        return next(reversed(flow.items))


def _end_turn(band: dict[str, _Flow[_W]], tenant: str) -> None:
    flow = band.pop(tenant)
    flow.served = False
    band[tenant] = flow


def _rounds(flow: _Flow[_W]) -> int:
    """Turns until a tenant can go."""
    missing = next(iter(flow.items)).tokens - flow.saved
    return max(-(-missing // _QUANTUM_TOKENS), 0)
