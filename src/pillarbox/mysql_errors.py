"""Error numbers of MariaDB and MySQL, in one place for the store and the consumer.

MariaDB and MySQL often report the same event by different numbers. A connection that is killed is 1927 or 2013 on
MariaDB, and 1317, 3169 or 4031 on MySQL.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CONFLICTS", "CONNECTION_ENDED", "EXHAUSTED", "LOCK_TIMEOUTS", "NOT_LEADER", "UNAVAILABLE"]

CONFLICTS: Final = frozenset({
    1020,  # the row changed since it was read
    1213,  # deadlock
    3101,  # group replication rolled the transaction back at commit
})  # fmt: skip
"""The server has undone the transaction in favour of another."""

LOCK_TIMEOUTS: Final = frozenset({1205, 3572})
"""A lock was not available in time. The transaction is still open."""

CONNECTION_ENDED: Final = frozenset({
    1053, 1080, 3169,  # the server shuts down, closes the connection, or has killed the session
    1152, 1184,  # the connection was aborted
    1317,  # the statement was interrupted: MySQL's answer when its connection is killed
    1927,  # MariaDB's word for a killed connection
    4031,  # idle for longer than wait_timeout
})  # fmt: skip
"""The server ends the connection, or may have ended it."""

EXHAUSTED: Final = frozenset({
    1021, 1030, 1114,  # the disk or a table is full, or the storage engine reports so
    1037, 1038, 1041, 1135,  # out of memory or threads
    1040, 1129, 1203, 1226,  # too many connections of all, of a host, of a user
    1969, 3024,  # the statement's time was up
})  # fmt: skip
"""A resource of the server is used up."""

NOT_LEADER: Final = frozenset({
    1047,  # the node is not ready: it left its cluster, or its part of the cluster has no majority
    1290, 1792, 1836,  # read-only: it became a replica
    3032, 3168,  # offline, or not available
    3100,  # group replication does not let it commit: the member left its group
})  # fmt: skip
"""The server takes no writes any more, and another one may: a connection to it is of no use."""

UNAVAILABLE: Final = CONNECTION_ENDED | EXHAUSTED | NOT_LEADER | frozenset({
    1158, 1159, 1160, 1161,  # the network
})  # fmt: skip
"""The server cannot do it now, whatever the statement is."""
