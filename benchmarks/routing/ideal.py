"""What the default policy's code would reach if it read the engines' true queues and caches: simulated."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.routing.figures import Setting
from benchmarks.routing.set_ups import SPEED_SEED
from benchmarks.routing.trace import Request, Scenario
from benchmarks.routing_sim.replay import Fleet, Outcome, Replay
from extproc.routing.policies.ttft import Ttft

_STEADY = (Scenario.TRACE, Scenario.HOT_PREFIX, Scenario.NO_SHARING)


def ideal(requests: Sequence[Request], setting: Setting, workers: int) -> Outcome | None:
    """None for scenarios in which workers come or go. Takes half a minute or so for 20 minutes of the trace."""
    if setting.scenario not in _STEADY:
        return None
    fleet = Fleet(workers=workers, kv_tokens=setting.kv_tokens, seed=SPEED_SEED)
    return Replay(Ttft(), fleet, ideal=True).run(requests, setting.load)
