"""The configuration file: its schema, defaults and checks. Every default is written in `schema` and nowhere else.

Knows nothing of Envoy's configuration (that is `extproc.envoyconfig`) and starts nothing.
"""
