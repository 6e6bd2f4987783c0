"""How a worker is chosen, one class a policy. The first of a ranking is chosen, the next are for retries.

Knows: load, what workers' caches hold of a prompt, the facts of a request. Must not know: the simulator, wire formats;
does no I/O.
"""

from extproc.routing.policies.base import Policy, PrefixUse, Ranking
from extproc.routing.policies.blind import Passthrough, Random, RoundRobin
from extproc.routing.policies.loaded import LeastLoad, PowerOfTwo

__all__ = ["LeastLoad", "Passthrough", "Policy", "PowerOfTwo", "PrefixUse", "Random", "Ranking", "RoundRobin"]
