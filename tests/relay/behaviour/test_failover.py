"""A failover that loses commits, behind a pooler that keeps the relay's connections: nothing is overtaken or lost."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.errors import StoreUnavailable
from pillarbox.stores.postgres.driver import DriverName
from pillarbox.stores.postgres.store import PostgresStore
from tests.support.granted import create_postgres_logins
from tests.support.pooler import SwitchingPooler
from tests.support.private_postgres import PrivatePostgres
from tests.support.private_program import free_port
from tests.support.relay_behaviour.scene import Scene, Script, postgres_scene, until

KEYS = ("a", "b", "c", "d", "e")
LOST = 100
"""More than a sequence is ahead of in the log, so that ids are used again."""


@contextmanager
def backup(server: PrivatePostgres) -> Iterator[PrivatePostgres]:
    """A copy of the server as it is now, stopped. It lacks what is committed later."""
    folder = Path(tempfile.mkdtemp(prefix="pillarbox-backup-"))
    shutil.chown(folder, server.data.owner(), server.data.group())
    copy = PrivatePostgres(server.programs, folder, free_port(), server.account)
    server.stop()
    subprocess.run(["cp", "-a", server.data, copy.data], check=True)  # with the owner
    server.start()
    with closing(copy):
        yield copy


@asynccontextmanager
async def failing_over(server: PrivatePostgres, driver: DriverName) -> AsyncIterator[tuple[Scene, SwitchingPooler]]:
    async with (
        postgres_scene(server.url, "public", create_postgres_logins(server.url), driver=driver) as scene,
        SwitchingPooler(server.url) as pooler,
    ):
        url = pooler.url
        scene.open_store = lambda: PostgresStore(url, schema="public", driver=driver, pooler="transaction")
        yield scene, pooler


def numbered(first: int, count: int) -> list[tuple[int, str | None]]:
    return [(number, KEYS[number % len(KEYS)]) for number in range(first, first + count)]


def find_first_deliveries(sink: Script, first: int) -> dict[str | None, list[int]]:
    """The numbers from `first` on, by key, in the order of their first delivery."""
    found: dict[str | None, list[int]] = {}
    for message in sink.taken:
        number = int(message.payload)
        if number >= first and number not in found.setdefault(message.key, []):
            found[message.key].append(number)
    return found


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_after_lost_commits_new_messages_are_delivered_at_once_and_in_order(
    private_postgres: Callable[[], PrivatePostgres], driver: DriverName
) -> None:
    server = private_postgres()
    sink = Script()
    with ExitStack() as servers:
        async with failing_over(server, driver) as (scene, pooler):
            relay = scene.relay(sink, settings=scene.quick(lease=timedelta(minutes=5)))
            async with relay:
                await scene.put(*numbered(1, 5))
                await until(scene.is_drained)  # in the copy they are delivered, and nothing must wait behind them
                relay_id = relay.relay_id
                await pooler.pause()
                copy = servers.enter_context(backup(server))
                await pooler.resume(server.url)
                await scene.put(*numbered(100, LOST))
                await until(lambda: len(sink.taken) == 5 + LOST)
                sink.gate.clear()
                sink.under_way = []
                await scene.put(*numbered(300, LOST))
                await until(lambda: sink.under_way)

                await pooler.pause()
                await scene.store.close()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(copy.start)
                scene.url = scene.writer_url = copy.url
                await scene.put(*numbered(1000, 2 * LOST))
                await pooler.resume(copy.url)
                # What was being sent exists no more. Its ids stand for new messages, which must not wait for it.
                await until(lambda: any(int(message.payload) >= 1000 for message in sink.under_way), within=60)
                sink.gate.set()
                await scene.put(*numbered(1000 + 2 * LOST, LOST))
                await until(lambda: sum(map(len, find_first_deliveries(sink, 1000).values())) == 3 * LOST, within=60)
                assert relay.relay_id == relay_id
    for key, numbers in find_first_deliveries(sink, 1000).items():
        assert numbers == [number for number, other in numbered(1000, 3 * LOST) if other == key]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_pooler_that_was_not_named_is_refused_in_one_sentence(postgres_url: str, driver: DriverName) -> None:
    async with SwitchingPooler(postgres_url) as pooler:
        store = PostgresStore(pooler.url, driver=driver)
        with pytest.raises(StoreUnavailable, match=r"startup parameter.*add pooler=transaction"):
            await store.open()
