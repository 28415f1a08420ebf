"""`[outbox]`: who publishes, and where messages go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from pillarbox.config.destinations import destination_names
from pillarbox.config.loading import Config
from pillarbox.config.nearest import nearest
from pillarbox.config.sections import Section, read_section
from pillarbox.errors import ConfigError, UnknownDestination
from pillarbox.limits import MAX_PAYLOAD
from pillarbox.routes import Route, Routes

__all__ = ["OutboxSettings", "RouteSettings", "configured_routes", "outbox_section"]


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One table of `[[outbox.routes]]`."""

    to: str | Sequence[str]
    topic: str = "*"
    type: str = "*"
    kind: Literal["event", "command"] | None = None
    headers: Mapping[str, str] = {}


class OutboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an `Outbox` is made of."""

    source: str | None = None
    default: Sequence[str] = ()
    """Where messages go that no route takes."""
    unrouted: Literal["skip", "error"] = "skip"
    max_payload: int = MAX_PAYLOAD
    serialize_keys: bool = False
    routes: Sequence[RouteSettings] = ()


def outbox_section(config: Config) -> Section[OutboxSettings]:
    """What is said about the outbox."""
    return read_section(config, OutboxSettings, at=("outbox",))


def configured_routes(config: Config, settings: OutboxSettings) -> Routes:
    """The routes. `UnknownDestination` where one leads to a name that is not configured: rows carry names."""
    routes = Routes(
        [Route(to=r.to, topic=r.topic, type=r.type, kind=r.kind, headers=r.headers) for r in settings.routes],
        default=settings.default or None,
        unrouted=settings.unrouted,
    )
    if not routes.destinations and settings.unrouted == "skip":
        raise ConfigError(
            f"outbox in {config.file_name} has neither routes nor a default: every event would be skipped."
        )
    known = destination_names(config)
    for name in sorted(routes.destinations - set(known)):
        hint = nearest(name, known) if known else "none is configured"
        raise UnknownDestination(f"outbox in {config.file_name} routes to the unknown destination {name}: {hint}.")
    return routes
