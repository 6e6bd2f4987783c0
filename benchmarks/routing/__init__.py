"""How soon answers begin: this gateway's policies and SMG route the same real traffic to the same simulated workers.

`trace` reads the traffic and its variants, `prompts` makes requests of it, `contenders` says who routes, `set_ups`
starts engines and gateways, `load` sends by the clock and notes what came back, `figures` are what a run gave, `report`
prints them and writes the rows. Workers' speeds and costs are known to the engines alone. Nothing here is imported by
the package.
"""
