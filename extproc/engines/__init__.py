"""Engine protocols: neutral requests to wire requests, wire answers to events, and the rare control calls.

Knows: each engine's gRPC service, field by field, and what its servicer really sends. Must not know: client dialects,
routing, ext_proc. Codecs do no I/O; only `control` opens connections.
"""
