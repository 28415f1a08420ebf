"""Publishing: messages go into the caller's own transaction, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, cast, overload
from uuid import UUID

from msgspec import UNSET, UnsetType

from pillarbox import writers
from pillarbox.clock import Clock, SystemClock
from pillarbox.compose import Composer
from pillarbox.errors import ConfigError
from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.limits import MAX_PAYLOAD, MAX_TEXT
from pillarbox.message import Kind
from pillarbox.names import Names
from pillarbox.options import Key, Options
from pillarbox.protocols import Insert
from pillarbox.routes import Route, Routes
from pillarbox.writers.awaiting import MustAwait

if TYPE_CHECKING:
    from typing import Unpack

    from pillarbox.options import GivenOptions

__all__ = ["AsyncHandle", "Outbox", "SyncHandle"]

T = TypeVar("T")
_URI_REFERENCE: Final = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")


class SyncHandle(Protocol):
    """A connection or session whose methods are called: sqlite3, psycopg, PyMySQL, SQLAlchemy's `Session`."""

    def commit(self) -> None: ...


class _Committed(Protocol):
    """One whose methods are awaited: asyncmy, aiomysql, aiosqlite, psycopg's and SQLAlchemy's async ones."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class _Closed(Protocol):
    """One that is awaited and does not commit by itself: asyncpg."""

    def close(self) -> Coroutine[Any, Any, None]: ...


AsyncHandle = _Committed | _Closed


class Outbox:
    """Writes messages into the caller's transaction. Holds no connection; make one per program and share it.

    `routes` says where messages go: the name of the one destination, a list of `Route`, or `Routes`. `source`
    is who publishes, a URI reference such as "/shop". `spans` traces each call:
    `pillarbox.telemetry.opentelemetry.publishing_span`.
    """

    def __init__(
        self,
        *,
        routes: Routes | str | Iterable[Route],
        source: str,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        types: Types | None = None,
        clock: Clock | None = None,
        max_payload: int = MAX_PAYLOAD,
        serialize_keys: bool = False,
        spans: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        if max_payload < 1:
            raise ConfigError(f"max_payload={max_payload} is not usable; give a number of bytes above 0.")
        self.routes = Routes.of(routes)
        self.source = _checked_source(source)
        self.names = Names(schema, prefix)
        self.types = DEFAULT_TYPES if types is None else types
        self._serialize_keys = serialize_keys
        self._spans = spans
        self._composer = Composer(
            routes=self.routes,
            types=self.types,
            source=self.source,
            clock=SystemClock() if clock is None else clock,
            max_payload=max_payload,
        )

    @classmethod
    def from_config(
        cls,
        path: str | PathLike[str] | None = None,
        *,
        types: Types | None = None,
        clock: Clock | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """The outbox that `[outbox]` in the configuration describes: the file that the relay reads too.

        `path` is found as `Config.load` finds it. `UnknownDestination` where a route leads to a name that is not
        configured, because nobody would deliver it.
        """
        from pillarbox.config import Config, configured_routes, outbox_section, store_section

        config = Config.load(path, environ=environ)
        given, names = outbox_section(config).settings, store_section(config).settings
        if given.source is None:
            raise ConfigError(
                f'No source is configured: write source = "/shop" under [outbox] in {config.file_name}, or set '
                "PILLARBOX_OUTBOX_SOURCE."
            )
        return cls(
            routes=configured_routes(config, given),
            source=given.source,
            schema=names.schema,
            prefix=names.prefix,
            types=types,
            clock=clock,
            max_payload=given.max_payload,
            serialize_keys=given.serialize_keys,
        )

    @overload
    def publish(  # type: ignore[overload-overlap]
        self, tx: SyncHandle, event: list[Any] | tuple[Any, ...], **given: Unpack[GivenOptions]
    ) -> list[UUID]: ...
    @overload
    def publish(  # type: ignore[overload-overlap]
        self, tx: AsyncHandle, event: list[Any] | tuple[Any, ...], **given: Unpack[GivenOptions]
    ) -> Awaitable[list[UUID]]: ...
    @overload
    def publish(self, tx: SyncHandle, event: object, **given: Unpack[GivenOptions]) -> UUID: ...
    @overload
    def publish(self, tx: AsyncHandle, event: object, **given: Unpack[GivenOptions]) -> Awaitable[UUID]: ...

    def publish(
        self,
        tx: SyncHandle | AsyncHandle,
        event: object,
        *,
        type: str | None = None,
        key: Key | UnsetType = UNSET,
        topic: str | None = None,
        headers: Mapping[str, str] | None = None,
        destinations: str | Sequence[str] | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        content_type: str | None = None,
        subject: str | None = None,
        event_time: datetime | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> UUID | list[UUID] | Awaitable[UUID] | Awaitable[list[UUID]]:
        """Write an event, or a list of them, into the transaction of `tx`, and return its message id, or theirs.

        On an async handle the result must be awaited. The options hold for every event of a list. When
        anything is wrong with any of them, a `PublishError` is raised and nothing is written.
        """
        options = Options(
            type=type,
            key=key,
            topic=topic,
            headers=headers,
            destinations=destinations,
            delay=delay,
            deliver_at=deliver_at,
            content_type=content_type,
            subject=subject,
            event_time=event_time,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        return self._write(tx, event, kind=Kind.EVENT, options=options)

    @overload
    def send(  # type: ignore[overload-overlap]
        self, tx: SyncHandle, command: list[Any] | tuple[Any, ...], **given: Unpack[GivenOptions]
    ) -> list[UUID]: ...
    @overload
    def send(  # type: ignore[overload-overlap]
        self, tx: AsyncHandle, command: list[Any] | tuple[Any, ...], **given: Unpack[GivenOptions]
    ) -> Awaitable[list[UUID]]: ...
    @overload
    def send(self, tx: SyncHandle, command: object, **given: Unpack[GivenOptions]) -> UUID: ...
    @overload
    def send(self, tx: AsyncHandle, command: object, **given: Unpack[GivenOptions]) -> Awaitable[UUID]: ...

    def send(
        self,
        tx: SyncHandle | AsyncHandle,
        command: object,
        *,
        type: str | None = None,
        key: Key | UnsetType = UNSET,
        topic: str | None = None,
        headers: Mapping[str, str] | None = None,
        destinations: str | Sequence[str] | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        content_type: str | None = None,
        subject: str | None = None,
        event_time: datetime | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> UUID | list[UUID] | Awaitable[UUID] | Awaitable[list[UUID]]:
        """As `publish`, for commands: each must have exactly one destination."""
        options = Options(
            type=type,
            key=key,
            topic=topic,
            headers=headers,
            destinations=destinations,
            delay=delay,
            deliver_at=deliver_at,
            content_type=content_type,
            subject=subject,
            event_time=event_time,
            correlation_id=correlation_id,
            causation_id=causation_id,
        )
        return self._write(tx, command, kind=Kind.COMMAND, options=options)

    def attach(self, sessions: object) -> None:
        """Have SQLAlchemy sessions publish what their aggregates raise, when they flush or commit.

        `sessions` is a sessionmaker, an async_sessionmaker, a scoped session, a class of sessions, or one session.
        Attach once, before sessions are used. See `pillarbox.Aggregate`.
        """
        from pillarbox.writers.harvesting import attach

        attach(sessions, self._publish_raised)

    def _publish_raised(self, session: object, events: Sequence[object], given: Mapping[str, Any]) -> None:
        self._write(session, list(events), kind=Kind.EVENT, options=Options(**given))

    def _write(
        self, tx: object, given: object, *, kind: Kind, options: Options
    ) -> UUID | list[UUID] | Awaitable[UUID] | Awaitable[list[UUID]]:
        is_async = writers.is_async(tx)
        many = isinstance(given, (list, tuple))
        payloads: Any = given if many else (given,)
        if self._spans is None:
            ids, messages = self._composer.compose(payloads, kind=kind, options=options)
        else:
            with self._spans(options.type or type(payloads[0]).__name__ if payloads else "nothing"):
                ids, messages = self._composer.compose(payloads, kind=kind, options=options)
        batch = Insert(
            names=self.names, messages=messages, delay=options.delay or None, serialize_keys=self._serialize_keys
        )
        if is_async:
            return _awaited(tx, batch, ids) if many else _awaited(tx, batch, ids[0])
        if messages:
            writers.insert(tx, batch)
        return ids if many else ids[0]


def _awaited(tx: object, batch: Insert, result: T) -> Awaitable[T]:
    async def insert() -> T:
        if batch.messages:
            await cast(Awaitable[None], writers.insert(tx, batch))
        return result

    names = ", ".join(sorted({message.type for message in batch.messages})) or "nothing"
    return MustAwait(insert, f"Publishing {names}")


def _checked_source(source: str) -> str:
    if not _URI_REFERENCE.fullmatch(source) or len(source) > MAX_TEXT:
        raise ConfigError(
            f"The source {source!r} is not a URI reference of at most {MAX_TEXT} characters; write for example "
            '"/shop" or "https://example.com/shop".'
        )
    return source
