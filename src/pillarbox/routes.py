"""Routes from messages to destinations: patterns over topic, type, kind and headers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec

from pillarbox.arguments import check_argument
from pillarbox.durations import shorten
from pillarbox.errors import ConfigError, NoRoute
from pillarbox.message import SKIPPED_DESTINATION, Kind, check_destination

__all__ = ["Route", "Routes", "check_override"]

_CACHE_SIZE: Final = 4096


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Sends messages that match every given pattern to these destinations.

    Patterns are shell-style and case-sensitive: `*` is any text, `?` one character, `[ab]` one of some.
    """

    to: str | Sequence[str]
    topic: str = "*"
    type: str = "*"
    kind: Kind | Literal["event", "command"] | None = None
    headers: Mapping[str, str] = {}
    """Header name to the pattern of its value; a message without that header does not match."""

    def __post_init__(self) -> None:
        for name in ("topic", "type"):
            check_argument(getattr(self, name), name, str)
        check_argument(self.headers, "headers", Mapping[str, str])
        msgspec.structs.force_setattr(self, "to", _check_names(self.to))
        if self.kind is not None:
            msgspec.structs.force_setattr(self, "kind", _parse_kind(self.kind))


class _Matcher(msgspec.Struct, frozen=True):
    """A route with its patterns compiled."""

    to: tuple[str, ...]
    topic: re.Pattern[str]
    type: re.Pattern[str]
    kind: Kind | None
    headers: Mapping[str, re.Pattern[str]]

    def matches(self, *, topic: str, type: str, kind: Kind, headers: Mapping[str, str]) -> bool:
        return (
            (self.kind is None or self.kind is kind)
            and self.topic.match(topic) is not None
            and self.type.match(type) is not None
            and all(name in headers and pattern.match(headers[name]) for name, pattern in self.headers.items())
        )


class Routes:
    """Destinations of every matching route, in order and without repeats; else the default; else `unrouted`.

    `unrouted="skip"` records an event without a destination as skipped; `"error"` raises `NoRoute`. A command
    needs exactly one destination whatever the setting.
    """

    def __init__(
        self,
        routes: Iterable[Route] = (),
        *,
        default: str | Sequence[str] | None = None,
        unrouted: Literal["skip", "error"] = "skip",
    ) -> None:
        if unrouted not in ("skip", "error"):
            raise ConfigError(f"unrouted={unrouted!r} is not a setting; write 'skip' or 'error'.")
        given: object = routes
        listed = list(given) if isinstance(given, Iterable) else [given]
        matchers = tuple(_compile(route) for route in listed if isinstance(route, Route))
        if len(matchers) < len(listed):
            raise ConfigError(
                f"routes={shorten(routes)} are not routes: pass a destination's name, or a list such as "
                '[Route(to="billing", topic="orders.*")].'
            )
        self._matchers = matchers
        self._default = () if default is None else _check_names(default)
        self._unrouted = unrouted
        self._by_headers = any(matcher.headers for matcher in self._matchers)
        self._find_cached = lru_cache(maxsize=_CACHE_SIZE)(self._find_without_headers)
        self.destinations = frozenset(self._default).union(*(matcher.to for matcher in self._matchers))
        """All destinations that a message can be routed to."""

    @classmethod
    def parse(cls, routes: Routes | str | Iterable[Route]) -> Routes:
        """Return routes as they are, build them from a list, or route everything to one name."""
        if isinstance(routes, Routes):
            return routes
        return cls(default=routes) if isinstance(routes, str) else cls(routes)

    def find(self, *, topic: str, type: str, kind: Kind, headers: Mapping[str, str]) -> tuple[str, ...]:
        """Find at least one destination, for a command exactly one; raise `NoRoute` otherwise."""
        if self._by_headers:
            return self._find(topic, type, kind, headers)
        return self._find_cached(topic, type, kind)

    def _find_without_headers(self, topic: str, type: str, kind: Kind) -> tuple[str, ...]:
        return self._find(topic, type, kind, {})

    def _find(self, topic: str, type: str, kind: Kind, headers: Mapping[str, str]) -> tuple[str, ...]:
        matching = (m for m in self._matchers if m.matches(topic=topic, type=type, kind=kind, headers=headers))
        found = tuple(dict.fromkeys(name for matcher in matching for name in matcher.to)) or self._default
        if kind is Kind.COMMAND:
            return _check_single(found, type=type, topic=topic)
        if not found and self._unrouted == "error":
            raise NoRoute(f"No route takes the event {type} with topic {topic!r}; add a route or a default.")
        return found or (SKIPPED_DESTINATION,)


def check_override(destinations: str | Sequence[str], *, kind: Kind, type: str, topic: str) -> tuple[str, ...]:
    """Check the destinations that one call gave by the same rules as routes; raise `NoRoute` otherwise."""
    try:
        names = _check_names(destinations)
    except ConfigError as error:
        raise NoRoute(str(error)) from None
    return _check_single(names, type=type, topic=topic) if kind is Kind.COMMAND else names


def _check_single(found: tuple[str, ...], *, type: str, topic: str) -> tuple[str, ...]:
    if len(found) != 1:
        many = f"the destinations {', '.join(found)}" if found else "no destination"
        raise NoRoute(
            f"The command {type} with topic {topic!r} has {many}; a command needs exactly one: fix the routes, or "
            "give destinations=."
        )
    return found


def _check_names(names: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(names, str | Iterable):
        raise ConfigError(f"{shorten(names)} is not the name of a destination, nor a list of names.")
    listed = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    if not listed:
        raise ConfigError("A list of destinations is empty; name at least one.")
    if SKIPPED_DESTINATION in listed:
        raise ConfigError(f"The destination {SKIPPED_DESTINATION!r} is reserved; choose another name.")
    return tuple(check_destination(name) for name in listed)


def _parse_kind(kind: str) -> Kind:
    try:
        return Kind(kind)
    except ValueError:
        raise ConfigError(f"kind={kind!r} is not a kind of message; write 'event' or 'command'.") from None


def _compile(route: Route) -> _Matcher:
    return _Matcher(
        _check_names(route.to),
        _compile_glob(route.topic),
        _compile_glob(route.type),
        None if route.kind is None else Kind(route.kind),
        {name: _compile_glob(value) for name, value in route.headers.items()},
    )


def _compile_glob(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))
