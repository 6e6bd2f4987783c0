"""What happens to one request: the room that knows all others and that no other knows.

`gateway` takes requests in, `request` brings one from its head to a worker, `answer` brings the engine's answer back,
`local_reply` translates what Envoy answers itself; `pools` and `processor` put the rooms together from a configuration.
"""
