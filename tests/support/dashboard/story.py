"""An hour of three services, in memory stores on a clock that stands still: for pictures that are always the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Action, Selection
from pillarbox.contracts.writer import Accept, Fail, InboxCommand, Insert
from pillarbox.message import Kind, Message, Names, State
from pillarbox.operations.bulk import note_bulk
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.dashboard.seed import Relaying, to_incoming

__all__ = ["CORRELATION", "MemoryWriter", "Story", "tell_story"]

START = datetime(2026, 1, 31, 18, 20, 7, tzinfo=UTC)
CORRELATION = "req-7f3a41"
_MINUTES = 58
_OUTAGE = range(22, 34)
_PAUSE = range(44, _MINUTES)
_LASTING = range(51, _MINUTES)
"""Minutes in which the destination crm is down, which is not over at the end."""


class MemoryWriter:
    """Writes into a memory store as an application and its consumer do."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def insert(self, messages: Sequence[Message]) -> None:
        with self._store.transaction() as transaction:
            transaction.insert(Insert(names=Names(), messages=messages))

    async def execute(self, command: InboxCommand[Any]) -> Any:
        with self._store.transaction() as transaction:
            return transaction.execute(command)


class Story:
    """Two stores, the shop's and billing's, and the clock of both."""

    def __init__(self) -> None:
        self.clock = FrozenClock(START)
        self.orders = MemoryStore(clock=self.clock)
        self.billing = MemoryStore(clock=self.clock)


def _to_id(number: int) -> UUID:
    """Return a UUIDv7 that is the same in every run."""
    return UUID(int=(0x019C << 112) | 0x7 << 76 | 0x8 << 60 | number)


class _Shop:
    """The shop: writes orders, and a relay delivers them to three destinations."""

    def __init__(self, story: Story, *, is_calm: bool) -> None:
        self._story = story
        self._outage, self._pause, self._lasting = (range(0),) * 3 if is_calm else (_OUTAGE, _PAUSE, _LASTING)
        self._is_calm = is_calm
        self._store = story.orders
        self._writer = MemoryWriter(story.orders)
        self._dice = random.Random(7)
        self._relays = [
            Relaying(self._store, "billing", "mail", service="shop"),
            Relaying(self._store, "search", "crm", service="index"),
        ]
        self._backlog: list[int] = []
        self._number = 0

    async def start(self) -> None:
        for relay in self._relays:
            relay.info = msgspec.structs.replace(relay.info, relay_id=UUID(int=self._dice.getrandbits(128)))
            await relay.start()

    def _build(self, destination: str, **more: Any) -> Message:
        self._number += 1
        return sample(
            destination=destination, key=f"customer-{self._dice.randrange(400)}", topic="orders", type="orders.placed",
            event_time=self._story.clock.now(), message_id=_to_id(self._number),
            payload=msgspec.json.encode({"order_id": self._number, "total": "12.50", "currency": "EUR"}), **more,
        )  # fmt: skip

    async def write(self, destination: str, count: int) -> list[int]:
        before = {
            one.id for one in await self._store.find(Selection(destination=destination), limit=10**6, payloads=False)
        }
        await self._writer.insert([self._build(destination) for _ in range(count)])
        found = await self._store.find(Selection(destination=destination), limit=10**6, payloads=False)
        return [one.id for one in found if one.id not in before]

    async def live(self, minute: int) -> None:
        """Live through a minute: write, deliver after a while, and let billing be down, or paused."""
        story, clock = self._story, self._story.clock
        shop, index = self._relays
        written = {
            name: await self.write(name, count + self._dice.randrange(count // 2 + 1))
            for name, count in (("billing", 30), ("mail", 22), ("search", 40), ("crm", 4))
        }
        if self._lasting and minute == self._lasting.start:
            index.info = msgspec.structs.replace(index.info, reachable=["search"])
            error = "https://crm.example/… cannot be reached: name or service not known"
            await self._store.note(Action.OUTAGE.value, by=str(index.info.relay_id), detail=error, destination="crm")
        if self._outage and minute == self._outage.start:
            shop.info = msgspec.structs.replace(shop.info, reachable=["mail"])
            error = "https://billing.example/… cannot be reached: connection refused"
            await self._store.note(Action.OUTAGE.value, by=str(shop.info.relay_id), detail=error, destination="billing")
        if self._outage and minute == self._outage.stop:
            shop.info = msgspec.structs.replace(shop.info, reachable=["mail", "billing"])
            await self._store.note(Action.RECOVERED.value, by=str(shop.info.relay_id), detail="", destination="billing")
        if self._pause and minute == self._pause.start:
            await self._store.pause("billing", by="ann", reason="they open the missing accounts")
        clock.advance(timedelta(milliseconds=40 + self._dice.randrange(200)))
        await shop.deliver("mail", written["mail"])
        await index.deliver("search", written["search"])
        if minute not in self._lasting:
            await index.deliver("crm", written["crm"])
        self._backlog += written["billing"]
        if minute not in self._outage and minute not in self._pause:
            await self._deliver_billing(shop, minute)
        for relay in self._relays:
            await self._store.record_backlog(
                relay.info.relay_id, destinations=["billing", "mail", "search", "crm"], limit=10_000
            )
        await self._renew(seconds=60)
        assert story.clock.now() > START

    async def _deliver_billing(self, shop: Relaying, minute: int) -> None:
        batch, self._backlog = self._backlog[:160], self._backlog[160:]
        failed = batch[:3] if minute % 6 == 4 and not self._is_calm else []
        refused = batch[3:5] if minute % 9 == 7 and not self._is_calm else []
        await shop.deliver("billing", [one for one in batch if one not in failed and one not in refused])
        if failed:
            await shop.fail(
                "billing",
                failed,
                "https://billing.example/… answered 422 Unprocessable Entity. It said: no account for 'customer-{id}'",
                attempts=1,
            )
        if refused:
            await shop.fail("billing", refused, "https://billing.example/… answered 413 Content Too Large", attempts=1)

    async def _renew(self, *, seconds: int) -> None:
        for _ in range(seconds // 5):
            self._story.clock.advance(timedelta(seconds=5))
            for relay in self._relays:
                await relay.renew()

    async def redrive(self) -> None:
        """Let ann redrive what was too large."""
        selection = Selection(destination="billing", error="413")
        reason = "their limit is higher now"
        result = await self._store.redrive(selection, by="ann", limit=100, reason=reason)
        await note_bulk(self._store, Action.REDRIVEN, selection, result.count, by="ann", reason=reason)

    async def block(self) -> None:
        """Leave four keys that are blocked, each with messages behind its head."""
        errors = [
            ("customer-42", "smtp://mail.example answered 550: mailbox unavailable"),
            ("customer-4711-of-the-branch-in-the-north", "smtp://mail.example answered 552: message exceeds the size"),
            ("customer-7", "smtp://mail.example answered 553: the name of the mailbox is not allowed, see RFC 5321"),
            ("customer-9", "smtp://mail.example answered 554: transaction failed"),
        ]
        for key, error in errors:
            await self._block_key(key, error)

    async def _block_key(self, key: str, error: str) -> None:
        shop = self._relays[0]
        partition = sample(key=key).partition
        messages = [msgspec.structs.replace(self._build("mail"), key=key, partition=partition) for _ in range(3)]
        await self._writer.insert(messages)
        waiting = Selection(key=key, destination="mail", states=[State.PENDING])
        ids = [one.id for one in await self._store.find(waiting, limit=10)]
        await shop.hold("mail", ids[:1], error)
        await shop.park("mail", ids[1:])

    async def chain(self) -> None:
        """Write the chain of one request, over both stores."""
        clock, billing = self._story.clock, self._story.billing
        writer = MemoryWriter(billing)
        placed = self._build("search", correlation_id=CORRELATION)
        await self._writer.insert([placed])
        clock.advance(timedelta(milliseconds=180))
        ids = [one.id for one in await self._store.find(Selection(correlation_id=CORRELATION), limit=10)]
        await self._relays[1].deliver("search", ids)
        clock.advance(timedelta(milliseconds=220))
        relay = Relaying(billing, "payments", "ledger", service="billing")
        relay.info = msgspec.structs.replace(relay.info, relay_id=UUID(int=99))
        await relay.start()
        caused = [
            sample(destination="payments", type="payments.charge", topic="payments", kind=Kind.COMMAND,
                   key="customer-7",
                   correlation_id=CORRELATION, causation_id=str(placed.message_id), source="/billing",
                   event_time=clock.now(), message_id=_to_id(900_001)),
            sample(destination="ledger", type="billing.invoiced", topic="invoices", key="customer-7", source="/billing",
                   correlation_id=CORRELATION, causation_id=str(placed.message_id), event_time=clock.now(),
                   message_id=_to_id(900_002)),
        ]  # fmt: skip
        clock.advance(timedelta(milliseconds=90))
        await writer.insert(caused)
        await writer.execute(
            Accept(names=Names(), consumer="billing", source="/shop", message_id=str(placed.message_id))
        )
        clock.advance(timedelta(milliseconds=300))
        found = {one.destination: one.id for one in await billing.find(Selection(correlation_id=CORRELATION), limit=10)}
        await relay.deliver("ledger", [found["ledger"]])
        await relay.fail(
            "payments", [found["payments"]], "https://bank.example/… answered 402: card expired", attempts=1
        )
        failed = sample(type="orders.placed", source="/shop", message_id=UUID(int=5))
        await writer.execute(
            Fail(names=Names(), consumer="invoices", source="/shop", message_id=str(failed.message_id), attempts=3,
                 error="ValueError: the order has no lines", message=to_incoming(failed))
        )  # fmt: skip


async def tell_story(*, is_calm: bool = False) -> Story:
    """Build both stores as they are at the end of the hour: of a bad one, or of a calm one."""
    story = Story()
    shop = _Shop(story, is_calm=is_calm)
    await shop.start()
    for minute in range(_MINUTES):
        await shop.live(minute)
    if is_calm:
        return story
    await shop.redrive()
    await shop.block()
    await shop.chain()
    return story
