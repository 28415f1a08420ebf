"""The login of a dashboard for which none is configured: a random token in the address that is printed at the start."""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from html import escape
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response

from pillarbox.dashboard.access import Role, Scope, User, is_from_here, is_same_site, read_header

__all__ = ["TOKEN", "UrlLogin"]

TOKEN: Final = "token"  # noqa: S105 - the name of a parameter


class UrlLogin:
    """Accepts requests from this machine that have the token: in a cookie, or as `Authorization: Bearer …`.

    The token comes with the first address that is opened. It is exchanged for a cookie that scripts and other sites
    cannot use, and removed from the address. Other users of the machine have neither.
    """

    is_same_for_all_stores = True
    hint = "Open the address that the program printed at its start: it holds a token."

    def __init__(self, name: str, *, role: Role = Role.OWNER) -> None:
        self._user = User(name, role)
        self._token = secrets.token_urlsafe(32)
        self._cookie = hmac.new(self._token.encode(), b"cookie", sha256).hexdigest()

    def __call__(self, scope: Scope) -> User | None:
        if not is_from_here(scope):
            return None
        kind, _, given = (read_header(scope, "authorization") or "").partition(" ")
        if kind.lower() == "bearer" and _are_equal(given.strip(), self._token):
            return self._user
        cookies = [one for one in _list_cookies(scope) if _are_equal(one, self._cookie)]
        return self._user if cookies else None

    def add_token(self, address: str) -> str:
        """Return the address to open. It is a secret: it must be printed, and never logged."""
        return f"{address}?{TOKEN}={self._token}"

    def exchange(self, scope: Scope) -> Response | None:
        """Answer an address with the right token by a cookie and the address without it; None for other requests."""
        pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in pairs if name == TOKEN]
        if scope["method"] != "GET" or not given or not is_from_here(scope) or not _are_equal(given[0], self._token):
            return None
        query = urlencode([(name, value) for name, value in pairs if name != TOKEN])
        location = "/" + quote(str(scope["path"]).lstrip("/")) + (f"?{query}" if query else "")
        # A browser does not send a strict cookie along a redirect that another site or a file began.
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(location)}">'
        response = RedirectResponse(location, 303) if is_same_site(scope) else HTMLResponse(page)
        path = str(scope.get("root_path", "")).rstrip("/") or "/"
        response.headers["set-cookie"] = f"{_name_cookie(scope)}={self._cookie}; Path={path}; HttpOnly; SameSite=Strict"
        return response


def _name_cookie(scope: Scope) -> str:
    """Return a name with the port: browsers share cookies among the ports of a host."""
    server = scope.get("server")
    return f"pillarbox_{server[1] if server else 0}"


def _list_cookies(scope: Scope) -> list[str]:
    wanted = _name_cookie(scope)
    headers = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"cookie"]
    pairs = [pair.strip().partition("=") for header in headers for pair in header.split(";")]
    return [value for name, _, value in pairs if name == wanted]


def _are_equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())
