"""Signs that a connection to a server was dropped silently: by a firewall, or because a host vanished."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

__all__ = [
    "KEEPALIVE_COUNT",
    "KEEPALIVE_IDLE",
    "KEEPALIVE_INTERVAL",
    "SEND_TIMEOUT",
    "AnswerLimit",
    "limit_answers",
    "limit_heartbeats",
    "set_keepalive",
]

KEEPALIVE_IDLE: Final = 10
KEEPALIVE_INTERVAL: Final = 3
KEEPALIVE_COUNT: Final = 3
"""Seconds before the first probe of an idle connection, seconds between two, and how many may stay unanswered."""
SEND_TIMEOUT: Final = 20.0
"""Seconds for which the other host may leave what was sent unconfirmed."""

_OPTIONS: Final = (
    ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
    ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
    ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ("TCP_USER_TIMEOUT", int(SEND_TIMEOUT * 1000)),
)

_LEAST_LIMIT: Final = 3.0
_LEAST_HEARTBEAT_LIMIT: Final = 1.0
"""Seconds that a server may take for an answer, however short the lease is."""
_LEAST_LONGEST: Final = 9.0
"""Seconds that it may take at least after late answers. A repeat must fit into a lease too."""
_CALM: Final = 60.0
"""Seconds without a slow answer after which the limit is what it was at first."""


class AnswerLimit:
    """Seconds within which the server should answer a relay.

    A call without an answer doubles the limit for a while, up to `longest`: a server that is only slow gets its time.
    Calls that waited beside each other double it once: a firewall that forgets a connection forgets all of them. Where
    no slow answer follows, it was a connection that was dropped, and the while is short: the next may be dropped soon.
    """

    def __init__(self, seconds: float, *, longest: float) -> None:
        self._first = min(seconds, longest)
        self._longest = longest
        self._seconds = self._first
        self._slow_at = float("-inf")
        self._doubled_at = float("-inf")
        self._has_slow_answers = False

    def get(self, now: float) -> float:
        """Return the limit for a call that begins now."""
        if now - self._slow_at > (_CALM if self._has_slow_answers else 2 * self._seconds):
            self._seconds, self._has_slow_answers = self._first, False
        return self._seconds

    def double(self, now: float, *, began_at: float) -> None:
        """Note that no answer came within the limit to a call that began then."""
        self._slow_at = now
        if began_at >= self._doubled_at:  # an earlier call waited beside the one that doubled it
            self._seconds = min(2 * self._seconds, self._longest)
            self._doubled_at = now

    def note(self, seconds: float, now: float) -> None:
        """Note an answer. While some are slower than the first limit, the limit does not go back."""
        if seconds > self._first:
            self._slow_at, self._has_slow_answers = now, True


def limit_answers(lease: float, *, timeout: float) -> AnswerLimit:
    """Return the limit of what a relay asks with a lease of so many seconds, except heartbeats: less than a lease."""
    return AnswerLimit(max(_LEAST_LIMIT, lease / 3), longest=min(max(_LEAST_LONGEST, 0.9 * lease), timeout))


def limit_heartbeats(lease: float, *, timeout: float) -> AnswerLimit:
    """Return the limit of heartbeats: never more than a third of the lease, so that two more fit into it."""
    return AnswerLimit(
        max(_LEAST_HEARTBEAT_LIMIT, lease / 5), longest=min(max(_LEAST_HEARTBEAT_LIMIT, lease / 3), timeout)
    )


def set_keepalive(connection: Any) -> None:
    """Let the kernel probe a TCP connection, as far as the system can: a vanished host is an error soon.

    It bounds a wait that has no limit of its own, such as the change of a large table. Probes also keep an idle
    connection in the memory of the firewalls on its way.
    """
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS:
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
