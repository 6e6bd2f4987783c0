"""Which worker gets a request: models, pools, workers and their state, policies, reservations.

Knows: prompt tokens, load, health, addresses. Must not know: wire formats of clients or engines, text, HTTP.
"""
