"""Tries one fault on one broker: a real relay over a SQLite store, some messages, the fault in their midst."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

from pillarbox import Outbox, Route, Routes
from pillarbox.contracts.store import Selection, Store
from pillarbox.message import Message, Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from tests.support.faults.faults import BrokerUnderTest, Draft, FarSide, Fault
from tests.support.faults.striking import Strikes, Striking
from tests.support.faults.verdict import Verdict, verdict

__all__ = ["tried"]

_KEYS: Final = 20
_EACH: Final = 10
_SPOILED: Final = (47, 101, 158)
"""Three keys, each with messages before and behind the spoiled one."""
_PATIENCE: Final = 60.0
_DELIVERED_BEFORE: Final = {Fault.RESTART: (60,), Fault.HANG: (60,), Fault.REFUSED: (60,)}
_TWICE: Final = (40, 110)
_DESTINATION: Final = "broker"
_RELAY: Final = RelaySettings(
    lease=timedelta(seconds=5),
    poll_interval=timedelta(milliseconds=50),
    watch_interval=timedelta(milliseconds=50),
)
_SERVED: Final = DestinationSettings(
    name=_DESTINATION,
    batch=_KEYS,
    window=2 * _KEYS,
    send_timeout=timedelta(seconds=10),
    retry=RetryPolicy(attempts=5, schedule=[timedelta(milliseconds=100)], jitter=0),
)


async def tried(broker: BrokerUnderTest, fault: Fault, *, folder: Path) -> Verdict:
    """What this fault did to the messages. `TimeoutError` when they were not all delivered or failed in the end."""
    path = folder / "outbox.db"
    await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
    async with broker.far_side(fault) as far:
        spoils = fault in broker.spoils
        spoiled = _publish(path, far, fault if spoils else None)
        after = () if spoils else _DELIVERED_BEFORE.get(fault, _TWICE)
        strikes = None if spoils else Strikes(fault, far, after=after)
        messages = await _relayed(path, far, strikes)
        arrivals = await far.received()
    done, felt = (len(spoiled),) * 2 if strikes is None else (strikes.done, strikes.felt)
    ids = {message.id for message in messages if _number(message) in spoiled}
    return verdict(messages, arrivals, strikes=done, felt=felt, spoiled=ids)


def _publish(path: Path, far: FarSide, spoiling: Fault | None) -> frozenset[int]:
    """Commit every message, the spoiled ones among them; answers for their numbers."""
    outbox = Outbox(routes=Routes([Route(to=[_DESTINATION])]), source="/faults", max_payload=64 * 1024 * 1024)
    spoiled = frozenset(_SPOILED if spoiling else ())
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        for number in range(_KEYS * _EACH):
            draft = Draft(far.topic, f"key-{number % _KEYS}", number)
            if spoiling and number in spoiled:
                draft = far.spoiled(spoiling, draft)
            outbox.publish(
                connection, draft.payload, type="numbered", content_type="application/json",
                key=draft.key, topic=draft.topic, subject=str(number),
            )  # fmt: skip
        connection.commit()
    return spoiled


def _number(message: Message) -> int:
    return int(message.subject or -1)


async def _relayed(path: Path, far: FarSide, strikes: Strikes | None) -> Sequence[Message]:
    relay = Relay(
        SqliteStore(path), [Destination(lambda: Striking(far.transport(), strikes), _SERVED)], settings=_RELAY
    )
    store = SqliteStore(path)
    await store.open()
    try:
        async with relay, asyncio.timeout(_PATIENCE):
            await _drained(store)
            if strikes is not None:
                await strikes.finish()
        return await store.find(Selection(), limit=10_000)
    finally:
        await store.close()


async def _drained(store: Store) -> None:
    while await store.find(Selection(states=[State.PENDING, State.SENDING]), limit=1, payloads=False):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
