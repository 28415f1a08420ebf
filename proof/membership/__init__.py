"""Membership of very many relays on virtual time: the product's heartbeat, rebalancer, lease and assignment of lanes.

`make simulate-membership` runs it. Only the database and the pipelines are simulated.
"""
