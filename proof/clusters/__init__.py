"""Clusters that fail over: real ones on loopback, under load, whose leader is killed, frozen or restarted.

`python -m proof.clusters` starts them one after the other, counts what was lost, invented, out of order and repeated,
and measures for how long nothing was delivered.
"""
