"""Which addresses a webhook may be sent to. Pure; decided by address, never by name.

`ipaddress.is_global` alone would not do: it calls 64:ff9b::7f00:1, 2002:7f00:1:: and 224.0.0.1 global, and the first
two lead to 127.0.0.1.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["refusal"]

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


def refusal(address: str | IPv4Address | IPv6Address, *, allow_private: bool = False) -> str | None:
    """What the address is that forbids connecting to it, such as "a loopback address"; None when it is allowed.

    `allow_private` opens loopback, private and shared addresses, and NAT64 translations of what is then allowed.
    Link-local and cloud metadata addresses, multicast, tunnels and everything reserved stay closed.
    """
    where = ip_address(address) if isinstance(address, str) else address
    if isinstance(where, IPv4Address):
        return _listed(where, _NEVER_4) or (None if allow_private else _listed(where, _PRIVATE_4))
    return _refusal_6(where, allow_private=allow_private)


def _refusal_6(where: IPv6Address, *, allow_private: bool) -> str | None:
    if where.ipv4_mapped is not None:
        return refusal(where.ipv4_mapped, allow_private=allow_private)
    if where in _NAT64:
        embedded = refusal(IPv4Address(int(where) & 0xFFFF_FFFF), allow_private=allow_private)
        return embedded or (None if allow_private else "a NAT64 address")
    if never := _listed(where, _NEVER_6):
        return never
    if private := _listed(where, _PRIVATE_6):
        return None if allow_private else private
    return None if where in _GLOBAL_UNICAST else "a reserved address"


def _listed(
    where: IPv4Address | IPv6Address, networks: tuple[tuple[IPv4Network | IPv6Network, str], ...]
) -> str | None:
    return next((what for network, what in networks if where in network), None)
