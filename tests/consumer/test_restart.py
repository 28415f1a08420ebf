"""A consumer that is stopped in the middle, over every broker and type of queue: the next goes on, in order."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from pillarbox.consumer import Consumer, ConsumerSettings
from pillarbox.message import Message
from pillarbox.testing.samples import sample
from tests.support.consumer.ways import QUEUES, Way, open_way
from tests.support.writers.places import SqlitePlace

PATIENCE: Final = 60.0
KEYS: Final = 5
EACH: Final = 40
PARTS: Final = 4
"""Consumers, one after the other."""


@pytest.fixture(params=QUEUES)
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    async with open_way(request.param, request) as way:
        yield way


@pytest.fixture
def place(tmp_sqlite: Path) -> SqlitePlace:
    place = SqlitePlace(tmp_sqlite)
    place.install()
    return place


def consumer_of(way: Way, place: SqlitePlace) -> Consumer:
    # Several of each key in hand, and most still to come, when it is stopped.
    settings = ConsumerSettings(concurrency=2, prefetch=24)
    consumer = Consumer("billing", receiver=way.receiver(), database=place.path, settings=settings)

    @consumer.on("*")
    def bill(event: Any, tx: sqlite3.Connection) -> None:
        tx.execute("insert into orders (note) values (?)", (event["note"],))

    return consumer


def messages() -> list[Message]:
    names = [(f"key-{key}", number) for number in range(EACH) for key in range(KEYS)]
    return [sample(key=key, payload=b'{"note": "%s %d"}' % (key.encode(), number)) for key, number in names]


def notes(place: SqlitePlace) -> list[str]:
    return [row["note"] for row in place.query("select note from orders order by id")]


async def handled(place: SqlitePlace, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(await asyncio.to_thread(notes, place)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_one_leaves_the_next_does(way: Way, place: SqlitePlace) -> None:
    await way.send(messages())
    await _restart(way, place)


async def test_what_one_leaves_the_next_does_while_more_comes(way: Way, place: SqlitePlace) -> None:
    sending = asyncio.create_task(way.send(messages(), batch=KEYS))
    await _restart(way, place)
    await sending


async def _restart(way: Way, place: SqlitePlace) -> None:
    for part in range(1, PARTS + 1):
        async with consumer_of(way, place):
            await handled(place, KEYS * EACH * part // PARTS)
    check(notes(place))


@pytest.mark.parametrize("way", ["single active"], indirect=True)
async def test_what_one_leaves_the_next_does_that_waited_beside_it(way: Way, place: SqlitePlace) -> None:
    """As in a rolling restart: the next one consumes already when the first is stopped."""
    await way.send(messages())
    running = consumer_of(way, place)
    await running.__aenter__()
    for part in range(1, PARTS + 1):
        await handled(place, KEYS * EACH * (part - 1) // PARTS + 1)
        following = consumer_of(way, place)
        await following.__aenter__()
        await running.__aexit__(None, None, None)
        running = following
    await handled(place, KEYS * EACH)
    await running.__aexit__(None, None, None)
    check(notes(place))


def check(all_notes: list[str]) -> None:
    """Check that each message was handled once, and each key's in order."""
    assert len(all_notes) == len(set(all_notes)) == KEYS * EACH
    for key in range(KEYS):
        assert [note for note in all_notes if note.startswith(f"key-{key} ")] == [f"key-{key} {n}" for n in range(EACH)]
