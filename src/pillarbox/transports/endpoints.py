"""Where a broker is and as whom we come: the part of a broker's URL before its options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal
from urllib.parse import unquote

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.transports.secret import Secret
from pillarbox.transports.tls import Tls
from pillarbox.transports.urls import shown

__all__ = ["BrokerSettings", "Endpoint", "Login", "endpoint_of"]

_PLACE: Final = re.compile(r"[a-z][a-z0-9.-]*://(?:(?P<login>[^/@]*)@)?(?P<hosts>[^/@]+)(?:/(?P<path>.*))?", re.DOTALL)
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,5}))?")
_LONGEST: Final = timedelta(hours=1)


class Endpoint(msgspec.Struct, frozen=True):
    """A broker's servers, and what the URL says after them, percent-decoded."""

    hosts: tuple[tuple[str, int], ...]
    path: str | None
    user: str | None = None
    password: Secret | None = None


class Login(msgspec.Struct, frozen=True):
    """As whom we come. Shown, it keeps the password to itself."""

    user: str | None
    password: str | None

    def __repr__(self) -> str:
        return f"Login({self.user!r}, {'***' if self.password else None})"


class BrokerSettings(Tls, frozen=True, kw_only=True):
    """What every broker's transport can be told. Wrong settings are a `ConfigError` when they are made."""

    url: str
    """Where the broker is, perhaps with a login."""
    user: str | None = None
    password: Secret | None = None
    """The login, if it is not in the URL."""
    mode: Literal["binary", "structured"] = "binary"
    """CloudEvents: attributes as native headers and the payload as the body, or all in one JSON document."""
    timeout: timedelta = timedelta(seconds=10)
    """For the broker's answer to a message, and for connecting. Below the relay's send timeout."""
    insecure: bool = False
    """Let `verify` be switched off."""

    def __post_init__(self) -> None:
        self.check(insecure=self.insecure, far_side="broker")
        if not timedelta(0) < self.timeout <= _LONGEST:
            raise ConfigError("The option timeout of a broker's transport must be over 0 and at most 1 hour.")

    @property
    def shown(self) -> str:
        """The broker's address for people, without login and path."""
        return shown(self.url)

    def login(self, endpoint: Endpoint, *, environ: Mapping[str, str] = os.environ) -> Login:
        """The login of the options, or of the URL; `ConfigError` when both have one."""
        if self.password is not None and endpoint.password is not None:
            raise ConfigError("The password is given in the transport URL and as an option; leave one.")
        password = self.password or endpoint.password
        return Login(
            self.user or endpoint.user, None if password is None else password.read(option="password", environ=environ)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Everything but the login in the URL. Secrets hide themselves."""
        others = [name for name in self.__struct_fields__ if name != "url"]
        return [("url", self.shown), *((name, getattr(self, name)) for name in others)]


def endpoint_of(url: str, *, port: int, transport: str) -> Endpoint:
    """Take a broker's URL apart. Several servers are written with commas; `ConfigError` repeats no part of a login."""
    match = _PLACE.fullmatch(url)
    if match is None:
        raise ConfigError(f"The {transport} transport's URL needs a host, such as {_scheme(url)}://broker.example.")
    user, _, password = (match["login"] or "").partition(":")
    return Endpoint(
        tuple(_host(part, port=port, transport=transport) for part in match["hosts"].split(",")),
        None if match["path"] is None else unquote(match["path"]),
        unquote(user) or None,
        Secret(unquote(password)) if password else None,
    )


def _host(text: str, *, port: int, transport: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None or (match["port"] and not 0 < int(match["port"]) < 65_536):
        raise ConfigError(f"A host in the {transport} transport's URL cannot be read; write name:port.")
    return match["six"] or match["name"], int(match["port"] or port)


def _scheme(url: str) -> str:
    return url.partition(":")[0]
