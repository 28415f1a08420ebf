"""`[dashboard]`: who may look and act, and what the dashboard shows. Needs no web framework to be read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from pillarbox.config import Config, read_section
from pillarbox.dashboard.access import Authorize, basic_auth, bearer_token, first_of, parse_role, proxy_header
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

__all__ = ["DashboardSettings", "build_authorize", "read_dashboard_section", "to_message_url"]

_USER: Final = re.compile(r"(?P<name>[^:\s]{1,100}):(?P<role>[a-z]+):(?P<password>(?:env|file):.+)")
_URL: Final = re.compile(r"https?://[^\s/?#@]+(?:/[^\s?#@]*)?")
_REFERENCE: Final = re.compile(r"(?:env|file):.+")


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the dashboard that `pillarbox dashboard` and `pillarbox relay --dashboard` serve."""

    users: Sequence[str] = ()
    """Names with their roles and passwords: `ann:operator:env:ANN_PASSWORD`. The browser asks for them."""
    token: str | None = None
    """`env:NAME` or `file:/path` of a token that programs send as `Authorization: Bearer …`."""
    token_role: str = "operator"  # noqa: S105 - a role
    proxy_header: str | None = None
    """Header in which a proxy puts the name of the user that it has checked."""
    proxy_peers: Sequence[str] = ()
    """Addresses and networks of such proxies."""
    proxy_role: str = "viewer"
    """Role of the users that a proxy names."""
    read_only: bool = False
    """Actions do not exist."""
    environment: str = ""
    """Shown on every page: `production`, `staging`."""
    journal_payloads: bool = False
    """Whoever looks at a payload has a line in the journal."""
    trace_url: str | None = None
    """Address of a trace, with `{trace_id}` in it."""
    url: str | None = None
    """Address at which people open the dashboard. `pillarbox messages show` prints the page of its message."""
    root_path: str = ""
    """Path below which a proxy serves the dashboard, if the proxy removes it."""
    secret: str | None = None
    """`env:NAME` or `file:/path` of a secret that several processes share which answer for each other."""

    def __post_init__(self) -> None:
        for text in self.users:
            found = _USER.fullmatch(text)
            if found is None:
                raise ConfigError(
                    "A user of the dashboard is written NAME:ROLE:env:VARIABLE or NAME:ROLE:file:/path, so that no "
                    f"password stands in the configuration; {text.partition(':')[0]!r} is not."
                )
            parse_role(found["role"])
        for name in ("token", "secret"):
            value = getattr(self, name)
            if value is not None and _REFERENCE.fullmatch(value) is None:
                raise ConfigError(
                    f"The {name} of the dashboard must be env:VARIABLE or file:/path, not the value itself."
                )
        for role in (self.token_role, self.proxy_role):
            parse_role(role)
        for peer in self.proxy_peers:
            try:
                ipaddress.ip_network(peer, strict=False)
            except ValueError:
                raise ConfigError(f"{peer!r} is no address or network of a proxy: write 10.0.0.0/8.") from None
        if self.url is not None and _URL.fullmatch(self.url) is None:
            raise ConfigError(
                "The url of the dashboard is where people open it, without a login, a query or a store: write "
                "https://ops.example/pillarbox."
            )
        if self.root_path and not re.fullmatch(r"(?:/[\w.~-]+)+", self.root_path):
            raise ConfigError(f"The root_path {self.root_path!r} is no path: write /pillarbox.")


def to_message_url(url: str, store: str, message_id: int) -> str:
    """Return the address of a message's page, in the dashboard at `url`."""
    return f"{url.rstrip('/')}/{quote(store, safe='')}/messages/{message_id}"


def read_dashboard_section(config: Config) -> DashboardSettings:
    """Read `[dashboard]`."""
    return read_section(config, DashboardSettings, at=("dashboard",)).settings


def build_authorize(settings: DashboardSettings, *, environ: Mapping[str, str]) -> Authorize | None:
    """Build the function that says who asks; None if nobody is configured. `ConfigError` if a secret is missing."""
    functions: list[Authorize] = []
    if settings.users:
        found = [_USER.fullmatch(text) for text in settings.users]
        users = {
            one["name"]: (
                Secret(one["password"]).read(option=f"dashboard.users ({one['name']})", environ=environ),
                parse_role(one["role"]),
            )
            for one in found
            if one is not None
        }  # fmt: skip
        functions.append(basic_auth(users))
    if settings.token is not None:
        token = Secret(settings.token).read(option="dashboard.token", environ=environ)
        functions.append(bearer_token(token, role=parse_role(settings.token_role)))
    if settings.proxy_header is not None:
        functions.append(
            proxy_header(settings.proxy_header, peers=settings.proxy_peers, role=parse_role(settings.proxy_role))
        )
    return first_of(*functions) if functions else None
