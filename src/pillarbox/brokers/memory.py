"""Memory transport and receiver: the reference for all others, and what tests run on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.brokers.held_bytes import DEFAULT_LIMIT
from pillarbox.brokers.send_batch import DELIVERED, UNSENT
from pillarbox.brokers.settings import TransportUrl
from pillarbox.cloudevents import HTTP, CloudEvent, to_binary
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage, ReceiverFeatures
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.message import Message
from pillarbox.settings import parse_options

__all__ = ["MemoryQueue", "MemoryReceiver", "MemoryTransport", "memory_transport"]

_NOT_DURABLE: Final = Finding(
    code="memory.forgets",
    severity=Severity.WARNING,
    what="The memory transport delivers into a list of the relay's own process.",
    why="Every message counts as delivered, and is gone with the process.",
    fix="Use it in tests alone; give the destination the URL of a broker or an endpoint.",
)


class MemoryTransport:
    """Delivers into a list. Tests can make it fail in every way a broker can, without any waiting."""

    def __init__(self, *, batch: int = 500) -> None:
        self.features = TransportFeatures(name="memory", batch=batch, runs=True)
        self.received: list[Message] = []
        """Delivered messages, in order of arrival. A message sent twice is in it twice."""
        self.arrived = asyncio.Event()
        """Set by a send that `hang` has stopped."""
        self._is_open = False
        self._is_up = True
        self._next_outcomes: deque[Outcome] = deque()
        self._cuts: deque[int] = deque()
        self._not_hanging = asyncio.Event()
        self._not_hanging.set()

    # --- the contract ---

    async def open(self) -> None:
        await asyncio.sleep(0)
        self._is_open = self._is_up
        self._check_available(mid_send=False)

    async def close(self) -> None:
        self._is_open = False
        self._not_hanging.set()

    async def ping(self) -> None:
        await asyncio.sleep(0)
        self._check_available(mid_send=False)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._check_available(mid_send=False)
        await self._wait_while_hanging()
        self._check_available(mid_send=True)
        if self._cuts:
            self.received.extend(messages[: self._cuts.popleft()])
            raise TransportUnavailable("The memory transport was told to break in the middle.", mid_send=True)
        outcomes: list[Outcome] = []
        failed: set[str] = set()
        for message in messages:
            outcome = UNSENT if message.key in failed else self._deliver(message)
            if message.key is not None and not outcome.delivered:
                failed.add(message.key)
            outcomes.append(outcome)
        return outcomes

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        del topics
        return [_NOT_DURABLE]

    # --- faults for tests ---

    def refuse_next(
        self,
        count: int = 1,
        *,
        error: str = "refused as told",
        retry_after: timedelta | None = None,
        not_now: bool = False,
    ) -> None:
        """Refuse the next messages. A later attempt can succeed."""
        outcome = Outcome(delivered=False, error=error, retry_after=retry_after, not_now=not_now)
        self._next_outcomes.extend([outcome] * count)

    def reject_next(self, count: int = 1, *, error: str = "rejected as told") -> None:
        """Reject the next messages for good."""
        self._next_outcomes.extend([Outcome(delivered=False, error=error, rejected=True)] * count)

    def cut_next(self, *, taken: int = 0) -> None:
        """Break the connection during the next send, after this many of its messages were delivered unanswered."""
        self._cuts.append(taken)

    def go_down(self) -> None:
        """Be unavailable, also for sends that hang now."""
        self._is_up = False
        self._not_hanging.set()

    def hang(self) -> None:
        """Let every send wait, and deliver nothing, until `come_back`."""
        self.arrived.clear()
        self._not_hanging.clear()

    def come_back(self) -> None:
        """Be available again, and let sends that hang continue."""
        self._is_up = True
        self._not_hanging.set()

    def _check_available(self, *, mid_send: bool) -> None:
        if not self._is_up:
            raise TransportUnavailable("The memory transport was told to be down.", mid_send=mid_send)
        if not self._is_open:
            raise TransportUnavailable("The memory transport is not open; call open() first.", mid_send=mid_send)

    async def _wait_while_hanging(self) -> None:
        if self._not_hanging.is_set():
            # Real transports give up control here, so this one does too.
            await asyncio.sleep(0)
            return
        self.arrived.set()
        await self._not_hanging.wait()

    def _deliver(self, message: Message) -> Outcome:
        if self._next_outcomes:
            return self._next_outcomes.popleft()
        self.received.append(message)
        return DELIVERED


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    batch: int = 500


def memory_transport(url: TransportUrl) -> MemoryTransport:
    """Build the transport for a `memory:` URL, which has nothing but options."""
    if url.location not in ("", "//"):
        raise ConfigError("The memory transport has no place: write memory: and nothing after it but options.")
    return MemoryTransport(batch=parse_options(_Settings, url.options, transport="memory").batch)


class MemoryQueue:
    """Queue that a broker would hold. Several receivers of one queue share its messages."""

    def __init__(self) -> None:
        self.waiting: deque[IncomingMessage] = deque()
        self.unacknowledged: dict[IncomingMessage, MemoryReceiver] = {}
        """Delivered messages, and the receiver that has each."""
        self.acknowledged: list[IncomingMessage] = []
        self.is_up = True
        self.changed = asyncio.Event()
        self._count = 0

    def put(self, message: Message | CloudEvent) -> None:
        """Publish a message as our transports do."""
        headers, body = to_binary(message, binding=HTTP)
        self.put_raw(headers, body)

    def put_raw(self, headers: dict[str, str], body: bytes) -> None:
        """Publish a message as another producer would."""
        self._count += 1
        fallback = FallbackIdentity(message_id=str(self._count), source="memory:", type="memory", topic="memory")
        self.waiting.append(IncomingMessage(headers=headers, body=body, binding=HTTP, fallback=fallback))
        self.changed.set()

    def take(self, receiver: MemoryReceiver, limit: int) -> list[IncomingMessage]:
        """Hand out waiting messages to a receiver."""
        taken: list[IncomingMessage] = []
        held = sum(len(one.body) for one, holder in self.unacknowledged.items() if holder is receiver)
        while self.waiting and len(taken) < limit and held < receiver.pending_bytes:
            taken.append(self.waiting.popleft())
            held += len(taken[-1].body)
        self.unacknowledged.update(dict.fromkeys(taken, receiver))
        return taken

    def redeliver(self, received: IncomingMessage) -> None:
        """Put an unacknowledged message back, in front of those that were never delivered."""
        del self.unacknowledged[received]
        again = IncomingMessage(
            headers=received.headers, body=received.body, binding=received.binding, fallback=received.fallback,
            redelivered=True,
        )  # fmt: skip
        self.waiting.appendleft(again)
        self.changed.set()

    def drop(self, receiver: MemoryReceiver) -> None:
        """Put back all messages of a receiver that is gone."""
        for received in reversed([one for one, holder in self.unacknowledged.items() if holder is receiver]):
            self.redeliver(received)


class MemoryReceiver:
    """Reads a `MemoryQueue`."""

    def __init__(self, queue: MemoryQueue) -> None:
        self.features = ReceiverFeatures(name="memory")
        self.pending_bytes = DEFAULT_LIMIT
        self.queue = queue
        self._is_open = False

    async def open(self) -> None:
        self._is_open = True
        await self.ping()

    async def close(self) -> None:
        self._is_open = False
        self.queue.drop(self)

    async def ping(self) -> None:
        if not self._is_open:
            raise TransportUnavailable("The memory receiver is closed; open it first.")
        if not self.queue.is_up:
            raise TransportUnavailable("The memory queue is down.")

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        while True:
            await self.ping()
            taken = self.queue.take(self, limit)
            if taken:
                return taken
            self.queue.changed.clear()
            await self.queue.changed.wait()

    async def acknowledge(self, received: IncomingMessage) -> None:
        if self._holds(received):
            del self.queue.unacknowledged[received]
            self.queue.acknowledged.append(received)
            self.queue.changed.set()  # there may be room for others

    async def give_back(self, received: IncomingMessage) -> None:
        if self._holds(received):
            self.queue.redeliver(received)

    def _holds(self, received: IncomingMessage) -> bool:
        return self.queue.is_up and self.queue.unacknowledged.get(received) is self
