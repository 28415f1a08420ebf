"""URLs of transports and receivers, and the settings that all brokers have.

    https://shop.example/hooks?secret=env:HOOK_SECRET   handlers:shop.mail:handlers   memory:

What follows the `?` are options, `name=value`, percent-encoded where needed. A name with a dot is one entry of a table:
`headers.x-tenant=shop`. An option given twice is a list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final, Literal, TypeVar
from urllib.parse import unquote

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.brokers.tls import Tls
from pillarbox.errors import ConfigError
from pillarbox.hosts import is_local_host
from pillarbox.redaction import Secret, display_url
from pillarbox.settings import parse_options

__all__ = [
    "BrokerSettings",
    "Endpoint",
    "Login",
    "TransportUrl",
    "parse_endpoint",
    "parse_settings",
    "parse_transport_url",
]

S = TypeVar("S", bound=msgspec.Struct)
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<location>[^?#]*)(?:\?(?P<query>[^#]*))?")
_OPTION: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\.(?P<entry>[A-Za-z0-9_.-]+))?=(?P<value>.*)", re.DOTALL)


class TransportUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. Its text hides the path and the options, which may be secret."""

    scheme: str
    location: str
    """The part between the scheme's colon and the question mark."""
    options: Mapping[str, object] = {}

    @property
    def address(self) -> str:
        """The URL without its options."""
        return f"{self.scheme}:{self.location}"

    def __str__(self) -> str:
        return display_url(self.address)

    def __repr__(self) -> str:
        return f"TransportUrl({str(self)!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("address", str(self))]


def parse_transport_url(text: str, *, options: Mapping[str, object]) -> TransportUrl:
    """Parse a URL and add the options given beside it; a `ConfigError` repeats none of their values."""
    match = _URL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            "The transport URL cannot be read: write scheme:place?option=value, and a '#' in it as %23, for example "
            "https://shop.example/hooks?timeout=10s."
        )
    _check_login_end(match["scheme"].lower(), match["location"], match["query"] or "")
    in_url = _parse_options(match["query"] or "")
    for name in in_url:
        if name in options:
            raise ConfigError(f"The option {name} is given in the transport URL and beside it; leave one.")
    return TransportUrl(scheme=match["scheme"].lower(), location=match["location"], options={**in_url, **options})


def _check_login_end(scheme: str, location: str, query: str) -> None:
    """Raise `ConfigError` where a password may hold a bare `/`, `?` or `@`: its rest would pass for host or option."""
    if not location.startswith("//"):
        return
    authority, _, path = location[2:].partition("/")
    is_webhook = scheme in ("http", "https") and ":" not in authority
    if authority.count("@") > 1 or ("@" in path + query and not is_webhook):
        raise ConfigError(
            "The end of the login in the transport URL is uncertain: write / ? # @ : in the user and the password, and "
            "an @ in the path and in options, as %2F %3F %23 %40 %3A."
        )


def _parse_options(query: str) -> dict[str, object]:
    options: dict[str, object] = {}
    for pair in query.split("&") if query else ():
        match = _OPTION.fullmatch(pair)
        if match is None:
            raise ConfigError("The transport URL has something after its '?' that is not name=value.")
        # Not `unquote_plus`: secrets in base64 have a + of their own.
        _add_option(options, match["name"], match["entry"], unquote(match["value"]))
    return options


def _add_option(options: dict[str, object], name: str, entry: str | None, value: str) -> None:
    if entry is not None:
        table = options.setdefault(name, {})
        if not isinstance(table, dict) or entry in table:
            raise ConfigError(f"The transport URL sets the option {name}.{entry} twice; leave one.")
        table[entry] = value
    elif name not in options:
        options[name] = value
    else:
        earlier = options[name]
        if isinstance(earlier, dict):
            raise ConfigError(f"The transport URL sets the option {name} and an entry of it; leave one.")
        options[name] = [*earlier, value] if isinstance(earlier, list) else [earlier, value]


_ENDPOINT: Final = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:(?P<login>[^/@]*)@)?(?P<hosts>[^/@]+)(?:/(?P<path>.*))?", re.DOTALL
)
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,9}))?")
_LONGEST_TIMEOUT: Final = timedelta(hours=1)


class Endpoint(msgspec.Struct, frozen=True):
    """A broker's servers, and the other parts of its URL, percent-decoded."""

    hosts: tuple[tuple[str, int], ...]
    """Name and port of each server."""
    path: str | None
    user: str | None = None
    """The user; a token where NATS has no colon in its login."""
    password: Secret | None = None

    @property
    def is_remote(self) -> bool:
        """Whether one of the servers is on another machine."""
        return any(not is_local_host(host) for host, _ in self.hosts)

    def __repr__(self) -> str:
        return f"Endpoint({', '.join(f'{host}:{port}' for host, port in self.hosts)})"


class Login(msgspec.Struct, frozen=True):
    """A user and a password. Its text hides both: with NATS the user may be a token."""

    user: str | None
    password: str | None

    def __repr__(self) -> str:
        return "Login(***)"


class BrokerSettings(Tls, frozen=True, kw_only=True):
    """Settings of every broker's transport and receiver. Wrong ones raise `ConfigError` when they are built."""

    url: str
    """The broker's address, perhaps with a login."""
    user: str | None = None
    password: Secret | None = None
    """The login, if it is not in the URL."""
    mode: Literal["binary", "structured"] = "binary"
    """CloudEvents: attributes as native headers and the payload as the body, or all in one JSON document."""
    timeout: timedelta = timedelta(seconds=10)
    """For the broker's answer to a message, and for connecting. Below the relay's send timeout."""
    insecure: bool = False
    """Allow `verify=false`."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.check(insecure=self.insecure, far_side="broker")
        if not timedelta(0) < self.timeout <= _LONGEST_TIMEOUT:
            raise ConfigError("The option timeout of a broker's transport must be over 0 and at most 1 hour.")

    @property
    def display_url(self) -> str:
        """The broker's address for people, without login and path."""
        return display_url(self.url)

    def login(self, endpoint: Endpoint, *, environ: Mapping[str, str] = os.environ) -> Login:
        """Read the login from the options or the URL; raise `ConfigError` when both have a password."""
        if self.password is not None and endpoint.password is not None:
            raise ConfigError("The password is given in the transport URL and as an option; leave one.")
        password = self.password or endpoint.password
        return Login(
            self.user or endpoint.user, None if password is None else password.read(option="password", environ=environ)
        )

    def describe_clear_login(self) -> str | None:
        """Return how to encrypt the connection, if a login goes to another machine without that; otherwise None."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """All fields, without the login in the URL. Secrets hide themselves."""
        others = [name for name in self.__struct_fields__ if name != "url"]
        return [("url", self.display_url), *((name, getattr(self, name)) for name in others)]


def parse_settings(
    cls: type[S], url: TransportUrl, *, broker: str, kind: str = "transport", required: Sequence[str] = ()
) -> S:
    """Build the settings of a transport or receiver from its URL and options.

    A `ConfigError` names the wrong or missing option, never its value.
    """
    if "url" in url.options:
        raise ConfigError(f"The {broker} {kind}'s URL is given twice: leave out the option url.")
    for option in required:
        if option not in url.options:
            raise ConfigError(f"The {broker} {kind} needs a {option}: add {option}=NAME.")
    return parse_options(cls, {**url.options, "url": url.address}, transport=broker)


def parse_endpoint(url: str, *, port: int, transport: str) -> Endpoint:
    """Parse a broker's URL, with commas between several servers; a `ConfigError` repeats no part of a login."""
    match = _ENDPOINT.fullmatch(url)
    if match is None:
        scheme = url.partition(":")[0]
        raise ConfigError(f"The {transport} transport's URL needs a host, such as {scheme}://broker.example.")
    user, _, password = (match["login"] or "").partition(":")
    return Endpoint(
        tuple(_parse_host(part, port=port, transport=transport) for part in match["hosts"].split(",")),
        None if match["path"] is None else unquote(match["path"]),
        unquote(user) or None,
        Secret(unquote(password)) if password else None,
    )


def _parse_host(text: str, *, port: int, transport: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is not None and match["port"] and not 0 < int(match["port"]) < 65_536:
        raise ConfigError(
            f"The port {match['port']} in the {transport} transport's URL is not between 1 and 65535: correct it."
        )
    if match is None:
        raise ConfigError(f"A host in the {transport} transport's URL cannot be read; write name:port.")
    return match["v6"] or match["name"], int(match["port"] or port)
