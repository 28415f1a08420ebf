"""The chain: A writes, B handles and publishes, C handles; everything between them is killed, again and again.

`kill_points` says where a process dies, `lines` builds the two ways from A to C, `programs` are the processes, `run`
kills them and compares what is left. `broken` has the mistakes that must be noticed.
"""

from __future__ import annotations
