"""Transport URLs: one line that says which transport, where, and how.

    https://shop.example/hooks?secret=env:HOOK_SECRET   handlers:shop.mail:handlers   memory:

What follows the `?` are options, `name=value`, percent-encoded where needed. A name with a dot is one entry of a table:
`headers.x-tenant=shop`. An option given twice is a list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from pillarbox.errors import ConfigError

__all__ = ["TransportUrl", "shown", "transport_url"]

_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9.-]*):(?P<place>[^?#]*)(?:\?(?P<query>[^#]*))?")
_OPTION: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\.(?P<entry>[A-Za-z0-9_.-]+))?=(?P<value>.*)", re.DOTALL)
_HOST: Final = re.compile(r"//(?:[^/]*@)?(?P<host>\[[0-9A-Fa-f:.]+\](?::\d+)?|[\w.:-]+)(?P<more>/?.*)", re.DOTALL)


class TransportUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A transport URL that was taken apart. Shown, it keeps its path and its options to itself."""

    scheme: str
    place: str
    """What stands between the scheme's colon and the question mark."""
    options: Mapping[str, object] = {}

    @property
    def address(self) -> str:
        """The URL without its options."""
        return f"{self.scheme}:{self.place}"

    def __str__(self) -> str:
        return shown(self.address)

    def __repr__(self) -> str:
        return f"TransportUrl({str(self)!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("address", str(self))]


def transport_url(text: str, *, options: Mapping[str, object]) -> TransportUrl:
    """Take a URL apart, and add options that were given beside it; `ConfigError` repeats none of their values."""
    match = _URL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            "The transport URL cannot be read: write scheme:place?option=value, and a '#' in it as %23, for example "
            "https://shop.example/hooks?timeout=10s."
        )
    own = _options(match["query"] or "")
    for name in own:
        if name in options:
            raise ConfigError(f"The option {name} is given in the transport URL and beside it; leave one.")
    return TransportUrl(scheme=match["scheme"].lower(), place=match["place"], options={**own, **options})


def shown(address: str) -> str:
    """An address for people: no login, and no path where there is a host, because webhook paths are often secret."""
    scheme, _, place = address.partition(":")
    match = _HOST.fullmatch(place)
    if match is None:
        return f"{scheme}:{'…' if place.startswith('//') and place != '//' else place}"
    return f"{scheme}://{match['host']}{'/…' if match['more'] not in ('', '/') else match['more']}"


def _options(query: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in query.split("&") if query else ():
        match = _OPTION.fullmatch(pair)
        if match is None:
            raise ConfigError("The transport URL has something after its '?' that is not name=value.")
        # Not `unquote_plus`: secrets in base64 have a + of their own.
        _add(found, match["name"], match["entry"], unquote(match["value"]))
    return found


def _add(found: dict[str, object], name: str, entry: str | None, value: str) -> None:
    if entry is not None:
        table = found.setdefault(name, {})
        if not isinstance(table, dict) or entry in table:
            raise ConfigError(f"The transport URL sets the option {name}.{entry} twice; leave one.")
        table[entry] = value
    elif name not in found:
        found[name] = value
    else:
        earlier = found[name]
        if isinstance(earlier, dict):
            raise ConfigError(f"The transport URL sets the option {name} and an entry of it; leave one.")
        found[name] = [*earlier, value] if isinstance(earlier, list) else [earlier, value]
