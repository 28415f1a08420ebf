"""The line from the relays to the consumer: what `--to` names. Each kind of line is an intake, a file of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.stores.url_secrets import expanded

__all__ = ["Line", "LineKind", "broker_line", "line_to", "new_name"]

LineKind: TypeAlias = Literal["http", "rabbitmq", "nats", "redis"]

_KINDS: Final[Mapping[str, LineKind]] = {
    "http": "http", "amqp": "rabbitmq", "amqps": "rabbitmq", "nats": "nats", "redis": "redis", "rediss": "redis",
}  # fmt: skip


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One URL for the relays, one place for the consumer to read. Both may hold a password."""

    kind: LineKind
    to: str
    """The transport URL, with its options."""
    at: str
    """Where the consumer listens, or the broker that it reads."""
    name: str = ""
    """What the demo's own exchange, queue, stream or key is called there."""

    def __repr__(self) -> str:
        return f"Line({self.kind!r}, {self.name!r})"


def line_to(url: str | None) -> Line:
    """The line that a URL asks for; `ConfigError` or `MissingExtra` where the demo's consumer cannot read."""
    asked = expanded((url or "http://127.0.0.1").strip(), os.environ)
    match _KINDS.get(asked.partition(":")[0].lower()):
        case "http":
            from pillarbox.demo.http_intake import http_line

            return http_line(asked)
        case "rabbitmq":
            from pillarbox.demo.rabbitmq_intake import rabbitmq_line

            return rabbitmq_line(asked)
        case "nats":
            from pillarbox.demo.nats_intake import nats_line

            return nats_line(asked)
        case "redis":
            from pillarbox.demo.redis_intake import redis_line

            return redis_line(asked)
    raise ConfigError(
        "The demo delivers over HTTP, RabbitMQ, NATS and Redis: give --to as http://127.0.0.1:PORT, amqp://…, nats://… "
        "or redis://…, or leave it out."
    )


def broker_line(kind: LineKind, url: str, *, name: str, options: Mapping[str, str]) -> Line:
    """A line over something of the demo's own at a broker. `options` say so to the relays."""
    at, _, query = url.partition("?")
    given = [option for option in query.split("&") if option]
    for option in given:
        if option.partition("=")[0] in options:
            raise ConfigError(f"The demo sets {option.partition('=')[0]} itself: leave it out of --to.")
    ours = [f"{option}={quote(value, safe='{}')}" for option, value in options.items()]
    return Line(kind=kind, to=f"{at}?{'&'.join([*given, *ours])}", at=at, name=name)


def new_name() -> str:
    """A name that nothing else at a broker has."""
    return f"pillarbox-demo-{secrets.token_hex(4)}"
