"""What the HTTP transport can be told. The same from a URL, a TOML table and code."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from pillarbox.errors import ConfigError
from pillarbox.transports.http.checks import check_headers, check_url
from pillarbox.transports.http.verdicts import REJECTS, check_rejects
from pillarbox.transports.secret import Secret
from pillarbox.transports.settings import settings_from
from pillarbox.transports.tls import Tls
from pillarbox.transports.urls import TransportUrl, shown

__all__ = ["HttpSettings", "http_settings"]

_LONGEST: Final = timedelta(hours=1)


class HttpSettings(Tls, frozen=True, kw_only=True):
    """One endpoint, and how to speak to it. Wrong settings are a `ConfigError` when they are made."""

    url: str
    """Where messages go, without a login and without a query."""
    mode: Literal["binary", "structured"] = "binary"
    """CloudEvents: attributes as headers and the payload as the body, or all in one JSON document."""
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    timeout: timedelta = timedelta(seconds=15)
    """For one message, from the first byte to the last of the answer. A third of it may go into connecting."""
    concurrency: int = 64
    """How many requests, and so connections, at once."""
    secret: tuple[Secret, ...] = ()
    """Signs each request, once by every one of them: put the new one beside the old one to change it."""
    headers: Mapping[str, Secret] = {}
    """Sent with every request. They go before headers of the message."""
    query: Mapping[str, Secret] = {}
    """The query of the endpoint."""
    rejects: frozenset[int] = REJECTS
    """Which answers, of 4xx, mean that the message itself will never be taken."""
    gone: Literal["unavailable", "reject"] = "unavailable"
    """What 410 means: the endpoint is out of service, or this message is."""
    allow_private: bool = False
    """Let the endpoint be at a loopback or private address, and at http://."""
    insecure: bool = False
    """Let http:// be used anywhere, and `verify` be switched off."""

    def __post_init__(self) -> None:
        check_url(self.url, allow_private=self.allow_private, insecure=self.insecure)
        check_headers(self.headers)
        check_rejects(self.rejects)
        if not timedelta(0) < self.timeout <= _LONGEST:
            raise ConfigError("The option timeout of the http transport must be over 0 and at most 1 hour.")
        if not 1 <= self.concurrency <= 10_000:
            raise ConfigError("The option concurrency of the http transport must be between 1 and 10000.")
        self.check(insecure=self.insecure, far_side="endpoint")

    def __repr__(self) -> str:
        return f"HttpSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """The URL without its path, which is often a secret. Secrets hide themselves."""
        others = [name for name in self.__struct_fields__ if name != "url"]
        return [("url", shown(self.url)), *((name, getattr(self, name)) for name in others)]


def http_settings(url: TransportUrl) -> HttpSettings:
    """The settings in a URL and the options beside it."""
    if "url" in url.options:
        raise ConfigError("The http transport's URL is given twice: leave out the option url.")
    return settings_from(HttpSettings, {**url.options, "url": url.address}, transport="http")
