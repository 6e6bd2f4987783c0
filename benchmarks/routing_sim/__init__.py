"""Policies in discrete-event simulation: the gateway's own routing code, on a clock of its own, with modelled engines.

No sockets, no processes: it is for fleets that no machine of ours holds, for tuning, and for what nothing real can
show, a policy that knows true queues and caches. Its figures are simulated, and marked so.
"""
