"""gRPC over HTTP/2: bytes in, whole messages out.

Knows: HTTP/2 and gRPC framing, flow control, limits of size and time, graceful stop, the health protocol.
Must not know: anything about LLMs, or what a message means.

`service` is the interface to what is served. `serving.serve` starts a server: `server` (ngh2, the data path) or
`grpcio_server` (grpc.aio, the reference and the fallback where ngh2 has no wheel). `connection` is one HTTP/2
connection: what arrives goes through `inbound` to the handlers, what they send goes through `outbound`; `call` is one
call on it, `clocks` says when it has lasted or been silent for too long, `tls` has the certificates of TCP listeners.
Only `connection` and `outbound` use ngh2. `framing` has no I/O and serves whoever reads gRPC bytes.
`adapters` turns plain functions into handlers, `health` is grpc.health.v1.
"""
