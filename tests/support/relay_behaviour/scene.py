"""A store, a relay on it, and a destination that does as it is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import asyncpg

from pillarbox import Outbox, Route, Routes
from pillarbox.contracts.store import Selection, Store
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message, Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import Schema, open_schema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.postgres.dialect import PostgresDialect
from pillarbox.stores.postgres.driver import DriverName
from pillarbox.stores.postgres.grants import Role
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from tests.support.granted import Logins
from tests.support.mariadb_server import connected

__all__ = ["DELIVERED", "OK", "Scene", "Script", "as_told", "quick_retry", "until"]

DELIVERED: Final = Outcome(delivered=True)
UNSENT: Final = Outcome(delivered=False, error="not sent", unsent=True)
OK: Final = "ok"
DEADLINE: Final = 100.0
"""Longer than a busy machine needs; a condition that holds ends the wait at once."""
LEASE: Final = timedelta(seconds=20)
"""Longer than a busy machine stands still: no test loses it by accident."""
SHORT_LEASE: Final = timedelta(seconds=1)
"""For tests that wait for its end."""


def quick_retry(attempts: int | None = 3) -> RetryPolicy:
    """Retries that a test can wait for."""
    return RetryPolicy(attempts=attempts, schedule=[timedelta(milliseconds=30)], jitter=0)


async def until(true: Callable[[], Any], *, within: float = DEADLINE) -> None:
    """Wait for a condition, sync or async, and fail when it never holds."""
    async with asyncio.timeout(within):
        while True:
            answer = true()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            await asyncio.sleep(0.01)


class Script:
    """A transport that answers as `answer` says, and remembers what it acknowledged. With `runs`, it takes runs."""

    def __init__(
        self, answer: Callable[[Message], Outcome] = lambda _: DELIVERED, *, batch: int = 50, runs: bool = False
    ) -> None:
        self.features = TransportFeatures(name="script", batch=batch, runs=runs)
        self.answer = answer
        self.is_down = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way: list[Message] = []
        self.taken: list[Message] = []
        self.sends = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None:
        if self.is_down:
            raise TransportUnavailable("down as told")

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.sends += 1
        self.under_way = [*self.under_way, *messages]
        await self.gate.wait()
        if self.is_down:
            raise TransportUnavailable("down as told")
        outcomes = self._answer_runs(messages)
        self.taken += [m for m, outcome in zip(messages, outcomes, strict=True) if outcome.delivered]
        return outcomes

    def _answer_runs(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        ended: set[str] = set()
        for message in messages:
            outcome = UNSENT if message.key in ended else self.answer(message)
            if message.key is not None and not outcome.delivered:
                ended.add(message.key)
            outcomes.append(outcome)
        return outcomes

    def numbers(self, key: str | None = None) -> list[int]:
        """What was acknowledged, by the number in the payload."""
        return [_number(m) for m in self.taken if key is None or m.key == key]

    def by_key(self) -> dict[str | None, list[int]]:
        """First acknowledgements, in order, for each key."""
        seen: dict[str | None, list[int]] = defaultdict(list)
        for message in self.taken:
            if message.id not in seen[message.key]:
                seen[message.key].append(message.id)
        return dict(seen)


def _number(message: Message) -> int:
    return int(message.payload)


def as_told(outcomes: dict[int, Outcome]) -> Callable[[Message], Outcome]:
    """An answer by the number in the payload; everything else is delivered."""
    return lambda message: outcomes.get(_number(message), DELIVERED)


class Scene:
    """One store. Messages carry a number; `put` commits them.

    On a server with roles each part has its own: relays are relays, `put` writes as a writer, and `store` is the
    operator's. `url` is the owner's.
    """

    def __init__(
        self,
        url: str,
        names: Names,
        open_store: Callable[[], Store],
        *,
        operator_store: Store | None = None,
        writer_url: str | None = None,
    ) -> None:
        self.url = url
        self.store_url = url
        self.names = names
        self.open_store = open_store
        """Open a store as a relay."""
        self.writer_url = writer_url or url
        self.payload_size = 0
        """Payloads are filled up with spaces to this size."""
        self.outbox = Outbox(
            routes=Routes([Route(to=["sink"], topic="sink*"), Route(to=["other"], topic="other*")]),
            source="/test", schema=names.schema,
        )  # fmt: skip
        self.store: Store = operator_store or open_store()

    async def put(
        self,
        *messages: tuple[int, str | None],
        topic: str = "sink",
        delay: timedelta | None = None,
        commit: bool = True,
    ) -> None:
        """Commit messages of (number, key), in order, or roll them back."""
        if self.url.startswith("sqlite"):
            self._put_sqlite(messages, topic=topic, delay=delay, commit=commit)
        elif self.url.startswith("mysql"):
            await asyncio.to_thread(self._put_mariadb, messages, topic=topic, delay=delay, commit=commit)
        else:
            await self._put_postgres(messages, topic=topic, delay=delay, commit=commit)

    def _put_sqlite(
        self, messages: Sequence[tuple[int, str | None]], *, topic: str, delay: timedelta | None, commit: bool
    ) -> None:
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)) as connection:
            self._publish(connection, messages, topic=topic, delay=delay)
            connection.commit() if commit else connection.rollback()

    def _put_mariadb(
        self, messages: Sequence[tuple[int, str | None]], *, topic: str, delay: timedelta | None, commit: bool
    ) -> None:
        with closing(connected(self.writer_url)) as connection:
            self._publish(connection, messages, topic=topic, delay=delay)
            connection.commit() if commit else connection.rollback()

    def _publish(
        self, tx: Any, messages: Sequence[tuple[int, str | None]], *, topic: str, delay: timedelta | None
    ) -> None:
        for number, key in messages:
            self.outbox.publish(tx, number_payload(number, self.payload_size), type="t", content_type="text/plain",
                                key=key, topic=topic, delay=delay)  # fmt: skip

    async def _put_postgres(
        self, messages: Sequence[tuple[int, str | None]], *, topic: str, delay: timedelta | None, commit: bool
    ) -> None:
        connection: Any = await asyncpg.connect(self.writer_url)
        transaction = connection.transaction()
        await transaction.start()
        for number, key in messages:
            payload = number_payload(number, self.payload_size)
            await self.outbox.publish(connection, payload, type="t", content_type="text/plain",
                                      key=key, topic=topic, delay=delay)  # fmt: skip
        await (transaction.commit() if commit else transaction.rollback())
        await connection.close()

    def schema(self) -> Schema:
        """The schema of the store."""
        return open_schema(parse_store_url(self.store_url), names=self.names)

    async def find(self, *states: State) -> Sequence[Message]:
        """Messages in these states."""
        return await self.store.find(Selection(states=states or None), limit=10_000)

    async def is_drained(self) -> bool:
        """Nothing is open."""
        return not await self.find(State.PENDING, State.SENDING)

    def relay(self, transport: Script, *, settings: RelaySettings | None = None, **options: Any) -> Relay:
        """A relay that serves `sink`, with a store of its own."""
        options = {"send_timeout": timedelta(minutes=1), "retry": quick_retry(), **options}
        destination = Destination(lambda: transport, DestinationSettings(name="sink", **options))
        return Relay(self.open_store(), [destination], settings=settings or self.quick())

    @staticmethod
    def quick(**options: Any) -> RelaySettings:
        """Quick looks."""
        quick = {
            "lease": LEASE,
            "watch_interval": timedelta(milliseconds=50),
            "poll_interval": timedelta(milliseconds=50),
        }
        return RelaySettings(**{**quick, **options})


def number_payload(number: int, size: int = 0) -> bytes:
    return str(number).encode().ljust(size)


@asynccontextmanager
async def sqlite_scene(path: Path, *, is_installed: bool = False) -> AsyncIterator[Scene]:
    url = f"sqlite:///{path}"
    if not is_installed:
        await open_schema(parse_store_url(url), names=Names()).install()
    scene = Scene(url, Names(), lambda: SqliteStore(path))
    async with _opened(scene):
        yield scene


@asynccontextmanager
async def postgres_scene(
    url: str,
    schema: str,
    logins: Logins,
    *,
    driver: DriverName,
    dialect: PostgresDialect = "native",
    is_installed: bool = False,
) -> AsyncIterator[Scene]:
    names = Names(schema)
    if not is_installed:
        await open_schema(parse_store_url(f"{url}?dialect={dialect}"), names=names).install()

    def open_as(role: Role) -> Store:
        login = logins.url_as(role, url, names, is_portable=dialect == "portable")
        return PostgresStore(login, schema=schema, driver=driver, dialect=dialect)

    scene = Scene(
        url, names, lambda: open_as("relay"), operator_store=open_as("operator"),
        writer_url=logins.url_as("writer", url, names),
    )  # fmt: skip
    scene.store_url = f"{url}?dialect={dialect}"
    async with _opened(scene):
        yield scene


@asynccontextmanager
async def mariadb_scene(url: str, logins: Logins, *, is_installed: bool = False) -> AsyncIterator[Scene]:
    names = Names()
    if not is_installed:
        await open_schema(parse_store_url(url), names=names).install()

    def open_as(role: Role) -> Store:
        return MariadbStore(logins.url_as(role, url, names))

    scene = Scene(
        url, names, lambda: open_as("relay"), operator_store=open_as("operator"),
        writer_url=logins.url_as("writer", url, names),
    )  # fmt: skip
    async with _opened(scene):
        yield scene


@asynccontextmanager
async def _opened(scene: Scene) -> AsyncIterator[None]:
    await scene.store.open()
    try:
        yield
    finally:
        await scene.store.close()
