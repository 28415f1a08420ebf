"""One connection to a server, and what came over it. When it breaks it stays broken: another one is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, Self

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.nats.absence import Absence
from pillarbox.receivers.nats.connecting import Server, said
from pillarbox.receivers.nats.consumers import ack_wait_of, see_to, standing_of
from pillarbox.receivers.nats.deliveries import Delivery, delivery_of
from pillarbox.receivers.nats.settings import NatsReceiverSettings

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

__all__ = ["Link"]

_EXPIRES: Final = 30.0
"""Seconds that a request for messages waits at the server."""
_SOON: Final = 0.05
"""Seconds in which messages that are given back come together, to be told to the server in the stream's order."""
_LOOK: Final = 0.25
"""Seconds between two looks for what others had in hand."""
_GOODBYE: Final = 5.0
_ACK: Final = b"+ACK"
_NAK: Final = b"-NAK"
_IN_PROGRESS: Final = b"+WPI"
_OVER: Final = frozenset({"404", "408"})
"""A request ended, because nothing came in time."""
_ALIVE: Final = "100"


class Link:
    """Asks for messages, keeps those in hand from being delivered again, and acknowledges them."""

    def __init__(self, *, where: str, settings: NatsReceiverSettings) -> None:
        self.client: Client
        self.reason: str | None = None
        """Why it is broken; None while it stands."""
        self._where = where
        self._settings = settings
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{settings.stream}.{settings.durable}"
        self._waiting: deque[Delivery] = deque()
        self._came = asyncio.Event()
        self._inbox = ""
        self._request = 0
        """The number of the latest request for messages."""
        self._wanted = 0
        """How many messages it may still bring."""
        self._ends_at = 0.0
        """When the server has forgotten it, at the latest."""
        self._in_hand: dict[str, int] = {}
        """Reply subject to number in the stream, of all that came and is neither acknowledged nor given back."""
        self._returned: dict[str, int] = {}
        """The same of what is about to be given back."""
        self._absence: Absence | None = None
        """While it lasts, nothing is handed out."""
        self._look = _LOOK
        self._beating: asyncio.Task[None] | None = None
        self._returning: asyncio.TimerHandle | None = None

    @classmethod
    async def made(cls, server: Server) -> Self:
        """A link to the durable consumer; `TransportUnavailable` when there is no way to it."""
        link = cls(where=server.where, settings=server.settings)
        link.client = await server.client(closed=link._closed)
        try:
            info = await see_to(link.client, server.settings, where=server.where)
            link._inbox = link.client.new_inbox()
            await link.client.subscribe(
                f"{link._inbox}.*", cb=link._take_in, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except BaseException:
            await link.close()
            raise
        ack_wait = ack_wait_of(info.config)
        if (standing := standing_of(info)).out:
            now = asyncio.get_running_loop().time()
            link._absence = Absence(standing, now=now, ack_wait=ack_wait, expires=_EXPIRES)
            link._look = min(_LOOK, ack_wait / 20)
        link._beating = asyncio.create_task(link._beat(ack_wait / 3))
        return link

    async def take(self, limit: int) -> list[Delivery]:
        """What came, in order, at least one; `TransportUnavailable` as soon as the link is broken."""
        await self._return()
        if self._absence is not None:
            await self._gather(self._absence, limit)
        while True:
            if self.reason is not None:
                raise TransportUnavailable(self.reason)
            if self._waiting:
                return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            self._came.clear()
            await self._ask(limit)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._ends_at):
                    await self._came.wait()

    async def _gather(self, absence: Absence, limit: int) -> None:
        """Collect until what others had has come back, and put all of it into the stream's order."""
        clock = asyncio.get_running_loop().time
        while self.reason is None:
            # Counted before the server is asked: what comes meanwhile is not in its answer. One may have come twice.
            asked, in_hand = int(self._wanted > 0), len({*self._in_hand.values()})
            info = await see_to(self.client, self._settings, where=self._where)
            if absence.is_over(standing_of(info), in_hand=in_hand, asked=asked, now=clock()):
                break
            newest = max((delivery.sequence for delivery in self._waiting), default=0)
            if absence.may_ask(newest=newest, in_hand=in_hand, limit=limit, now=clock()):
                await self._ask(limit)
            await asyncio.sleep(self._look)
        self._waiting = deque(sorted(self._waiting, key=lambda delivery: delivery.sequence))
        self._absence = None

    async def _ask(self, limit: int) -> None:
        """One request at a time: what an earlier one may still bring is waited for first."""
        now = asyncio.get_running_loop().time()
        if self._wanted > 0 and now < self._ends_at:
            return
        self._request, self._wanted = self._request + 1, limit
        self._ends_at = now + _EXPIRES + _GOODBYE
        wish = msgspec.json.encode({"batch": limit, "expires": round(_EXPIRES * 1_000_000_000)})
        await self._tell({self._next: wish}, reply=f"{self._inbox}.{self._request}")

    async def acknowledge(self, reply: str) -> None:
        """Written, but not waited for: a lost one is a repeat."""
        if self.reason is None and self._in_hand.pop(reply, None) is not None:
            await self._tell({reply: _ACK})

    async def give_back(self, reply: str) -> None:
        """Together with others, soon. The server delivers in the order in which it is told."""
        if self.reason is None and reply in self._in_hand:
            self._returned[reply] = self._in_hand.pop(reply)
            if self._returning is None:
                loop = asyncio.get_running_loop()
                self._returning = loop.call_later(_SOON, lambda: loop.create_task(self._return()))

    async def close(self) -> None:
        """Give back what is in hand, so that it comes again at once, and hang up."""
        self._returned |= self._in_hand
        self._in_hand.clear()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_GOODBYE):
                await self._return()
                await self.client.flush(timeout=round(_GOODBYE))
        self.end("it was closed")
        with contextlib.suppress(Exception):
            await self.client.close()

    def end(self, why: str) -> None:
        """Break, and tell who waits."""
        if self.reason is None:
            self.reason = f"The connection to {self._where} broke ({why})."
        self._waiting.clear()
        self._came.set()
        if self._beating is not None:
            self._beating.cancel()
        if self._returning is not None:
            self._returning.cancel()

    # --- what is told to the server ---

    async def _return(self) -> None:
        returned, self._returned = self._returned, {}
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        if returned:
            await self._tell(dict.fromkeys(sorted(returned, key=returned.__getitem__), _NAK))

    async def _beat(self, seconds: float) -> None:
        """What is in hand is being handled, however long that takes."""
        while True:
            await asyncio.sleep(seconds)
            await self._tell(dict.fromkeys(self._in_hand, _IN_PROGRESS))

    async def _tell(self, words: dict[str, bytes], *, reply: str = "") -> None:
        try:
            for subject, word in words.items():
                await self.client.publish(subject, word, reply=reply)
        except Exception as error:
            self.end(said(error))

    # --- what the client calls ---

    async def _take_in(self, message: Msg) -> None:
        delivery = delivery_of(message)
        if delivery is None:
            self._told(message)
        elif self.reason is None:
            self._in_hand[delivery.reply] = delivery.sequence
            self._waiting.append(delivery)
            self._wanted -= 1
            self._came.set()

    def _told(self, message: Msg) -> None:
        """The server speaks of a request. Of an earlier one it is no news."""
        headers = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == _ALIVE or not message.subject.endswith(f".{self._request}"):
            return
        if status in _OVER:
            self._wanted = 0
            self._came.set()
        else:
            self.end(f"it brings no messages: {status} {text}".strip())

    async def _closed(self) -> None:
        self.end(said(self.client.last_error) if self.client.last_error else "the server hung up")
