"""Which worker's KV cache holds which prefix block, by chain hash (`routing/blocks.py`).

Knows: hashes, slots, time as the order of calls. Must not know: tokens, engines, events, load, policies.
"""

from extproc.routing.index.index import Match, PrefixIndex, Slot
from extproc.routing.index.sweeper import Sweeper

__all__ = ["Match", "PrefixIndex", "Slot", "Sweeper"]
