"""Hosts: whether what is sent to one leaves this machine."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final

__all__ = ["is_local_host"]

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
