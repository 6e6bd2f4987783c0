"""The client APIs: each dialect parses requests into the neutral form and renders events and errors in its own.

Knows what clients send and expect. Must not know engines, routing, tokens or ext_proc. No I/O.
"""
