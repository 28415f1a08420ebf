"""Hosts: whether what is sent to one leaves this machine, and which of several is tried next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, TypeVar

__all__ = ["HostList", "connect_first", "is_local_host"]

H = TypeVar("H")
T = TypeVar("T")
_AVOIDED: Final = 30.0
"""Seconds for which a server that failed is tried after the others."""

_LOCAL_NAMES: Final = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
)


def is_local_host(host: str) -> bool:
    """Return True for a loopback address, a Unix socket and the names that always mean this machine.

    No name is looked up: what an answer from the network says must not decide whether the network is trusted.
    """
    if not host or host.startswith(("/", "@")):  # no host is this machine; a path or an @ is a Unix socket
        return True
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = (host[1:-1] if is_bracketed else host).removesuffix(".").lower()
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


class HostList(Generic[H]):
    """Servers of which one is enough, in the order in which a connection tries them.

    The order is that of the URL, so that processes with the same URL come to the same server. One that failed lately
    comes last: a server that is frozen, or away without a word, would cost every new connection its share of the time.
    """

    def __init__(self, hosts: Sequence[H], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hosts = list(hosts)
        self._clock = clock
        self._failed_at: dict[int, float] = {}
        """By place in the list."""

    def __len__(self) -> int:
        return len(self._hosts)

    def order(self) -> Sequence[H]:
        """Return the servers, the one to try first at the beginning."""
        return [self._hosts[place] for place in self._order_places()]

    def divide(self, seconds: float) -> Iterator[tuple[H, float]]:
        """Yield each server with the time that it may take: an equal share of what the ones before it have left."""
        ends_at = self._clock() + seconds
        places = self._order_places()
        for index, place in enumerate(places):
            left = len(places) - index
            yield self._hosts[place], max(0.0, ends_at - self._clock()) / left

    def note_failure(self, host: H) -> None:
        """Note that this server did not accept, or is of no use any more: it comes last for a while."""
        self._failed_at[self._hosts.index(host)] = self._clock()

    def note_success(self, host: H) -> None:
        """Note that this server accepted."""
        self._failed_at.pop(self._hosts.index(host), None)

    def _order_places(self) -> list[int]:
        oldest = self._clock() - _AVOIDED
        failed = {place: at for place, at in self._failed_at.items() if at > oldest}
        return sorted(range(len(self._hosts)), key=lambda place: (place in failed, failed.get(place, 0.0), place))


async def connect_first(
    hosts: HostList[H],
    connect: Callable[[H, float], Awaitable[T]],
    *,
    seconds: float,
    errors: type[Exception] | tuple[type[Exception], ...],
) -> T:
    """Return the connection of the first server that accepts; raise the first of these errors if none does.

    `connect` gets a server and the seconds that it may take. All of them together take at most `seconds`, so that a
    frozen server does not use up the time of the others.
    """
    first: Exception | None = None
    for host, share in hosts.divide(seconds):
        try:
            connection = await connect(host, share)
        except errors as error:
            hosts.note_failure(host)
            first = first or error
        except asyncio.CancelledError:  # somebody waits no longer: the next attempt begins with another server
            hosts.note_failure(host)
            raise
        else:
            hosts.note_success(host)
            return connection
    raise first or ValueError("There is no server to connect to: name one.")
