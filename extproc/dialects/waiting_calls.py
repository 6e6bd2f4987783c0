"""Calls whose results are to come, for dialects whose results may lack ids: they answer the calls in order."""

from __future__ import annotations

from collections import OrderedDict


class WaitingCalls:
    """Ids of calls and the names of their functions, in order. Every method takes the same time however many wait."""

    __slots__ = ("_by_name", "_names")

    def __init__(self) -> None:
        # Their first key is found at once, also when many before it are gone.
        self._names: OrderedDict[str, str] = OrderedDict()  # by id
        self._by_name: dict[str, OrderedDict[str, None]] = {}  # ids, the oldest first

    def add(self, call_id: str, name: str) -> None:
        """A call."""
        if call_id in self._names:
            del self._by_name[self._names[call_id]][call_id]
        self._names[call_id] = name
        self._by_name.setdefault(name, OrderedDict())[call_id] = None

    def take(self, call_id: str | None, name: str | None) -> tuple[str, str] | None:
        """Id and name of the call that a result answers: that with its id, else the oldest of its function.

        Without a name it is the oldest of all; None where no such call waits.
        """
        if not call_id or call_id not in self._names:
            ids = self._names if name is None else self._by_name.get(name)
            if not ids:
                return None
            call_id = next(iter(ids))
        name = self._names.pop(call_id)
        of_name = self._by_name[name]
        del of_name[call_id]
        if not of_name:
            del self._by_name[name]
        return call_id, name
