"""The store goes away: the relay stops in time, comes back by itself, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import StoreUnavailable
from pillarbox.message import Message, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.stores.postgres.driver import DriverName
from tests.support.granted import Logins, postgres_logins
from tests.support.private_postgres import PrivatePostgres
from tests.support.relay_behaviour.scene import SHORT_LEASE, Scene, Script, postgres_scene, quick_retry, until
from tests.support.relay_behaviour.wire import Wire


def relay_over(wire: Wire, scene: Scene, sink: Script, *, rate: float | None = None, **options: Any) -> Relay:
    settings = DestinationSettings(name="sink", retry=quick_retry(), rate=rate, send_timeout=timedelta(minutes=1))
    return Relay(wire.store, [Destination(lambda: sink, settings)], settings=scene.quick(**options))


async def test_a_relay_cut_off_from_the_store_stops_sending_before_its_lease_ends(scene: Scene) -> None:
    """It has enough in hand for ten seconds. Another relay may own its lanes after one."""
    clock = asyncio.get_running_loop().time
    sent_at: list[float] = []

    class Watched(Script):
        async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
            sent_at.append(clock())
            return await super().send(messages)

    sink, wire = Watched(batch=1), Wire(scene.open_store())
    await scene.put(*[(number, f"key-{number}") for number in range(200)])
    async with relay_over(wire, scene, sink, rate=20.0, lease=SHORT_LEASE):
        await until(lambda: len(sink.taken) >= 25)
        cut_at, wire.is_cut = clock(), True
        await asyncio.sleep(2.5)
        last_sent_at = sent_at[-1]
        wire.is_cut = False
        await until(lambda: len(sink.taken) >= 60)
    assert last_sent_at <= cut_at + SHORT_LEASE.total_seconds()
    assert not await scene.find(State.FAILED)


async def test_a_short_cut_of_the_line_loses_nothing_and_keeps_the_order(scene: Scene) -> None:
    sink, wire = Script(batch=5), Wire(scene.open_store())
    async with relay_over(wire, scene, sink):
        await scene.put((0, "key-0"))
        await until(lambda: sink.taken)
        for number in range(1, 120):
            await scene.put((number, f"key-{number % 6}"))
            if number % 40 == 20:
                wire.is_cut = True
                await asyncio.sleep(0.2)
                wire.is_cut = False
        await until(scene.is_drained)
    assert sorted(set(sink.numbers())) == list(range(120))
    assert all(ids == sorted(ids) for ids in sink.by_key().values())
    assert {(message.state, message.attempts) for message in await scene.find()} == {(State.DELIVERED, 0)}


async def test_a_store_that_is_away_when_the_relay_stops_does_not_keep_it(scene: Scene) -> None:
    sink, wire = Script(), Wire(scene.open_store())
    await scene.put((1, "a"))
    async with asyncio.timeout(60), relay_over(wire, scene, sink, lease=timedelta(seconds=5)):
        await until(lambda: sink.numbers() == [1])
        wire.is_cut = True


# --- a real server ---


@pytest.fixture
async def server(private_postgres: Callable[[], PrivatePostgres]) -> PrivatePostgres:
    return await asyncio.to_thread(private_postgres)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_database_that_is_killed_and_started_again_costs_nothing(
    server: PrivatePostgres, driver: DriverName
) -> None:
    with postgres_logins(server.url) as logins:
        await _kill_and_start_again(server, logins, driver)


async def _kill_and_start_again(server: PrivatePostgres, logins: Logins, driver: DriverName) -> None:
    async with postgres_scene(server.url, "outages", logins, driver=driver) as scene:
        sink = Script(batch=5)
        async with scene.relay(sink), scene.relay(sink):
            await scene.put(*[(number, f"key-{number % 10}") for number in range(100)])
            await until(lambda: len(sink.taken) >= 30)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(2)
            await asyncio.to_thread(server.start)
            await scene.put(*[(number, f"key-{number % 10}") for number in range(100, 200)])
            await until(scene.is_drained, within=60)
        assert sorted(set(sink.numbers())) == list(range(200))
        assert all(ids == sorted(ids) for ids in sink.by_key().values())
        assert {(message.state, message.attempts) for message in await scene.find()} == {(State.DELIVERED, 0)}


async def test_an_idle_relay_says_once_that_its_store_is_away_and_once_that_it_is_back(
    private_postgres: Callable[[], PrivatePostgres], caplog: pytest.LogCaptureFixture
) -> None:
    server = private_postgres()
    with postgres_logins(server.url) as logins:
        await _stop_under_an_idle_relay(server, logins, caplog)


async def _stop_under_an_idle_relay(server: PrivatePostgres, logins: Logins, caplog: pytest.LogCaptureFixture) -> None:
    async with postgres_scene(server.url, "idle", logins, driver="asyncpg") as scene:
        sink = Script()
        async with scene.relay(sink):
            await scene.put((1, "a"))
            await until(lambda: sink.numbers() == [1])
            caplog.clear()
            server.stop("immediate")
            await asyncio.sleep(4)
            server.start()
            await until(lambda: "the store answers again" in caplog.text)
        lines = [one for one in caplog.records if one.levelno >= 30]
        assert [one.getMessage() for one in lines if one.exc_info] == []
        assert caplog.text.count("the store is away: ") == 1
        assert caplog.text.count("the store answers again") == 1
        assert len(lines) < 15, [one.getMessage() for one in lines]


class _Locked:
    """A store some calls of which fail, once a relay is in it."""

    def __init__(self, store: Any, calls: Collection[str]) -> None:
        self._store = store
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return self._fail if name in self._calls else getattr(self._store, name)

    async def _fail(self, *_: object, **__: object) -> None:
        raise StoreUnavailable("the table is locked")


@pytest.mark.parametrize(
    "calls",
    [("registry", "registry_digest", "requests"), ("read",), ("claim",), ("settle",)],
    ids=lambda calls: calls[0],
)
async def test_once_ends_with_the_reason_if_the_store_fails_a_call_for_a_lease(
    scene: Scene, calls: Collection[str]
) -> None:
    store: Any = _Locked(scene.open_store(), calls)
    await scene.put((1, "a"))
    relay = Relay(
        store, [Destination(Script, DestinationSettings(name="sink"))], settings=scene.quick(lease=SHORT_LEASE)
    )
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable, match="the table is locked"):
            await relay.run(once=True)
