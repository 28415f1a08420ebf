"""One connection to a broker, from its CONNACK to its end. It is never made again: a new one is another link.

What it could not get acknowledged is not sent again by it either. That is the outbox's part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.mqtt.client import Packed
from pillarbox.transports.mqtt.publications import Publication
from pillarbox.transports.mqtt.verdicts import DELIVERED, Policy, outcome_of
from pillarbox.transports.mqtt.wire import Wire

__all__ = ["Link", "Terms"]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What was agreed on between us and the broker."""

    seconds: float
    """For the answer to a message, from when it is written."""
    qos: int
    retain: bool
    window: int
    """Messages under way at most: ours or the broker's Receive Maximum, whichever is less."""
    most: int | None = None
    """Bytes of a packet at most: the broker's Maximum Packet Size."""


class Link:
    """Sends, and answers for what it sent. Waiting for a place in the window does not count as time.

    A message that is not answered in time costs the link its future: its place in the window is gone, and a connection
    that lost one answer is not to be trusted. It ends when all that is under way is answered or out of time.
    """

    def __init__(self, wire: Wire, *, terms: Terms, policy: Policy) -> None:
        self.is_open = True
        """Takes more to send."""
        self.is_over = False
        """Has no connection any more."""
        self._wire = wire
        self._terms = terms
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[_Batch, int]] = deque()
        self._waiting: dict[int, tuple[_Batch, int, float]] = {}
        """Packet identifier to batch, place in it, and when it was written: oldest first."""
        self._pings: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        wire.client.on_acknowledged = self._acknowledged
        wire.client.on_pong = self._pong
        wire.on_read = self._pump
        wire.on_broken = self._broken

    async def send(self, publications: Sequence[Publication]) -> Sequence[Outcome]:
        """An answer for each. Those that the connection broke under, or that were never written, are `lost`."""
        batch = _Batch(publications, self._loop)
        for index, publication in enumerate(publications):
            if self._terms.most is not None and publication.size > self._terms.most:
                batch.answer(index, self._too_large(publication))
            else:
                self._queue.append((batch, index))
        self._pump()
        if batch.left:
            await batch.done
        return [answer for answer in batch.answers if answer is not None]

    async def ping(self) -> None:
        """A round trip to the broker; `TransportUnavailable` when there is none in time."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pings.append(pong)
        self._wire.client.ping()
        try:
            async with asyncio.timeout(self._terms.seconds):
                await pong
        except TimeoutError:
            self._retire()
            raise TransportUnavailable(
                f"{self._policy.where} did not answer a ping within {self._terms.seconds:g} s."
            ) from None
        finally:
            if pong in self._pings:
                self._pings.remove(pong)

    def close(self) -> None:
        """Say goodbye and hang up."""
        self._broken("we closed it")
        self._wire.client.disconnect()
        self._wire.flush()
        self._wire.hang_up("we closed it")

    # --- the window ---

    def _pump(self) -> None:
        """Write as much of the queue as the window has places for."""
        terms, client, waiting, queue = self._terms, self._wire.client, self._waiting, self._queue
        now = self._loop.time()
        while queue and len(waiting) < terms.window and self.is_open:
            batch, index = queue.popleft()
            if batch.done.done():  # its send was cancelled
                continue
            one = batch.publications[index]
            info = client.publish(one.topic, one.body, terms.qos, terms.retain, Packed(one.properties))
            if info.rc:
                batch.answer(index, self._lost("it took no more"))
                self._retire()
            else:
                waiting[info.mid] = batch, index, now
        if waiting and self._timer is None:
            self._timer = self._loop.call_later(terms.seconds, self._expire)

    def _acknowledged(self, mid: int, code: int, said: str | None) -> None:
        entry = self._waiting.pop(mid, None)
        if entry is not None:
            batch, index, _ = entry
            topic = batch.publications[index].topic
            batch.answer(index, DELIVERED if not code else outcome_of(code, self._policy, topic=topic, said=said))
            self._end_if_over()

    def _expire(self) -> None:
        """Give up on what was written too long ago."""
        self._timer = None
        late = self._loop.time() - self._terms.seconds
        while self._waiting:
            mid, (batch, index, written) = next(iter(self._waiting.items()))
            if written > late:
                self._timer = self._loop.call_at(written + self._terms.seconds, self._expire)
                break
            del self._waiting[mid]
            batch.answer(index, self._no_answer())
            self._retire()
        self._end_if_over()

    # --- the end ---

    def _retire(self) -> None:
        """Write nothing more; what is under way may still be answered."""
        self.is_open = False
        while self._queue:
            batch, index = self._queue.popleft()
            batch.answer(index, self._lost("it stopped answering"))

    def _end_if_over(self) -> None:
        if not self.is_open and not self._waiting:
            self._wire.hang_up("it stopped answering")

    def _broken(self, reason: str) -> None:
        self.is_open, self.is_over = False, True
        if self._timer is not None:
            self._timer.cancel()
        lost = self._lost(reason)
        for batch, index in (*((batch, index) for batch, index, _ in self._waiting.values()), *self._queue):
            batch.answer(index, lost)
        self._waiting.clear()
        self._queue.clear()
        for pong in self._pings:
            if not pong.done():
                pong.set_exception(TransportUnavailable(lost.error or ""))

    def _pong(self) -> None:
        for pong in self._pings:
            if not pong.done():
                pong.set_result(None)

    # --- words ---

    def _lost(self, reason: str) -> Outcome:
        error = f"The connection to {self._policy.where} ended before the message was acknowledged ({reason})."
        return Outcome(delivered=False, error=error, lost=True)

    def _no_answer(self) -> Outcome:
        return Outcome(delivered=False, error=f"no answer within {self._terms.seconds:g} s from {self._policy.where}")

    def _too_large(self, publication: Publication) -> Outcome:
        error = (
            f"The message is a packet of {publication.size} bytes, and {self._policy.where} takes at most "
            f"{self._terms.most}."
        )
        return Outcome(delivered=False, error=error, rejected=True)


class _Batch:
    """The answers of one `send`, as they come in."""

    __slots__ = ("answers", "done", "left", "publications")

    def __init__(self, publications: Sequence[Publication], loop: asyncio.AbstractEventLoop) -> None:
        self.publications = publications
        self.answers: list[Outcome | None] = [None] * len(publications)
        self.left = len(publications)
        self.done: asyncio.Future[None] = loop.create_future()

    def answer(self, index: int, outcome: Outcome) -> None:
        self.answers[index] = outcome
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(None)
