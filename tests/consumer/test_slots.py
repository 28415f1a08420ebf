"""Whatever happens to one message, its slot is freed, it is kept or given back, and the others are handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.cloudevents import CloudEvent
from pillarbox.consumer import Consumer
from pillarbox.consumer.processing import CannotKeep
from pillarbox.consumer.telemetry import ConsumerTelemetry
from pillarbox.consumer.unit_of_work import CannotBegin
from pillarbox.contracts.receiver import IncomingMessage
from pillarbox.contracts.writer import Fail
from pillarbox.decoding import to_cloudevent
from pillarbox.message import Names
from pillarbox.stores.memory import MemoryStore, MemoryTransaction
from pillarbox.writers.inbox_sql import StatementResult, build_steps
from pillarbox.writers.insert_sql import Dialect
from tests.support.consumer.scene import PATIENCE, QUICK, TYPES, Ticked, tick, until
from tests.support.writers.places import SqlitePlace

_ONE_SLOT = replace(QUICK, concurrency=1, prefetch=1)


class Abort(BaseException):
    pass


class Scene:
    """A consumer with one slot: if a message keeps it, nothing else is handled."""

    def __init__(self, *, database: object = None, telemetry: ConsumerTelemetry | None = None) -> None:
        self.queue = MemoryQueue()
        self.store = MemoryStore()
        self.seen: list[int] = []
        self.receiver = MemoryReceiver(self.queue)
        self.consumer = Consumer(
            "clock", receiver=self.receiver, database=database or self.store, settings=_ONE_SLOT, types=TYPES,
            telemetry=telemetry,
        )  # fmt: skip

    def handle(self, error: BaseException | None = None) -> None:
        """Let the handler raise this for the first message."""

        @self.consumer.on(Ticked)
        def handle(event: Ticked) -> None:
            if event.number == 1 and error is not None:
                raise error
            self.seen.append(event.number)

    async def run_both(self) -> None:
        self.queue.put(tick(1))
        self.queue.put(tick(2))
        async with self.consumer:
            await until(lambda: 2 in self.seen and not self.queue.waiting and not self.queue.unacknowledged)

    def row(self, message_id: str = "m1") -> Any:
        return self.store.data.inbox["clock", "/clock", message_id]

    async def run_until_broken(self) -> None:
        self.queue.put(tick(1))
        async with asyncio.timeout(PATIENCE):
            await self.consumer.run()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Abort(), SystemExit(3), RecursionError("deep")])
async def test_whatever_a_handler_raises_its_message_is_kept_and_the_next_is_handled(error: BaseException) -> None:
    scene = Scene()
    scene.handle(error)
    await scene.run_both()
    assert (scene.row().status, scene.row().attempts) == ("failed", 3)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_an_error_without_a_text_spends_attempts_as_any_other() -> None:
    scene = Scene()
    scene.handle(Unspeakable())
    await scene.run_both()
    assert (scene.row().attempts, scene.row().last_error) == (3, "Unspeakable: its text cannot be read")


@pytest.mark.parametrize("waits", [True, False])
async def test_a_handler_that_cancels_its_own_task_frees_its_slot(waits: bool, tmp_sqlite: Path) -> None:
    """The cancellation reaches the handler itself, or what comes after it: the commit or the acknowledgement."""
    place = SqlitePlace(tmp_sqlite)
    place.install()
    engine = create_async_engine(f"sqlite+aiosqlite:///{place.path}")
    scene = Scene(database=async_sessionmaker(engine))

    @scene.consumer.on(Ticked)
    async def handle(event: Ticked) -> None:
        if event.number == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if waits:
                await asyncio.sleep(0)
        scene.seen.append(event.number)

    await scene.run_both()
    await engine.dispose()
    rows = place.query("select message_id, status from pillarbox_inbox order by message_id")
    statuses = {row["message_id"]: row["status"] for row in rows}
    assert statuses.keys() == {"m1", "m2"}
    assert statuses["m1"] == "failed" or not waits  # a driver may finish a commit all the same


async def test_a_text_that_no_database_stores_is_stored_without_its_bad_characters() -> None:
    scene = Scene()
    scene.handle(ValueError("no \0 such \ud800 account \x1b[2J"))
    await scene.run_both()
    assert scene.row().last_error == "ValueError: no such account [2J"


async def test_a_message_whose_reading_breaks_down_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(received: IncomingMessage) -> CloudEvent:
        if received.headers["ce-id"] == "m1":
            raise RecursionError("a\0b")
        return to_cloudevent(received)

    monkeypatch.setattr("pillarbox.consumer.consumer.to_cloudevent", read)
    scene = Scene()
    scene.handle()
    await scene.run_both()
    (row,) = [row for row in scene.store.data.inbox.values() if row.status == "failed"]
    assert row.last_error == "it cannot be read (RecursionError: a b)"
    assert row.message is not None


class Raising(ConsumerTelemetry):
    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        raise LookupError("no such meter")

    def on_failed(self, *_: object, **__: object) -> None:
        raise LookupError("no such meter")


async def test_a_telemetry_that_raises_stops_nobody() -> None:
    scene = Scene(telemetry=Raising())
    scene.handle(ValueError("no"))
    await scene.run_both()
    assert (scene.row("m1").status, scene.row("m2").status) == ("failed", "done")


async def test_an_acknowledgement_that_breaks_down_stops_nobody() -> None:
    scene = Scene()
    scene.handle()
    acknowledge, broken = scene.receiver.acknowledge, [RuntimeError("a bug of the client")]

    async def acknowledge_second(received: IncomingMessage) -> None:
        if broken:
            raise broken.pop()
        await acknowledge(received)

    scene.receiver.acknowledge = acknowledge_second  # type: ignore[method-assign]
    scene.queue.put(tick(1))
    scene.queue.put(tick(2))
    async with scene.consumer:
        await until(lambda: scene.seen == [1, 2])
    assert [one.headers["ce-id"] for one in scene.queue.waiting] == ["m1"]


# --- what the inbox refuses ---


class Refusing(MemoryStore):
    """Refuses some records of failed messages."""

    def __init__(self, refuses: Callable[[Fail], bool]) -> None:
        super().__init__()
        self.refuses = refuses

    @contextmanager
    def transaction(self) -> Any:  # type: ignore[override]
        with super().transaction() as tx:
            execute = tx.execute

            def check(command: Any) -> Any:
                if isinstance(command, Fail) and self.refuses(command):
                    raise ValueError("value too long")
                return execute(command)

            tx.execute = check  # type: ignore[method-assign]
            yield tx


async def test_a_content_that_the_database_refuses_is_left_out() -> None:
    store = Refusing(lambda command: command.message is not None)
    scene = Scene(database=store)
    scene.store = store
    scene.handle(ValueError("no"))
    await scene.run_both()
    assert scene.row().message is None
    assert "ValueError: no (its content is not kept, because the database refused it" in scene.row().last_error


async def test_an_identity_that_the_database_refuses_is_kept_as_its_digest() -> None:
    store = Refusing(lambda command: command.source == "/clock")
    scene = Scene(database=store)
    scene.handle(ValueError("no"))
    await scene.run_both()
    (key,) = [key for key, row in store.data.inbox.items() if row.status == "failed"]
    assert key[1] == "unstorable:"
    assert key[2].startswith("sha256:")


async def test_an_inbox_that_records_nothing_ends_the_consumer_and_gives_the_message_back() -> None:
    scene = Scene(database=Refusing(lambda _: True))
    scene.handle(ValueError("no"))
    with pytest.raises(CannotKeep, match="value too long"):
        await scene.run_until_broken()
    assert [one.headers["ce-id"] for one in scene.queue.waiting] == ["m1"]
    assert not scene.queue.acknowledged


async def test_a_consumer_that_ends_in_the_background_of_its_block_tells_it_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(database=Refusing(lambda _: True))
    scene.handle(ValueError("no"))
    scene.queue.put(tick(1))
    with pytest.raises(CannotKeep):
        async with scene.consumer:
            await until(lambda: "the consumer has ended: CannotKeep" in caplog.text)


async def test_transactions_that_cannot_be_opened_end_the_consumer_and_spend_nothing() -> None:
    class Broken:
        def __enter__(self) -> MemoryTransaction:
            raise LookupError("no such pool")

        def __exit__(self, *_: object) -> None: ...

    scene = Scene(database=Broken)
    scene.handle()
    with pytest.raises(CannotBegin, match="no such pool"):
        await scene.run_until_broken()
    assert [one.headers["ce-id"] for one in scene.queue.waiting] == ["m1"]


# --- contents that MariaDB and MySQL do not take ---


def _run(size: int, *, packet: int) -> list[tuple[str, tuple[Any, ...]]]:
    command = Fail(
        names=Names(), consumer="clock", source="/clock", message_id="m1", attempts=1, error="no", message=b"x" * size
    )
    steps = build_steps(command, Dialect.MYSQL)
    ran, result = [], StatementResult(1)
    try:
        statement = next(steps)
        while True:
            ran.append((statement.sql, tuple(statement.parameters)))
            is_packet = "max_allowed_packet" in statement.sql
            statement = steps.send(StatementResult(0, [(packet,)]) if is_packet else result)
    except StopIteration:
        return ran


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 256 * 1024 + 1, 900_000])
def test_no_statement_is_larger_than_the_server_takes_and_together_they_have_it_all(size: int) -> None:
    packet = 1024 * 1024
    ran = _run(size, packet=packet)
    assert max(len(sql) + sum(len(str(value)) for value in values) for sql, values in ran) < packet
    contents = [value for sql, values in ran for value in values if isinstance(value, str) and set(value) <= {"7", "8"}]
    assert b"".join(bytes.fromhex(value) for value in contents) == b"x" * size


@pytest.mark.parametrize("packet", [1024 * 1024, 16 * 1024 * 1024, 64 * 1024 * 1024])
def test_the_largest_content_is_written_in_a_few_parts(packet: int) -> None:
    """Each part makes the server write the whole content again."""
    ran = _run(packet - 64 * 1024, packet=packet)
    assert len([sql for sql, _ in ran if "concat(message" in sql]) <= 4


def test_a_larger_content_than_the_server_takes_is_left_out_with_the_reason() -> None:
    ran = _run(2_000_000, packet=1024 * 1024)
    errors = [bytes.fromhex(value).decode() for _, values in ran for value in values if isinstance(value, str)]
    assert "no (its 2000000 bytes are not kept, because the server's max_allowed_packet is 1048576)" in errors
    assert not any("xxx" in error for error in errors)
