"""From a name to addresses that may be connected to. Without any driver."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from pillarbox.transports.addresses import refusal

__all__ = ["ForbiddenAddress", "Lookup", "checked", "system_lookup"]

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host at a port."""


class ForbiddenAddress(OSError):
    """A name leads to an address that must not be connected to."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """Ask the operating system."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def checked(lookup: Lookup, host: str, port: int, *, allow_private: bool, seconds: float) -> Sequence[str]:
    """The addresses of a host, if every one of them is allowed; otherwise `ForbiddenAddress`, and none is used."""
    try:
        async with asyncio.timeout(seconds):
            addresses = await lookup(host, port)
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, "the name could not be looked up in time") from None
    for address in addresses:
        if what := refusal(address, allow_private=allow_private):
            advice = "" if allow_private else "; if that is yours and private, add allow_private=true"
            raise ForbiddenAddress(f"its name leads to {address}, {what}{advice}")
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
    return addresses
