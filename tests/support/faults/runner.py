"""Injects one fault into one broker: a real relay over a SQLite store delivers messages meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from pillarbox import Outbox, Route, Routes
from pillarbox.contracts.store import Selection, Store
from pillarbox.contracts.transport import Addressing, Outcome, Transport
from pillarbox.message import Message, Names, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite import SqliteStore
from pillarbox.stores.urls import parse_store_url
from tests.support.faults.broker import Arrival, BrokerUnderTest, Draft, Fault, RunningBroker

__all__ = ["Verdict", "judge", "run_fault"]

_KEYS: Final = 20
_MESSAGES_PER_KEY: Final = 10
_SPOILED_NUMBERS: Final = (47, 101, 158)
"""Numbers of three keys, each with messages before and after the spoiled one."""
_TIMEOUT: Final = 60.0
_DELIVERED_BEFORE: Final = {Fault.RESTART: (60,), Fault.HANG: (60,), Fault.REFUSED: (60,)}
_TWICE: Final = (40, 110)
_DESTINATION: Final = "broker"
_RELAY_SETTINGS: Final = RelaySettings(
    lease=timedelta(seconds=5),
    poll_interval=timedelta(milliseconds=50),
    watch_interval=timedelta(milliseconds=50),
)
_DESTINATION_SETTINGS: Final = DestinationSettings(
    name=_DESTINATION,
    batch=_KEYS,
    window=2 * _KEYS,
    send_timeout=timedelta(seconds=10),
    retry=RetryPolicy(attempts=5, schedule=[timedelta(milliseconds=100)], jitter=0),
)


async def run_fault(broker: BrokerUnderTest, fault: Fault, *, folder: Path) -> Verdict:
    """Return what the fault did to the messages. `TimeoutError` if they are not all delivered or failed in the end."""
    path = folder / "outbox.db"
    await open_schema(parse_store_url(f"sqlite:///{path}"), names=Names()).install()
    async with broker.run(fault) as running:
        spoils = fault in broker.spoils
        spoiled = _publish(path, running, fault if spoils else None)
        after = () if spoils else _DELIVERED_BEFORE.get(fault, _TWICE)
        injector = None if spoils else FaultInjector(fault, running, after=after)
        messages = await _relay(path, running, injector, rejects=fault is Fault.UNROUTABLE)
        arrivals = await running.read_received()
    done, noticed = (len(spoiled),) * 2 if injector is None else (injector.done, injector.noticed)
    ids = {message.id for message in messages if _number(message) in spoiled}
    return judge(messages, arrivals, injected=done, noticed=noticed, spoiled=ids)


def _publish(path: Path, running: RunningBroker, spoiling: Fault | None) -> frozenset[int]:
    """Commit every message, the spoiled ones among them, and return the numbers of those."""
    outbox = Outbox(routes=Routes([Route(to=[_DESTINATION])]), source="/faults", max_payload=64 * 1024 * 1024)
    spoiled = frozenset(_SPOILED_NUMBERS if spoiling else ())
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        for number in range(_KEYS * _MESSAGES_PER_KEY):
            draft = Draft(running.topic, f"key-{number % _KEYS}", number)
            if spoiling and number in spoiled:
                draft = running.spoil(spoiling, draft)
            outbox.publish(
                connection, draft.payload, type="numbered", content_type="application/json",
                key=draft.key, topic=draft.topic, subject=str(number),
            )  # fmt: skip
        connection.commit()
    return spoiled


def _number(message: Message) -> int:
    return int(message.subject or -1)


async def _relay(
    path: Path, running: RunningBroker, injector: FaultInjector | None, *, rejects: bool
) -> Sequence[Message]:
    # What is unroutable would wait for its topology otherwise.
    settings = msgspec.structs.replace(_DESTINATION_SETTINGS, missing_topology="reject" if rejects else "wait")
    relay = Relay(
        SqliteStore(path),
        [Destination(lambda: FaultyTransport(running.make_transport(), injector), settings)],
        settings=_RELAY_SETTINGS,
    )
    store = SqliteStore(path)
    await store.open()
    try:
        async with relay, asyncio.timeout(_TIMEOUT):
            await _wait_until_drained(store)
            if injector is not None:
                await injector.finish()
        return await store.find(Selection(), limit=10_000)
    finally:
        await store.close()


async def _wait_until_drained(store: Store) -> None:
    while await store.find(Selection(states=[State.PENDING, State.SENDING]), limit=1, payloads=False):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


# --- the fault ---


class FaultInjector:
    """Injects the fault when enough messages are delivered. Shared by all transports of one relay."""

    def __init__(self, fault: Fault, running: RunningBroker, *, after: Sequence[int]) -> None:
        self._fault = fault
        self._broker = running
        self._after = list(after)
        self.delivered = 0
        self.done = 0
        """How many faults are over."""
        self.noticed = 0
        """How many of them a send noticed: it raised, or not all of its messages were delivered."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, send: Callable[[], Awaitable[Sequence[Outcome]]]) -> Sequence[Outcome]:
        """Inject the fault if it is due, then send."""
        ended, is_due = asyncio.Event(), bool(self._after) and self.delivered >= self._after[0]
        if is_due:
            del self._after[0]
            await self._inject(ended)
        try:
            outcomes = await send()
        except Exception:
            self.noticed += is_due
            raise
        finally:
            ended.set()
        self.delivered += sum(outcome.delivered for outcome in outcomes)
        self.noticed += is_due and not all(outcome.delivered for outcome in outcomes)
        return outcomes

    async def finish(self) -> None:
        """Wait until the faults are over; raise what went wrong with them."""
        async with asyncio.timeout(_TIMEOUT):
            await asyncio.gather(*self._tasks)

    async def _inject(self, ended: asyncio.Event) -> None:
        """Return when the fault is there; it ends by itself. `ended` is set when the send it hit has returned."""
        inject = {
            Fault.CUT_BEFORE: self._cut_before,
            Fault.CUT_AFTER: self._cut_after,
            Fault.RESTART: self._restart,
            Fault.HANG: self._hang,
            Fault.REFUSED: self._refuse,
        }[self._fault]
        ready = asyncio.Event()
        task = asyncio.create_task(self._carry_out(inject, ready, ended))
        self._tasks.add(task)
        await ready.wait()

    async def _carry_out(
        self,
        inject: Callable[[asyncio.Event, asyncio.Event], Awaitable[None]],
        ready: asyncio.Event,
        ended: asyncio.Event,
    ) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await inject(ready, ended)
            self.done += 1
        finally:
            ready.set()
            self._broker.proxy.heal()

    async def _cut_before(self, ready: asyncio.Event, _: asyncio.Event) -> None:
        proxy = self._broker.proxy
        proxy.hang()
        proxy.requested.clear()
        ready.set()
        await proxy.requested.wait()
        proxy.cut()

    async def _cut_after(self, ready: asyncio.Event, _: asyncio.Event) -> None:
        proxy = self._broker.proxy
        proxy.drop_answers()
        proxy.answered.clear()
        ready.set()
        await proxy.answered.wait()
        proxy.cut()

    async def _restart(self, ready: asyncio.Event, _: asyncio.Event) -> None:
        proxy = self._broker.proxy
        proxy.drop_answers()  # so that something is under way when the broker dies
        proxy.requested.clear()
        ready.set()
        await proxy.requested.wait()
        await self._broker.stop()
        proxy.heal()
        await self._broker.start()

    async def _hang(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        self._broker.proxy.hang()
        ready.set()
        await ended.wait()

    async def _refuse(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        await self._broker.refuse()
        ready.set()
        await ended.wait()
        await self._broker.allow()


class FaultyTransport:
    """The real transport, with injected faults."""

    def __init__(self, transport: Transport, injector: FaultInjector | None) -> None:
        self._transport = transport
        self._injector = injector
        self.features = transport.features

    async def open(self) -> None:
        await self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def ping(self) -> None:
        await self._transport.ping()

    def get_address(self, message: Message) -> str | None:
        return self._transport.get_address(message) if isinstance(self._transport, Addressing) else None

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if self._injector is None:
            return await self._transport.send(messages)
        return await self._injector.send(lambda: self._transport.send(messages))


# --- the verdict ---


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one fault, a row of the table."""

    sent: int
    injected: int
    """How often the fault was injected."""
    noticed: int
    """How often a send noticed it. A client that connects and sends again by itself hides a short one."""
    lost: int
    """Neither at the broker nor kept as failed."""
    ghosts: int
    """At the broker, and never published."""
    duplicates: int
    out_of_order: int
    """First arrivals after a later message of their key."""
    attempts: int
    """Spent by messages that were delivered in the end."""
    failed: int
    wrongly_failed: int
    """Failed messages that the broker would have accepted."""


def judge(
    messages: Sequence[Message], arrivals: Sequence[Arrival], *, injected: int, noticed: int, spoiled: Collection[int]
) -> Verdict:
    """Compare what the store says with what the broker has. `spoiled` are ids of messages that no broker accepts."""
    taken = {one.message_id for one in arrivals}
    failed = [message for message in messages if message.state is State.FAILED]
    kept = taken | {str(message.message_id) for message in failed}
    return Verdict(
        sent=len(messages),
        injected=injected,
        noticed=noticed,
        lost=sum(str(message.message_id) not in kept for message in messages),
        ghosts=len(taken - {str(message.message_id) for message in messages}),
        duplicates=len(arrivals) - len(taken),
        out_of_order=_out_of_order(arrivals),
        attempts=sum(message.attempts for message in messages if message.state is State.DELIVERED),
        failed=len(failed),
        wrongly_failed=sum(message.id not in spoiled for message in failed),
    )


def _out_of_order(arrivals: Sequence[Arrival]) -> int:
    highest: dict[str, int] = {}
    seen: set[str] = set()
    count = 0
    for one in arrivals:
        if one.message_id not in seen:
            seen.add(one.message_id)
            count += one.number < highest.get(one.key, -1)
            highest[one.key] = max(one.number, highest.get(one.key, -1))
    return count
