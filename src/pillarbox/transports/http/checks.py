"""Whether a URL and headers can be used as they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pillarbox.errors import ConfigError
from pillarbox.limits import RESERVED_PREFIXES
from pillarbox.transports.addresses import refusal

__all__ = ["FRAMING", "check_headers", "check_url", "is_header"]

_URL: Final = re.compile(r"https?://[!-~]+")
_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_NUMBER: Final = re.compile(r"(?:\d+|0[xX][0-9a-fA-F]*)\.?")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile("[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
FRAMING: Final = frozenset(
    {
        "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that say where a request begins and ends, or what it is. Only the transport itself sets them."""


def check_url(url: str, *, allow_private: bool, insecure: bool) -> None:
    """`ConfigError` for a URL that is malformed, not private enough, or leads where it must not."""
    if not _URL.fullmatch(url) or "\\" in url:
        raise ConfigError("The http transport needs a URL such as https://shop.example/hooks, in ASCII.")
    parts = _split(url)
    if "@" in parts.netloc:
        raise ConfigError("The endpoint's URL holds a login; write it as headers.authorization=env:NAME instead.")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ConfigError("The endpoint's own query is given as query.name=value, and a fragment is never sent.")
    if parts.scheme == "http" and not (allow_private or insecure):
        raise ConfigError(
            "Messages would go over http:// unencrypted; use https://, or allow_private=true inside your own network, "
            "or insecure=true."
        )
    _check_host(parts.netloc, allow_private=allow_private)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigError(
            "The address in brackets in the endpoint's URL cannot be read; write such as [2001:db8::1]."
        ) from None


def _check_host(netloc: str, *, allow_private: bool) -> None:
    host, port = _cut(netloc)
    if port and not (port.isdigit() and 0 < int(port) < 65_536):
        raise ConfigError("The port in the endpoint's URL is not a number between 1 and 65535.")
    try:
        address = ip_address(host)
    except ValueError:
        _check_name(host)
        return
    what = refusal(address, allow_private=allow_private)
    if what is not None:
        raise ConfigError(_forbidden(str(address), what, allow_private=allow_private))


def _cut(netloc: str) -> tuple[str, str]:
    if netloc.startswith("["):
        host, _, rest = netloc[1:].partition("]")
        # What is in brackets can be nothing but an IPv6 address; a name there must not pass as one.
        return (host if ":" in host else ""), rest.removeprefix(":") if rest.startswith(":") or not rest else "?"
    host, _, port = netloc.partition(":")
    return host, port


def _check_name(host: str) -> None:
    if not _NAME.fullmatch(host):
        raise ConfigError(
            "The host in the endpoint's URL cannot be read; write a name (ASCII, as xn--…) or an address."
        )
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        # 127.1, 0x7f000001 and the like: some resolvers take them for addresses, and none needs them.
        raise ConfigError("The host in the endpoint's URL is not an address in its plain form; write it as 192.0.2.1.")


def _forbidden(address: str, what: str, *, allow_private: bool) -> str:
    advice = "this is never allowed" if allow_private else "if it is yours and private, add allow_private=true"
    return f"The endpoint is at {address}, {what}, where webhooks do not go; {advice}."


def check_headers(names: Iterable[str]) -> None:
    """`ConfigError` for a configured header that would break the request or stand in for one of its own."""
    seen: set[str] = set()
    for name in names:
        lower = name.lower()
        if not _TOKEN.fullmatch(name):
            raise ConfigError(f"The header name {name!r} in the option headers is not usable.")
        if lower in FRAMING or lower.startswith(RESERVED_PREFIXES):
            raise ConfigError(f"The header {name!r} is set by the http transport itself; leave it out of headers.")
        if lower in seen:
            raise ConfigError(f"The header {name!r} is in the option headers twice, in different letter case.")
        seen.add(lower)


def is_header(name: str, value: str) -> bool:
    """Whether a header can be sent without changing what the request is."""
    return _TOKEN.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None
