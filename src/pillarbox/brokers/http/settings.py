"""Settings of the HTTP transport, and the checks of its URL and headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from ipaddress import ip_address
from typing import Final, Literal
from urllib.parse import urlsplit

from pillarbox.arguments import check_fields
from pillarbox.brokers.http.addresses import describe_if_forbidden
from pillarbox.brokers.http.errors import REJECTS, check_rejects
from pillarbox.brokers.settings import TransportUrl, parse_settings
from pillarbox.brokers.tls import Tls
from pillarbox.errors import ConfigError
from pillarbox.hosts import is_local_host
from pillarbox.message import RESERVED_PREFIXES
from pillarbox.redaction import Secret, display_url

__all__ = ["FRAMING_HEADERS", "HttpSettings", "http_settings", "is_valid_header"]

_MAX_TIMEOUT: Final = timedelta(hours=1)


class HttpSettings(Tls, frozen=True, kw_only=True):
    """One endpoint, and how to send to it. Raises `ConfigError` for wrong settings."""

    url: str
    """URL of the endpoint, without a login and without a query."""
    mode: Literal["binary", "structured"] | None = None
    """CloudEvents: attributes as headers and the payload as the body, or all in one JSON document.

    Not set: structured with a secret, because a signature covers the body and no header; otherwise binary."""
    batch: bool = False
    """Send several messages of one key in one request, as a CloudEvents batch. The endpoint must take such batches."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    timeout: timedelta = timedelta(seconds=15)
    """Limit for one message, until its response is complete. A third of it can be used for connecting."""
    concurrency: int = 64
    """Limit of requests, and so of connections, at once."""
    secret: tuple[Secret, ...] = ()
    """Secrets that sign each request. To change one, list the new one beside the old one for a while."""
    headers: Mapping[str, Secret] = {}
    """Headers of every request. They win over headers of the message."""
    query: Mapping[str, Secret] = {}
    """Query of the endpoint's URL."""
    rejects: frozenset[int] = REJECTS
    """The 4xx statuses which mean that the endpoint will never take the message."""
    gone: Literal["unavailable", "reject"] = "unavailable"
    """Meaning of 410: the endpoint is out of service, or it will never take the message."""
    missing: frozenset[int] = frozenset()
    """The 4xx statuses which mean that the endpoint is not there: messages wait, as for a missing queue."""
    health: str | None = None
    """Path on the same server that answers GET with 2xx while the endpoint works. Then a ping is a witness."""
    allow_private: bool = False
    """Allow a loopback or private address, and http://."""
    insecure: bool = False
    """Allow http:// everywhere, and `verify=false`."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_url(self.url, allow_private=self.allow_private, insecure=self.insecure)
        _check_headers(self.headers)
        check_rejects(self.rejects, missing=self.missing)
        if self.health is not None and not _PATH.fullmatch(self.health):
            raise ConfigError("The option health of the http transport is a path such as /health, in ASCII.")
        if not timedelta(0) < self.timeout <= _MAX_TIMEOUT:
            raise ConfigError("The option timeout of the http transport must be over 0 and at most 1 hour.")
        if not 1 <= self.concurrency <= 10_000:
            raise ConfigError("The option concurrency of the http transport must be between 1 and 10000.")
        self.check(insecure=self.insecure, far_side="endpoint")

    @property
    def used_mode(self) -> Literal["binary", "structured"]:
        """The mode that is set, or the one that suits the secrets."""
        return self.mode or ("structured" if self.secret else "binary")

    def describe_clear_login(self) -> str | None:
        """Return how to encrypt the requests, if a secret or its signature goes to another machine without that."""
        parts = urlsplit(self.url)
        if (
            parts.scheme == "https"
            or is_local_host(parts.hostname or "")
            or not (self.secret or self.headers or self.query)
        ):
            return None
        return "a URL with https://"

    def __repr__(self) -> str:
        return f"HttpSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Return all settings, the URL without its path, which is often a secret. Secrets hide themselves."""
        others = [name for name in self.__struct_fields__ if name != "url"]
        return [("url", display_url(self.url)), *((name, getattr(self, name)) for name in others)]


def http_settings(url: TransportUrl) -> HttpSettings:
    """Build the settings from a URL and the options beside it."""
    return parse_settings(HttpSettings, url, broker="http")


_PATH: Final = re.compile(r"/(?!/)[!-~]*")
_URL: Final = re.compile(r"https?://[!-~]+")
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_NUMERIC_LABEL: Final = re.compile(r"(?:\d+|0[xX][0-9a-fA-F]*)\.?")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile("[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
FRAMING_HEADERS: Final = frozenset(
    {
        "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive", "te",
        "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that define where a request ends or what it is. Only the transport itself sets them."""


def _check_url(url: str, *, allow_private: bool, insecure: bool) -> None:
    if not _URL.fullmatch(url) or "\\" in url:
        raise ConfigError("The http transport needs a URL such as https://shop.example/hooks, in ASCII.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(
            "The address in brackets in the endpoint's URL cannot be read; write such as [2001:db8::1]."
        ) from None
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


def _check_host(netloc: str, *, allow_private: bool) -> None:
    host, port = _split_netloc(netloc)
    if port and not (port.isdigit() and 0 < int(port) < 65_536):
        raise ConfigError("The port in the endpoint's URL is not a number between 1 and 65535.")
    try:
        address = ip_address(host)
    except ValueError:
        _check_host_name(host)
        return
    kind = describe_if_forbidden(address, allow_private=allow_private)
    if kind is not None:
        advice = "this is never allowed" if allow_private else "if it is yours and private, add allow_private=true"
        raise ConfigError(f"The endpoint is at {address}, {kind}, where webhooks do not go; {advice}.")


def _split_netloc(netloc: str) -> tuple[str, str]:
    if netloc.startswith("["):
        host, _, rest = netloc[1:].partition("]")
        # Only an IPv6 address can stand in brackets; a name there must not pass the check of names.
        return (host if ":" in host else ""), rest.removeprefix(":") if rest.startswith(":") or not rest else "?"
    host, _, port = netloc.partition(":")
    return host, port


def _check_host_name(host: str) -> None:
    if not _HOST_NAME.fullmatch(host):
        raise ConfigError(
            "The host in the endpoint's URL cannot be read; write a name (ASCII, as xn--…) or an address."
        )
    if _NUMERIC_LABEL.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        # Some resolvers take 127.1 or 0x7f000001 for an address, which would bypass the check of addresses.
        raise ConfigError("The host in the endpoint's URL is not an address in its plain form; write it as 192.0.2.1.")


def _check_headers(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(f"The header name {name!r} in the option headers is not usable.")
        if lower in FRAMING_HEADERS or lower.startswith(RESERVED_PREFIXES):
            raise ConfigError(f"The header {name!r} is set by the http transport itself; leave it out of headers.")
        if lower in seen:
            raise ConfigError(f"The header {name!r} is in the option headers twice, in different letter case.")
        seen.add(lower)


def is_valid_header(name: str, value: str) -> bool:
    """Return True if a header can be sent without breaking up the request."""
    return _HEADER_NAME.fullmatch(name) is not None and _HEADER_VALUE.fullmatch(value) is not None
