"""Writers that share nothing but a key take turns, where databases let them run at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pillarbox.contracts.writer import Insert
from tests.support.writers.handles import Handle, insert
from tests.support.writers.kinds import KINDS
from tests.support.writers.places import Place, message, outbox, subjects


@pytest.fixture(params=["asyncpg", "asyncmy"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def _open(kind: str, place: Place) -> AsyncIterator[Handle]:
    handle = KINDS[kind][1]()
    await handle.open(place)
    yield handle
    await handle.close()


async def test_writers_of_overlapping_keys_never_deadlock(
    kind: str, place: Place, keyed: Callable[..., Insert]
) -> None:
    keys = [f"key-{number}" for number in range(40)]

    async def writes(order: list[str]) -> None:
        async with _open(kind, place) as handle:
            for _ in range(25):
                await handle.begin()
                await insert(handle, keyed(*order))
                await handle.commit()

    await asyncio.gather(writes(keys), writes(keys[::-1]), writes(keys[10:30][::-1]), writes(keys[5:35]))
    assert len(outbox(place)) == 25 * (40 + 40 + 20 + 30)


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "asyncmy"], indirect=True)
async def test_a_transaction_may_have_more_keys_than_a_server_has_locks(kind: str, place: Place) -> None:
    """PostgreSQL's table of locks has room for some 6,400."""
    given = [message(str(number), key=f"key-{number}") for number in range(20_000)]
    async with _open(kind, place) as handle:
        await handle.begin()
        await insert(handle, Insert(names=place.names, messages=given, serialize_keys=True))
        await handle.commit()
    assert len(outbox(place)) == 20_000


async def test_locked_keys_get_ids_in_commit_order(kind: str, place: Place) -> None:
    """Whoever has the lower id committed first."""
    committed: list[str] = []

    async def writes(name: str) -> None:
        async with _open(kind, place) as handle:
            for number in range(30):
                await handle.begin()
                given = [message(f"{name}{number}", key="k")]
                await insert(handle, Insert(names=place.names, messages=given, serialize_keys=True))
                committed.append(f"{name}{number}")  # still under the lock
                await handle.commit()

    await asyncio.gather(*(writes(name) for name in "abc"))
    assert subjects(place) == committed
