"""Where workers come from: the configuration, a file, DNS, Kubernetes, the admin address; and where they are written.

Knows: addresses, and the order in which Envoy and the processors must learn of a change. Must not know: requests,
engines' protocols, policies. One `Discovery` serves all processes of a configuration.
"""
