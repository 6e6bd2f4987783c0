"""How a worker is chosen, one class a policy. The first of a ranking is chosen, the next are for retries.

Knows: load, what workers' caches hold of a prompt, the facts of a request. Must not know: the simulator, wire formats;
does no I/O.
"""

from extproc.routing.policies.base import Policy, PrefixUse, Ranking
from extproc.routing.policies.blind import Passthrough, Random, RoundRobin
from extproc.routing.policies.bucket import Bucket
from extproc.routing.policies.cache_aware import CacheAware
from extproc.routing.policies.keyed import ConsistentHashing, PrefixHash
from extproc.routing.policies.loaded import LeastLoad, PowerOfTwo
from extproc.routing.policies.session import Session, SessionTokens
from extproc.routing.policies.ttft import Ttft

__all__ = [
    "Bucket",
    "CacheAware",
    "ConsistentHashing",
    "LeastLoad",
    "Passthrough",
    "Policy",
    "PowerOfTwo",
    "PrefixHash",
    "PrefixUse",
    "Random",
    "Ranking",
    "RoundRobin",
    "Session",
    "SessionTokens",
    "Ttft",
]
