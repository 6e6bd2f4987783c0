"""The ext_proc conversation of one HTTP request.

Knows: which ext_proc message may follow which, how a reply is held, replaced or ended, what Envoy does at each end.
Must not know: client dialects, engine protocols, routing. All of that is behind `application`.

`exchange` is the state machine, without I/O; `messages` builds and reads the wire messages; `service` binds it to the
transport.
"""
