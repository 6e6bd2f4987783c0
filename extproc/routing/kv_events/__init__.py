"""What a worker's KV cache holds by its own events.

Knows: events as plain data (`extproc/kv_events.py`), chain hashes, the prefix index. Must not know: carriers, sockets.
"""

from extproc.routing.kv_events.figures import Figures
from extproc.routing.kv_events.rank import Rank, Step

__all__ = ["Figures", "Rank", "Step"]
