"""Runs a processor: alone in this process, or as several processes under a supervisor.

Knows: processes, signals, restarts, how metrics of several processes add up. Must not know: what a request is.

`process` runs one processor until it is told to stop; `supervisor` starts `child` in fresh interpreters, each a
`member` with its own sockets, and speaks with them over `channel`; `totals` adds up their metrics.
"""

UNFORKED_GRPC = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
"""Environment of every processor, before grpc is loaded: its fork handlers crashed one start in twenty, as uvloop
forks to start the tokenizer's process while grpc's threads are busy. Nothing forks without an exec, so they are not
needed."""
