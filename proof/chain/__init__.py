"""The chain: A writes, B handles and publishes, C handles; everything in between is killed, again and again.

`points` names where a process dies, `plan` says when, `lines` are the two ways from A to C, `run` lets it all happen,
`judge` weighs what is left, `report` tells it. `broken` has the mistakes that must be noticed.
"""

from __future__ import annotations
