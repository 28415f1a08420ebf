"""A consumer whose transactions are Django's: what commits, what is repeated, what has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from pillarbox.brokers.memory import MemoryQueue, MemoryReceiver
from pillarbox.consumer import Consumer
from tests.support.consumer.scene import QUICK, TYPES, Ticked, tick, until

Handle = Callable[[Ticked], None]


class Scene:
    """A consumer for one handler, and what it leaves in the tables."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.queue = MemoryQueue()

    def run(self, handle: Handle, *, times: int = 1) -> None:
        """Handle a message with it, until the broker has been told so often."""
        asyncio.run(self._run(handle, times))

    async def _run(self, handle: Handle, times: int) -> None:
        from pillarbox.integrations.django import transactions

        receiver, database = MemoryReceiver(self.queue), partial(transactions, using=self.using)
        consumer = Consumer("clock", receiver=receiver, database=database, types=TYPES, settings=QUICK)
        consumer.on(Ticked)(handle)
        self.queue.put(tick(1, "a"))
        async with consumer:
            await until(lambda: len(self.queue.acknowledged) == times)

    def note(self, event: Ticked) -> None:
        from tests.integration.django_project.shop.models import Order

        Order.objects.using(self.using).create(note=str(event.number))

    def rows(self, sql: str) -> list[Any]:
        from django.db import connections

        with connections[self.using].cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def left(self) -> tuple[list[Any], list[Any]]:
        """The handler's rows, and the inbox's."""
        return self.rows("select note from shop_order"), self.rows("select status, duplicates from pillarbox_inbox")


@pytest.fixture
def scene(using: str) -> Iterator[Scene]:
    from django.db import connections

    yield Scene(using)
    with connections[using].cursor() as cursor:
        cursor.execute("delete from pillarbox_inbox")


def test_a_handler_s_models_commit_with_the_record(scene: Scene) -> None:
    scene.queue.put(tick(1, "a"))
    scene.run(scene.note, times=2)
    assert scene.left() == ([("1",)], [("done", 1)])


def test_what_a_handler_publishes_commits_with_it(scene: Scene) -> None:
    from pillarbox.integrations.django import publish
    from tests.integration.django_project.shop.models import Told

    scene.run(lambda event: publish(Told(event.number, "told"), using=scene.using))
    assert scene.rows("select subject, causation_id from pillarbox_outbox") == [("told", "m1")]


def test_what_fails_leaves_nothing_behind(scene: Scene) -> None:
    def failing(event: Ticked) -> None:
        scene.note(event)
        raise ValueError("no")

    scene.run(failing)
    assert scene.left() == ([], [("failed", 0)])


def test_a_block_that_was_told_to_roll_back_has_failed(scene: Scene) -> None:
    """Django would roll back at its end without a word, and the message would be lost."""
    from django.db import transaction

    def rolling_back(event: Ticked) -> None:
        scene.note(event)
        transaction.set_rollback(True, using=scene.using)

    scene.run(rolling_back)
    assert scene.left() == ([], [("failed", 0)])


@pytest.mark.parametrize("using", ["postgres"], indirect=True)
def test_an_error_that_the_handler_caught_is_no_commit(scene: Scene) -> None:
    """PostgreSQL would answer COMMIT with a rollback."""
    from django.db import DatabaseError

    def swallowing(event: Ticked) -> None:
        scene.note(event)
        with suppress(DatabaseError):
            scene.rows("select 1 / 0")

    scene.run(swallowing)
    assert scene.left() == ([], [("failed", 0)])


@pytest.mark.parametrize("using", ["postgres"], indirect=True)
def test_a_connection_that_broke_is_replaced(scene: Scene) -> None:
    broken: list[int] = []

    def breaking(event: Ticked) -> None:
        scene.note(event)
        if not broken:
            broken.append(event.number)
            scene.rows("select pg_terminate_backend(pg_backend_pid())")

    scene.run(breaking)
    assert scene.left() == ([("1",)], [("done", 0)])
