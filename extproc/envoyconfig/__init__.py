"""The Envoy configuration that goes with a configuration file, as typed messages, and the Envoy binary.

Knows Envoy's configuration and nothing of requests. The typed messages cost half a second to import, so whoever writes
no configuration imports only `names` and `binary`.
"""
