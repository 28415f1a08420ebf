"""Runs partial outages: a part of a broker takes nothing, or little, while a real relay over a SQLite store delivers.

A scenario is a `PartialOutage`; `tests.support.faults.scenarios` has them all.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from pillarbox import Outbox, Route, Routes
from pillarbox.contracts.store import Selection
from pillarbox.contracts.transport import Transport
from pillarbox.message import Message, Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import Telemetry
from tests.support.faults.broker import Arrival, Draft
from tests.support.faults.runner import judge

__all__ = ["LEAST_RATIO", "ROUNDS", "WAITING", "PartialOutage", "PartialVerdict", "Site", "measure_ratio", "run_outage"]

LEAST_RATIO: Final = 0.8
"""Of the rate that the other address has alone."""
_PATIENCE: Final = 100.0
_KEYS: Final = 20
WAITING: Final = 1_000
"""Messages that wait for the blocked address while the rate of the other is measured, of `_WAITING_KEYS` keys."""
_WAITING_KEYS: Final = 200
_BLOCKS: Final = 3
_BLOCK_ROUNDS: Final = 3
"""Rounds in each block. A block with the outage follows one without, so that both meet the same machine."""
_MEASUREMENTS: Final = 2
"""A ratio that is too low is measured again, and all rounds count: a machine that others use changes all the time."""
ROUNDS: Final = _BLOCKS * _BLOCK_ROUNDS
"""Rounds of each kind."""
_STANDING: Final = 3.0
"""Seconds after which an outage stands: each waiting message was read, and probes went."""
_BLOCKED: Final = "blocked"
_FREE: Final = "free"

Step = Callable[[], Awaitable[None]]


async def _do_nothing() -> None:
    """The outage is there from the start, or ends by itself."""


@dataclass(kw_only=True)
class Site:
    """A real broker in a partial outage, with addresses that only this scenario uses."""

    make_transport: Callable[[], Transport]
    blocked: str
    """Topic of the messages that the outage concerns. Their keys begin with `blocked`."""
    free: str | None = None
    """Topic of the others, whose keys begin with `free`; None if the outage concerns all."""
    begin: Step = _do_nothing
    end: Step = _do_nothing
    read_received: Callable[[], Awaitable[Sequence[Arrival]]]
    """All that arrived, duplicates too, in order of arrival for each key. Called once, at the end."""
    make_blocked_transport: Callable[[], Transport] | None = None
    """Makes the transport of a second destination, to which the blocked messages go, where an address is one."""
    room: int = 0
    """Most blocked messages that are taken in the outage."""
    padding: int = 0
    """Bytes added to each payload."""
    others: int = 1
    """Messages and keys of the other address for each of the blocked one."""
    load: int = 2_000
    """Messages of the other address in one round of the measurement."""


class PartialOutage(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    broker: str
    name: str
    run: Callable[[], AbstractAsyncContextManager[Site]]
    before_start: bool = False
    """The outage begins before the relay does. Otherwise messages get through at first."""
    count: int | None = None
    """Messages for each address; None: as many as the caller says."""


class PartialVerdict(msgspec.Struct, kw_only=True):
    """The result of one partial outage."""

    sent: int
    lost: int
    ghosts: int
    out_of_order: int
    repeats: int
    attempts: int
    failed: int
    passed: int
    """Messages of the blocked address that got through in the outage."""
    recovery: float
    """Seconds from the end of the outage until nothing waited any more."""
    ratio: float | None = None
    """Rate of the other address beside the outage, as a part of its rate alone."""
    rounds: int = 0
    """Rounds of each kind of which the ratio is made."""

    @property
    def is_good(self) -> bool:
        """Nothing lost, failed or paid, and the other address had its rate."""
        costs = (self.lost, self.ghosts, self.out_of_order, self.failed, self.attempts)
        return not any(costs) and (self.ratio is None or self.ratio >= LEAST_RATIO)


@dataclass
class Shop(Telemetry):
    """A store with messages, and relays that deliver them to one site. Counts what was delivered."""

    path: Path
    site: Site
    delivered: dict[str, int] = field(default_factory=lambda: {_BLOCKED: 0, _FREE: 0})
    published: dict[str, int] = field(default_factory=lambda: {_BLOCKED: 0, _FREE: 0})
    tried: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    async def install(cls, path: Path, site: Site) -> Shop:
        await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
        return cls(path, site)

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        blocked = sum(message.type == _BLOCKED for message in messages)
        self.delivered[_BLOCKED] += blocked
        self.delivered[_FREE] += len(messages) - blocked
        self._changed.set()

    def on_tried(self, destination: str, tries: object, *, why: str) -> None:
        self.tried += 1
        self._changed.set()

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self.tried += 1
        self._changed.set()

    def publish(self, kind: str, count: int, *, keys: int = _KEYS) -> None:
        """Commit messages for one of the addresses."""
        site, names = self.site, self._destinations
        routes = Routes([Route(to=[name], type=type) for type, name in names.items()])
        outbox = Outbox(routes=routes, source="/faults", max_payload=64 * 1024 * 1024)
        topic = site.blocked if kind == _BLOCKED else site.free
        assert topic is not None
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            for number in range(self.published[kind], self.published[kind] + count):
                draft = Draft(topic, f"{kind}-{number % keys}", number, site.padding)
                outbox.publish(
                    connection, draft.payload, type=kind, content_type="application/json", key=draft.key, topic=topic
                )
            connection.commit()
        self.published[kind] += count

    def publish_share(self, kind: str, count: int) -> None:
        """Commit so many messages for the blocked address, or the share of the other one beside them."""
        times = self.site.others if kind == _FREE else 1
        self.publish(kind, count * times, keys=_KEYS * times)

    @property
    def _destinations(self) -> dict[str, str]:
        return {_BLOCKED: _BLOCKED if self.site.make_blocked_transport is not None else "broker", _FREE: "broker"}

    def relay(self, **options: object) -> Relay:
        """A relay for which one attempt spent is one message failed."""
        options = {"retry": RetryPolicy(attempts=1), "send_timeout": timedelta(seconds=10), **options}
        makes = {"broker": self.site.make_transport}
        if self.site.make_blocked_transport is not None:
            makes[_BLOCKED] = self.site.make_blocked_transport
        destinations = [
            Destination(make, DestinationSettings(name=name, **options))  # type: ignore[arg-type]
            for name, make in makes.items()
        ]
        settings = RelaySettings(lease=timedelta(seconds=20), poll_interval=timedelta(milliseconds=100))
        return Relay(SqliteStore(self.path), destinations, settings=settings, telemetry=self)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def wait_for_delivered(self, *kinds: str) -> None:
        await self.wait_until(lambda: all(self.delivered[kind] >= self.published[kind] for kind in kinds))

    async def drain(self) -> Sequence[Message]:
        """Wait until nothing is open; return all messages."""
        store = SqliteStore(self.path)
        await store.open()
        try:
            is_open = Selection(states=[State.PENDING, State.SENDING])
            async with asyncio.timeout(_PATIENCE):
                while await store.find(is_open, limit=1, payloads=False):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            return await store.find(Selection(), limit=10_000, payloads=False)
        finally:
            await store.close()


async def run_outage(outage: PartialOutage, *, count: int, folder: Path) -> PartialVerdict:
    """Return what a partial outage cost. The other address gets all its messages while the blocked one takes none."""
    count = outage.count or count
    async with outage.run() as site:
        shop = await Shop.install(folder / "outbox.db", site)
        kinds = [_BLOCKED] if site.free is None else [_BLOCKED, _FREE]
        if outage.before_start:
            await site.begin()
            for kind in kinds:
                shop.publish_share(kind, count)
        async with shop.relay(window=20, batch=10):
            if not outage.before_start:
                for kind in kinds:
                    shop.publish_share(kind, _KEYS)
                await shop.drain()
                await site.begin()
                for kind in kinds:
                    shop.publish_share(kind, count)
            passed = await _wait_in_outage(shop, before=0 if outage.before_start else _KEYS)
            await site.end()
            ended_at = time.monotonic()
            messages = await shop.drain()
            recovery = time.monotonic() - ended_at
        arrivals = await site.read_received()
    found = judge(messages, arrivals, injected=1, noticed=1, spoiled=())
    return PartialVerdict(
        sent=found.sent, lost=found.lost, ghosts=found.ghosts, out_of_order=found.out_of_order,
        repeats=found.duplicates, attempts=sum(message.attempts for message in messages), failed=found.failed,
        passed=passed, recovery=recovery,
    )  # fmt: skip


async def _wait_in_outage(shop: Shop, *, before: int) -> int:
    """Wait until the outage was noticed, and the other address has all its messages; return what got through."""
    if shop.site.end is _do_nothing:
        return 0
    await shop.wait_until(lambda: shop.tried > 0)
    if shop.site.free is not None:
        await shop.wait_for_delivered(_FREE)
    passed = shop.delivered[_BLOCKED] - before
    assert passed <= shop.site.room, "the blocked address was not blocked"
    return passed


# --- the rate of the other address ---


async def measure_ratio(outage: PartialOutage, *, folder: Path) -> tuple[float, int] | None:
    """Return the rate of the other address beside the outage, as a part of its rate alone, and of how many rounds.

    None if the outage concerns all.

    Beside: messages wait for the blocked address, and it is probed. The load and the machine are the same, block by
    block.
    """
    async with outage.run() as site:
        if site.free is None:
            return None
        await site.begin()
        alone, beside = [await Shop.install(folder / name, site) for name in ("alone.db", "beside.db")]
        beside.publish(_BLOCKED, WAITING, keys=_WAITING_KEYS)
        seconds: dict[int, list[float]] = {id(alone): [], id(beside): []}
        ratio = 0.0
        for _ in range(_MEASUREMENTS):
            for _ in range(_BLOCKS):
                for shop in (alone, beside):
                    seconds[id(shop)] += await _measure_block(shop)
            ratio = median(seconds[id(alone)]) / median(seconds[id(beside)])
            if ratio >= LEAST_RATIO:
                break
        await site.end()
    return ratio, len(seconds[id(alone)])


async def _measure_block(shop: Shop) -> list[float]:
    """Return the seconds of some rounds of load. The first is to warm up."""
    seconds = []
    before = shop.tried
    async with shop.relay():
        if shop.published[_BLOCKED]:
            await shop.wait_until(lambda: shop.tried > before)
            await asyncio.sleep(_STANDING)
        for _ in range(_BLOCK_ROUNDS + 1):
            shop.publish(_FREE, shop.site.load, keys=_WAITING_KEYS)
            began_at = time.monotonic()
            await shop.wait_for_delivered(_FREE)
            seconds.append(time.monotonic() - began_at)
    return seconds[1:]
