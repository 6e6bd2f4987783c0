"""Simulated engines that speak the real vLLM protocol, for the demo, tests and benchmarks.

What this room knows: how vLLM's gRPC servicer behaves on the wire, a KV cache in blocks, and what prefill and decode
cost. What it must not know: the gateway. It takes `transport` to serve on, and nothing else of the package.

A request passes `service` (methods), `generate` (one call), `validation`, `batching` (what each step computes),
`scheduler` (when), `kv_cache` (what is already computed), `text` and `answer` (which tokens) and `wire` (the bytes).
`fleet` starts engines; `python -m extproc.simulator` starts them as a process. `constants` holds all that it assumes.
"""
