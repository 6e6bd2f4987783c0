"""The command `extproc`: what people type, and what starts and ends the processes behind it.

Knows every room's front door, and nothing of how a request is served. One file per command; the rooms that a command
needs are imported inside it, so that `--help` is immediate.
"""
