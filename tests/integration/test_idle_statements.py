"""An idle relay asks the database little, however many destinations and closed messages there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.message import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, Duty, RelaySettings
from pillarbox.stores.factory import open_schema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry
from tests.support.relay_behaviour.scene import until

PEEK = "-- What the lanes of many destinations have"
READ = "-- Fresh messages of the lanes above their marks"
DIGEST = "-- One row that is another when the registry is"
SETTINGS = RelaySettings(poll_interval=timedelta(milliseconds=50), duties=(Duty.SEND, Duty.RETRY, Duty.RECOVER))


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that goes to the server, by whatever method."""
    sent: list[str] = []

    def watch(method: Any) -> Any:
        async def call(self: Any, query: str, *values: Any, **options: Any) -> Any:
            sent.append(query)
            return await method(self, query, *values, **options)

        return call

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        monkeypatch.setattr(asyncpg.Connection, name, watch(getattr(asyncpg.Connection, name)))
    return sent


@pytest.fixture
async def store(postgres_url: str, postgres_schema: str) -> PostgresStore:
    names = Names(postgres_schema)
    await open_schema(parse_store_url(postgres_url), names=names).install()
    return PostgresStore(postgres_url, schema=names.schema, driver="asyncpg")


def build_relay(store: PostgresStore, *, destinations: int) -> Relay:
    """Every destination has a dead letter destination, the last one."""
    last = f"d{destinations}"
    settings = [DestinationSettings(name=f"d{number}", dead_letter=last) for number in range(1, destinations)]
    return Relay(
        store,
        [Destination(MemoryTransport, one) for one in [*settings, DestinationSettings(name=last)]],
        settings=SETTINGS,
        telemetry=Telemetry(),
    )


async def idle(relay: Relay, statements: list[str], *, polls: int) -> list[str]:
    """Wait until all destinations rest, and return the statements of so many polls."""
    await until(lambda: is_resting(relay))
    statements.clear()
    await until(lambda: count(statements, PEEK) >= polls)
    return list(statements)


def is_resting(relay: Relay) -> bool:
    return bool(relay._pipelines) and all(one.reader.is_resting for one in relay._pipelines.values())


def count(statements: list[str], beginning: str) -> int:
    return sum(one.startswith(beginning) for one in statements)


async def test_dead_letters_cost_nothing_while_nothing_fails(store: PostgresStore, statements: list[str]) -> None:
    """What fails is forwarded as it is settled. Nobody looks for it in history."""
    async with (relay := build_relay(store, destinations=3)):
        asked = await idle(relay, statements, polls=5)
    assert not [one for one in asked if "history" in one]


async def test_a_poll_costs_one_statement_for_all_destinations(store: PostgresStore, statements: list[str]) -> None:
    """Apart from a lane of each that is read from its start now and then."""
    async with (relay := build_relay(store, destinations=20)):
        asked = await idle(relay, statements, polls=10)
        destinations = len(relay._pipelines)
    assert count(asked, READ) <= destinations


async def test_a_longer_poll_interval_has_an_effect(store: PostgresStore, statements: list[str]) -> None:
    counts = {}
    for poll_interval in (0.02, 2.0):
        relay = build_relay(store, destinations=3)
        relay._settings = RelaySettings(poll_interval=timedelta(seconds=poll_interval))
        async with relay:
            await until(lambda: is_resting(relay))  # noqa: B023
            statements.clear()
            await until(lambda: count(statements, DIGEST) >= 4)  # about two seconds
            counts[poll_interval] = count(statements, PEEK)
    assert counts[2.0] <= 2 < counts[0.02]
