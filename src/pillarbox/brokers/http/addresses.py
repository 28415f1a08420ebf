"""Addresses that a webhook may be sent to. Decided by address, never by name.

`ipaddress.is_global` alone is not enough: 64:ff9b::7f00:1, 2002:7f00:1:: and 224.0.0.1 are global to it, and the first
two lead to 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["ForbiddenAddress", "Lookup", "describe_if_forbidden", "resolve_allowed", "system_lookup"]

_PRIVATE_4: Final = (
    (IPv4Network("127.0.0.0/8"), "a loopback address"),
    (IPv4Network("10.0.0.0/8"), "a private address"),
    (IPv4Network("172.16.0.0/12"), "a private address"),
    (IPv4Network("192.168.0.0/16"), "a private address"),
    (IPv4Network("100.64.0.0/10"), "a carrier's shared address"),
)
_NEVER_4: Final = (
    (IPv4Network("100.100.100.200/32"), "a cloud's metadata address"),
    (IPv4Network("0.0.0.0/8"), "an unspecified address"),
    (IPv4Network("169.254.0.0/16"), "a link-local address"),
    (IPv4Network("192.0.0.0/24"), "a reserved address"),
    (IPv4Network("192.0.2.0/24"), "a documentation address"),
    (IPv4Network("192.88.99.0/24"), "a 6to4 relay"),
    (IPv4Network("198.18.0.0/15"), "a benchmarking address"),
    (IPv4Network("198.51.100.0/24"), "a documentation address"),
    (IPv4Network("203.0.113.0/24"), "a documentation address"),
    (IPv4Network("224.0.0.0/4"), "a multicast address"),
    (IPv4Network("240.0.0.0/4"), "a reserved address"),
)
_PRIVATE_6: Final = (
    (IPv6Network("::1/128"), "a loopback address"),
    (IPv6Network("fc00::/7"), "a private address"),
)
_NEVER_6: Final = (
    (IPv6Network("fd00:ec2::254/128"), "a cloud's metadata address"),
    (IPv6Network("fd20:ce::254/128"), "a cloud's metadata address"),
    (IPv6Network("2001::/32"), "a Teredo tunnel"),
    (IPv6Network("2001::/23"), "a reserved address"),
    (IPv6Network("2001:db8::/32"), "a documentation address"),
    (IPv6Network("2002::/16"), "a 6to4 tunnel"),
    (IPv6Network("3fff::/20"), "a documentation address"),
    (IPv6Network("64:ff9b:1::/48"), "a local NAT64 address"),
    (IPv6Network("::/128"), "an unspecified address"),
    (IPv6Network("fe80::/10"), "a link-local address"),
    (IPv6Network("ff00::/8"), "a multicast address"),
)
_NAT64: Final = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")


def describe_if_forbidden(address: str | IPv4Address | IPv6Address, *, allow_private: bool = False) -> str | None:
    """Return the kind of a forbidden address, such as "a loopback address"; None if the address is allowed.

    `allow_private` allows loopback, private and shared addresses, and NAT64 translations of what is then allowed.
    Link-local and cloud metadata addresses, multicast, tunnels and everything reserved stay forbidden.
    """
    ip = ip_address(address) if isinstance(address, str) else address
    if isinstance(ip, IPv4Address):
        return _find_kind(ip, _NEVER_4) or (None if allow_private else _find_kind(ip, _PRIVATE_4))
    return _describe_ipv6(ip, allow_private=allow_private)


def _describe_ipv6(ip: IPv6Address, *, allow_private: bool) -> str | None:
    if ip.ipv4_mapped is not None:
        return describe_if_forbidden(ip.ipv4_mapped, allow_private=allow_private)
    if ip in _NAT64:
        embedded = describe_if_forbidden(IPv4Address(int(ip) & 0xFFFF_FFFF), allow_private=allow_private)
        return embedded or (None if allow_private else "a NAT64 address")
    if never := _find_kind(ip, _NEVER_6):
        return never
    if private := _find_kind(ip, _PRIVATE_6):
        return None if allow_private else private
    return None if ip in _GLOBAL_UNICAST else "a reserved address"


def _find_kind(
    ip: IPv4Address | IPv6Address, networks: tuple[tuple[IPv4Network | IPv6Network, str], ...]
) -> str | None:
    return next((kind for network, kind in networks if ip in network), None)


Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a host at a port."""


class ForbiddenAddress(OSError):
    """A host name resolves to an address that must not be connected to."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """Find the addresses of a host with the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def resolve_allowed(
    lookup: Lookup, host: str, port: int, *, allow_private: bool, seconds: float
) -> Sequence[str]:
    """Return the addresses of a host; raise `ForbiddenAddress` if a single one of them is forbidden."""
    try:
        async with asyncio.timeout(seconds):
            addresses = await lookup(host, port)
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, "the name could not be looked up in time") from None
    for address in addresses:
        if kind := describe_if_forbidden(address, allow_private=allow_private):
            advice = "" if allow_private else "; if that is yours and private, add allow_private=true"
            raise ForbiddenAddress(f"its name leads to {address}, {kind}{advice}")
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
    return addresses
