"""The programs of a failover run: writers and relays. `python -m proof.clusters.programs` is their fork server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import asyncpg
import msgspec

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Outcome, Transport, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message, Names
from pillarbox.outbox import Outbox
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_store
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.postgres.driver import load_driver
from pillarbox.stores.urls import parse_store_url
from proof.messages import DESTINATION, NumberedEvent, build_event, build_outbox
from proof.processes import ProgramSpec, serve_forks

__all__ = ["MODULE", "RelaySpec", "WriterSpec", "open_writer"]

MODULE: Final = "proof.clusters.programs"
"""The module of the fork server."""
_log: Final = logging.getLogger(__name__)
_ANSWER: Final = 5.0
"""Seconds that a writer waits for a transaction: a frozen server would keep it for ever."""
_PAUSE: Final = 0.3
"""Seconds after a transaction that failed."""


class WriterSpec(ProgramSpec, frozen=True, kw_only=True):
    """Writes messages of its own keys until it is stopped, or so many transactions are done."""

    name: str
    keys: int
    transactions: int
    interval: float
    """Seconds between two transactions."""
    journal: str
    """A file with a line for each transaction that was tried, and each that was acknowledged."""


class RelaySpec(ProgramSpec, frozen=True, kw_only=True):
    """Runs a relay until it is stopped."""

    to: str | None
    """The broker's URL; None: the file `arrivals`."""
    arrivals: str
    """The file that gets each message, where there is no broker."""
    journal: str
    """A file with a line for each delivery, with its time."""


# --- writers ---


class Writer(Protocol):
    """Writes messages with their business rows. Serialises on a row of the key, as an aggregate does."""

    async def write(self, events: Sequence[NumberedEvent]) -> None:
        """Write one transaction; raise any error if it is not known to be committed."""

    async def close(self) -> None:
        """Drop the connection, whatever state it is in."""


class PostgresWriter:
    """Writes with asyncpg."""

    def __init__(self, connection: Any, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox

    @classmethod
    async def open(cls, url: str, outbox: Outbox) -> PostgresWriter:
        driver = load_driver("asyncpg")
        connection = await driver.connect(parse_store_url(url).dsn, timeout=_ANSWER, command_timeout=_ANSWER)
        return cls(driver.unwrap(connection), outbox)

    async def write(self, events: Sequence[NumberedEvent]) -> None:
        key = events[0].key
        async with asyncio.timeout(_ANSWER), self._connection.transaction():
            await self._connection.execute("update key_row set number = number + 1 where key = $1", key)
            for event in events:
                row = (event.subject, event.key, event.number)
                await self._connection.execute("insert into business_row values ($1, $2, $3)", *row)
            await self._outbox.publish(self._connection, list(events))

    async def close(self) -> None:
        with suppress(asyncpg.InterfaceError):
            self._connection.terminate()


class MariadbWriter:
    """Writes with PyMySQL, to the first server of the URL that takes writes."""

    def __init__(self, connection: Any, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox

    @classmethod
    async def open(cls, url: str, outbox: Outbox) -> MariadbWriter:
        return cls(connect(parse_store_url(url).dsn, timeout=_ANSWER), outbox)

    async def write(self, events: Sequence[NumberedEvent]) -> None:
        connection = self._connection
        connection.begin()
        with connection.cursor() as cursor:
            cursor.execute("update key_row set number = number + 1 where `key` = %s", (events[0].key,))
            for event in events:
                row = (event.subject, event.key, event.number)
                cursor.execute("insert into business_row values (%s, %s, %s)", row)
        self._outbox.publish(connection, list(events))
        connection.commit()

    async def close(self) -> None:
        with suppress(Exception):
            self._connection._force_close()


class SqliteWriter:
    """Writes to the file that every process shares."""

    def __init__(self, connection: sqlite3.Connection, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox

    @classmethod
    async def open(cls, url: str, outbox: Outbox) -> SqliteWriter:
        return cls(sqlite3.connect(parse_store_url(url).path, timeout=30, isolation_level=None), outbox)

    async def write(self, events: Sequence[NumberedEvent]) -> None:
        self._connection.execute("begin immediate")
        with self._connection:
            for event in events:
                row = (event.subject, event.key, event.number)
                self._connection.execute("insert into business_row values (?, ?, ?)", row)
            self._outbox.publish(self._connection, list(events))

    async def close(self) -> None:
        self._connection.close()


async def open_writer(backend: str, url: str, outbox: Outbox) -> Writer:
    """Connect to the leader."""
    if backend == "postgres":
        return await PostgresWriter.open(url, outbox)
    if backend == "mariadb":
        return await MariadbWriter.open(url, outbox)
    return await SqliteWriter.open(url, outbox)


async def _run_writer(spec: WriterSpec) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    outbox = build_outbox(Names())
    journal = _Journal(Path(spec.journal))
    numbers = dict.fromkeys((f"{spec.name}{key}" for key in range(spec.keys)), 0)
    writer: Writer | None = None
    for turn in range(spec.transactions):
        if stopped.is_set():
            break
        key = f"{spec.name}{turn % spec.keys}"
        first = numbers[key] = numbers[key] + 1
        numbers[key] += 1  # a number is never used again, whatever became of it
        events = [build_event(key, number) for number in (first, first + 1)]
        journal.add("tried", *(event.subject for event in events))
        try:
            writer = writer or await open_writer(spec.backend, spec.store, outbox)
            await writer.write(events)
        except Exception as error:
            _log.info("A transaction failed: %s: %s", type(error).__name__, str(error)[:300])
            if writer is not None:
                await writer.close()
                writer = None
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _PAUSE)
            continue
        journal.add("acknowledged", *(event.subject for event in events))
        await asyncio.sleep(spec.interval)
    if writer is not None:
        await writer.close()


class _Journal:
    """Lines of words, each with its time. Several processes may append to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, *words: str) -> None:
        os.write(self._file, f"{time.monotonic():.6f} {' '.join(words)}\n".encode())


# --- relays ---


class FileTransport:
    """Appends each message to a file: the destination where the cluster is the store."""

    features = TransportFeatures(name="file")

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        os.write(self._file, b"".join(message.payload + b"\n" for message in messages))
        return [Outcome(True)] * len(messages)


class JournaledTransport:
    """Notes each message of which the broker said that it is delivered."""

    def __init__(self, transport: Transport, journal: _Journal) -> None:
        self._transport = transport
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        try:
            outcomes = await self._transport.send(messages)
        except TransportUnavailable as error:
            _log.info("Unavailable: %s", error)
            raise
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome.delivered:
                self._journal.add("delivered", message.subject or "")
            else:
                _log.info("Not delivered: %s", outcome.error)
        return outcomes


async def _run_relay(spec: RelaySpec) -> None:
    journal = _Journal(Path(spec.journal))

    def open_transport() -> Transport:
        transport = FileTransport(Path(spec.arrivals)) if spec.to is None else transport_from_url(spec.to)
        wrapped: Any = JournaledTransport(transport, journal)
        return wrapped  # type: ignore[no-any-return]

    # Everything that decides how long a failover takes is left at its default.
    settings = RelaySettings(service="clusters", stale_after=timedelta(minutes=1))
    relay = Relay(
        open_store(spec.store), [Destination(open_transport, DestinationSettings(name=DESTINATION))], settings=settings
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


def _run_program(encoded: bytes) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    match msgspec.json.decode(encoded, type=WriterSpec | RelaySpec):
        case WriterSpec() as spec:
            asyncio.run(_run_writer(spec))
        case RelaySpec() as spec:
            asyncio.run(_run_relay(spec))


if __name__ == "__main__":
    serve_forks(_run_program)
