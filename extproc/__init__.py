"""An Envoy external processor that turns an Envoy into an LLM gateway.

The rooms, in the order in which a request passes them: `transport` (HTTP/2 and gRPC), `exchange` (the ext_proc
conversation), `gateway` (what happens to one request), `dialects` (client APIs), `tokens` (templates, tokenizers),
`routing` (which worker), `engines` (engine protocols), `output` (text out of tokens). `ir` is what they hand to each
other. docs/architecture.md follows one request through them.
"""

__version__ = "0.1.0"
