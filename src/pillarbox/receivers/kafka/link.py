"""One membership in the group, and what came by it. When it ends it stays so: another one is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.kafka.client import Client
from pillarbox.receivers.kafka.deliveries import Delivery
from pillarbox.transports.kafka.client_settings import ClientConfig
from pillarbox.transports.kafka.reach import Reach

__all__ = ["Link"]

_GOODBYE: Final = 10.0


class Link:
    """The loop's side of the client. Its deliveries can be acknowledged by it and by nothing else."""

    def __init__(self, *, where: str, topics: Sequence[str], seconds: float, hide: Callable[[str], str]) -> None:
        self.reason: str | None = None
        """Why it has ended; None while it stands."""
        self._where = where
        self._topics = topics
        self._seconds = seconds
        self._reach = Reach(hide=hide)
        self._client: Client
        self._waiting: deque[Delivery] = deque()
        self._in_hand: set[Delivery] = set()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._came = asyncio.Event()
        self._over = asyncio.Event()
        """The client is at its end."""

    @classmethod
    async def made(
        cls, config: ClientConfig, *, topics: Sequence[str], where: str, seconds: float, hide: Callable[[str], str]
    ) -> Self:
        """A member of the group; `TransportUnavailable` when there is no way to it."""
        link = cls(where=where, topics=topics, seconds=seconds, hide=hide)
        link._client = Client(
            config, topics=topics, seconds=seconds, reach=link._reach, hearing=link, loop=asyncio.get_running_loop()
        )
        try:
            await link.ask()
        except BaseException:
            await link.close()
            raise
        return link

    async def ask(self) -> None:
        """Ask for the topics; a cluster that says nothing ends the link."""
        problem: str | None = await self._answered(self._client.ask())
        if self.reason is not None:
            raise TransportUnavailable(
                f"{self._where} cannot be reached ({self._reach.down or 'it was closed'}): check that it runs, the "
                "URL's hosts and ports, and the login."
            )
        if problem is not None:
            raise TransportUnavailable(f"{self._where} {problem}.")

    async def take(self, limit: int) -> list[Delivery]:
        """What came, in each partition's order, at least one; `TransportUnavailable` as soon as the link has ended."""
        while True:
            if self.reason is not None:
                raise TransportUnavailable(self.reason)
            ours = deque(delivery for delivery in self._waiting if delivery.share.is_ours)
            if ours:
                taken = [ours.popleft() for _ in range(min(limit, len(ours)))]
                self._waiting = ours
                self._in_hand.update(taken)
                return taken
            self._came.clear()
            self._client.want(limit)
            await self._came.wait()

    async def acknowledge(self, delivery: Delivery) -> None:
        """The cluster has it, or must hear of an earlier one first; or the partition is another's: it comes again."""
        if self.reason is None and delivery in self._in_hand:
            self._in_hand.discard(delivery)
            await self._answered(self._client.settle(delivery))

    async def give_back(self, delivery: Delivery) -> None:
        """Kafka takes nothing back: it comes again here, or to whoever has the partition next."""
        if self.reason is None and delivery in self._in_hand:
            self._in_hand.discard(delivery)
            again = Delivery(delivery.share, delivery.offset, delivery.message, True)
            self._waiting.appendleft(again)
            self._came.set()

    async def close(self) -> None:
        """Commit what is settled, and leave the group."""
        self._end(f"The connection to {self._where} broke (it was closed).")
        self._client.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self._over.wait()

    async def _answered(self, answer: asyncio.Future[Any]) -> Any:
        """What the client answers, or nothing when the link ends."""
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        return await answer

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        self._waiting.clear()
        self._came.set()
        for answer in tuple(self._unanswered):
            if not answer.done():
                answer.set_result(None)

    # --- what the client tells, in the loop ---

    def came(self, deliveries: Sequence[Delivery]) -> None:
        if self.reason is None:
            self._waiting.extend(deliveries)
            self._came.set()

    def gone(self) -> None:
        """Who waits for what is gone asks again."""
        self._in_hand = {delivery for delivery in self._in_hand if delivery.share.is_ours}
        self._came.set()

    def ended(self, why: str) -> None:
        self._over.set()
        self._end(f"The connection to {self._where} broke ({why}).")
