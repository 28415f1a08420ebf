"""Access: roles, the functions that say who asks, and tokens that a form must carry.

`Dashboard(authorize=…)` takes one function from an ASGI scope to a `User`, or None for nobody. The helpers below build
such functions; `first_of` tries several.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from enum import IntEnum
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.hosts import is_local_host
from pillarbox.message import MAX_NAME

__all__ = [
    "STORE",
    "Authorize",
    "FormTokens",
    "Role",
    "Scope",
    "User",
    "basic_auth",
    "bearer_token",
    "check_bind",
    "describe_login",
    "find_user",
    "first_of",
    "for_other_store",
    "for_store",
    "is_from_here",
    "is_own_request",
    "is_same_site",
    "local_user",
    "parse_role",
    "proxy_header",
    "read_header",
]

Scope: TypeAlias = MutableMapping[str, Any]


class Role(IntEnum):
    """What a user may do. Each role may do what those before it may."""

    VIEWER = 1
    """Sees everything but payloads."""
    READER = 2
    """Sees payloads too."""
    OPERATOR = 3
    """Redrives, defers, pauses, resumes and probes."""
    OWNER = 4
    """Discards and replays."""

    @property
    def label(self) -> str:
        return self.name.lower()


class User(msgspec.Struct, frozen=True):
    """Who asks. The name stands in the journal."""

    name: str
    role: Role


Authorize: TypeAlias = Callable[[Scope], "User | Awaitable[User | None] | None"]
"""Says who sends a request: gets its ASGI scope, with the name of the store as `scope["pillarbox.store"]`.

It is asked for every store that a page would show something of. A function whose answer is the same for all stores may
have the attribute `is_same_for_all_stores`, and is asked once.
"""
STORE: Final = "pillarbox.store"


def parse_role(text: str) -> Role:
    """Return the role of that name; `ConfigError` if there is none."""
    try:
        return Role[text.strip().upper()]
    except KeyError:
        names = ", ".join(role.label for role in Role)
        raise ConfigError(f"{text!r} is no role: write one of {names}.") from None


async def find_user(authorize: Authorize, scope: Scope) -> User | None:
    """Ask who sends the request. A name that a journal could not hold belongs to nobody."""
    found = authorize(scope)
    user = await found if isawaitable(found) else found
    if user is None or not user.name or not user.name.isprintable() or len(user.name.encode()) > MAX_NAME:
        return None
    return user


def for_store(scope: Scope, store: str) -> Scope:
    """Return the scope with which `authorize` is asked about the store that the request names."""
    return {**scope, STORE: store}


def for_other_store(scope: Scope, store: str) -> Scope:
    """Return a scope with which `authorize` is asked about another store: that of a request for its first page."""
    path = f"{str(scope.get('root_path', '')).rstrip('/')}/{store}/"
    return {**scope, STORE: store, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "path_params": {"store": store}}  # fmt: skip


def describe_login(authorize: Authorize, scope: Scope) -> str | None:
    """Say by what somebody tried to log in; None if the request tries nothing. Never shows what was given.

    A name is shown only if there is a user of that name: people type passwords into the wrong field.
    """
    kind, _, given = (read_header(scope, "authorization") or "").partition(" ")
    if kind.lower() == "basic":
        name = _decode_basic(given)[0]
        return f"the user {name}" if name in getattr(authorize, "names", ()) else "an unknown user"
    return "a token" if kind else None


def read_header(scope: Scope, name: str) -> str | None:
    """Return the value of a header; None if it is missing, or there twice: a proxy may have added the second."""
    wanted = name.lower().encode()
    values = [value for key, value in scope["headers"] if key.lower() == wanted]
    return values[0].decode("latin-1") if len(values) == 1 else None


# --- who asks ---


def bearer_token(token: str, *, name: str = "token", role: Role = Role.OPERATOR) -> Authorize:
    """Accept `Authorization: Bearer …` with this token: for programs, and for proxies that add it."""
    _check_secret(token, what="token")

    def authorize(scope: Scope) -> User | None:
        kind, _, given = (read_header(scope, "authorization") or "").partition(" ")
        is_known = kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
        return User(name, role) if is_known else None

    return _mark_same(authorize)


def basic_auth(users: Mapping[str, tuple[str, Role]]) -> Authorize:
    """Accept these names with their passwords; the browser asks for them. Use it over TLS."""
    for name, (password, _) in users.items():
        _check_secret(password, what=f"password of {name}")

    def authorize(scope: Scope) -> User | None:
        kind, _, given = (read_header(scope, "authorization") or "").partition(" ")
        if kind.lower() != "basic":
            return None
        name, password = _decode_basic(given)
        # Compared also for a name that nobody has, so that the time does not tell which names there are.
        known, role = users.get(name, (secrets.token_hex(), Role.VIEWER))
        return User(name, role) if hmac.compare_digest(password.encode(), known.encode()) else None

    authorize.challenge = 'Basic realm="Pillarbox", charset="UTF-8"'  # type: ignore[attr-defined]
    authorize.names = frozenset(users)  # type: ignore[attr-defined]
    return _mark_same(authorize)


def _decode_basic(given: str) -> tuple[str, str]:
    """Return the name and the password; two empty texts for what is not Base64 of UTF-8."""
    try:
        name, _, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except ValueError:  # also what is not ASCII
        return "", ""
    return name, password


def _mark_same(authorize: Authorize) -> Authorize:
    authorize.is_same_for_all_stores = True  # type: ignore[attr-defined]
    return authorize


def proxy_header(
    header: str = "x-forwarded-user",
    *,
    peers: Sequence[str],
    role: Role = Role.VIEWER,
    roles: Mapping[str, Role] | None = None,
) -> Authorize:
    """Trust the name that a proxy puts into a header, if the request comes from one of these addresses or networks.

    `roles` names users with another role than `role`. The proxy must remove the header from what it receives.
    """
    if not peers:
        raise ConfigError("A trusted header needs the addresses of the proxies that may set it: give peers.")
    networks = [ipaddress.ip_network(peer, strict=False) for peer in peers]
    own_roles = {} if roles is None else dict(roles)

    def authorize(scope: Scope) -> User | None:
        name = read_header(scope, header)
        if not name or not _comes_from(scope, networks):
            return None
        return User(name, own_roles.get(name, role))

    return _mark_same(authorize)


def local_user(name: str, *, role: Role = Role.OWNER) -> Authorize:
    """Accept every request from this machine by a name of this machine: every user of it is `name`.

    For a machine with one user. Elsewhere use `UrlLogin`, as `pillarbox dashboard` does.
    """

    def authorize(scope: Scope) -> User | None:
        return User(name, role) if is_from_here(scope) else None

    return _mark_same(authorize)


def is_from_here(scope: Scope) -> bool:
    """Return whether a request comes from this machine, by a name of this machine.

    Without the second, a page of another site whose name points here could read the dashboard through the browser.
    """
    client, host = scope.get("client"), _strip_port(read_header(scope, "host") or "")
    if client is not None and not is_local_host(client[0]):
        return False
    # A Host that is a path or begins with @ is none: only in the URL of a store it is a Unix socket.
    return bool(host) and not host.startswith(("/", "@")) and is_local_host(host)


def _strip_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def first_of(*functions: Authorize) -> Authorize:
    """Try several functions; the first that knows the user decides."""

    async def authorize(scope: Scope) -> User | None:
        for one in functions:
            if (user := await find_user(one, scope)) is not None:
                return user
        return None

    for one in functions:
        if (challenge := getattr(one, "challenge", None)) is not None:
            authorize.challenge = challenge  # type: ignore[attr-defined]
            break
    authorize.names = frozenset[str]().union(*(getattr(one, "names", ()) for one in functions))  # type: ignore[attr-defined]
    is_same = all(getattr(one, "is_same_for_all_stores", False) for one in functions)
    return _mark_same(authorize) if is_same else authorize


def check_bind(host: str, *, is_protected: bool) -> None:
    """Raise `ConfigError` for an address that other machines reach, unless somebody checks who asks."""
    if not is_protected and not is_local_host(host):
        raise ConfigError(
            f"The dashboard does not listen at {host} without a login, because other machines reach that address: "
            "give --user NAME:ROLE:env:VARIABLE or --token env:VARIABLE, or listen at 127.0.0.1."
        )


def _comes_from(scope: Scope, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    client = scope.get("client")
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    return any(address in network for network in networks)


_MIN_SECRET: Final = 8


def _check_secret(text: str, *, what: str) -> None:
    if len(text) < _MIN_SECRET:
        raise ConfigError(f"The {what} of the dashboard has fewer than {_MIN_SECRET} characters; choose a longer one.")


# --- requests that change something ---


class FormTokens:
    """Tokens that only pages of this dashboard hold: a form of another site cannot send one.

    A token belongs to a user. Processes that answer for each other share the secret.
    """

    def __init__(self, secret: str | None = None) -> None:
        self._key = secrets.token_bytes(32) if secret is None else sha256(secret.encode()).digest()

    def issue(self, user: User) -> str:
        return hmac.new(self._key, user.name.encode(), sha256).hexdigest()

    def check(self, user: User, token: str) -> bool:
        return hmac.compare_digest(self.issue(user).encode(), token.encode())


def is_same_site(scope: Scope) -> bool:
    """Return False for a request that the browser says another site started."""
    site = read_header(scope, "sec-fetch-site")
    return site in (None, "same-origin", "none") and read_header(scope, "origin") != "null"


def is_own_request(scope: Scope) -> bool:
    """Return False for a GET that may come from a page of another site, which could show it as a picture.

    Browsers send `Sec-Fetch-Site` to servers with TLS and to this machine. Elsewhere the page that a link is on counts,
    and a browser that does not name it. A program sends none of these headers.
    """
    if not is_same_site(scope):
        return False
    if any(read_header(scope, name) is not None for name in ("sec-fetch-site", "hx-request", "x-csrf-token")):
        return True
    page = read_header(scope, "referer")
    if page is not None:
        return urlsplit(page).netloc.lower() == (read_header(scope, "host") or "").lower()
    return read_header(scope, "accept-language") is None
