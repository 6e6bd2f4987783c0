"""CPU of this gateway, of SMG, and of Envoy in front of SMG, for the same requests to the same simulated engines.

`rows` says what is measured, `text` and `requests` what is sent, `model` what both gateways tokenize with, `set_ups`
starts everything, `load` sends and checks, `cpu` reads, `report` prints. Nothing here is imported by the package.
"""
