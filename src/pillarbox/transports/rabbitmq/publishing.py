"""The channel that messages go over: what is under way, and which answer belongs to which message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Self

import msgspec

from pillarbox.protocols import Outcome
from pillarbox.transports.rabbitmq import frames
from pillarbox.transports.rabbitmq.channel import Channel
from pillarbox.transports.rabbitmq.connection import Connection
from pillarbox.transports.rabbitmq.endings import Ended
from pillarbox.transports.rabbitmq.methods import Frame, commands, expected, returned_id
from pillarbox.transports.rabbitmq.parcels import PUBLISHING, Parcel
from pillarbox.transports.rabbitmq.verdicts import DELIVERED, NACKED, TWICE, Answer, interrupted, unroutable

__all__ = ["Batch", "Publisher"]

_PIECE: Final = 256 * 1024
"""Bytes handed to the socket at a time, roughly."""


class Batch:
    """The answers to one send, as they come in."""

    def __init__(self, count: int) -> None:
        self.answers: list[Answer | None] = [None] * count
        self._left = count
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, place: int, answer: Answer) -> None:
        """The answer to one of them."""
        self.answers[place] = answer
        self._left -= 1
        if not self._left and not self.is_done.done():
            self.is_done.set_result(None)


class _Slot(msgspec.Struct, gc=False):
    """A message under way, and who waits for its answer."""

    parcel: Parcel
    batch: Batch
    place: int
    joined: list[tuple[Batch, int]] | None = None
    """Who sent the same message again meanwhile."""

    def answer(self, answer: Answer) -> None:
        self.batch.answer(self.place, answer)
        for batch, place in self.joined or ():
            batch.answer(place, answer)


class Publisher(Channel):
    """Publishes with confirms, many at once.

    No two publishes with one message id are ever under way, because a returned message is known by its id alone: a
    message that is sent again before it was answered waits for the answer to the first.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection, number)
        self._tag = 0
        self._under_way: dict[int, _Slot] = {}
        """By delivery tag, in order."""
        self._by_id: dict[str, _Slot] = {}
        self._returned: Frame | None = None

    @classmethod
    async def confirming(cls, connection: Connection) -> Self:
        """A new channel on which every message is confirmed."""
        channel = await cls.opened(connection, PUBLISHING)
        expected(await channel.ask(commands.Confirm.Select()), commands.Confirm.SelectOk)
        return channel

    def publish(self, parcels: Sequence[Parcel | Outcome]) -> Batch:
        """Send all of them; what has an outcome already keeps it. `Ended` when this channel is."""
        if self.reason is not None:
            raise self.reason
        batch = Batch(len(parcels))
        pieces, size = [], 0
        for place, parcel in enumerate(parcels):
            if isinstance(parcel, Outcome):
                batch.answer(place, parcel)
            elif self._enter(parcel, batch, place):
                pieces.append(parcel.wire)
                size += len(parcel.wire)
                if size >= _PIECE:
                    self.connection.write(b"".join(pieces))
                    pieces, size = [], 0
        if pieces:
            self.connection.write(b"".join(pieces))
        return batch

    def _enter(self, parcel: Parcel, batch: Batch, place: int) -> bool:
        """Whether it must be sent: not if the same message is under way, whose answer then serves both."""
        earlier = self._by_id.get(parcel.message_id)
        if earlier is None:
            self._tag += 1
            self._under_way[self._tag] = self._by_id[parcel.message_id] = _Slot(parcel, batch, place)
            return True
        if earlier.parcel == parcel:
            earlier.joined = [*(earlier.joined or ()), (batch, place)]
        else:
            batch.answer(place, TWICE)
        return False

    # --- answers ---

    def received(self, kind: int, payload: bytes) -> None:
        """A frame of this channel."""
        if kind == frames.METHOD:
            if payload.startswith(frames.ACK):
                self._confirm(*frames.confirmed(payload), DELIVERED)
            elif payload.startswith(frames.NACK):
                self._confirm(*frames.confirmed(payload), NACKED)
            else:
                super().received(kind, payload)
        elif kind == frames.HEADER and self._returned is not None:
            self._return(expected(self._returned, commands.Basic.Return), returned_id(payload))

    def _received_method(self, frame: Frame) -> None:
        if isinstance(frame, commands.Basic.Return):
            self._returned = frame  # its properties come next, and then the ack of this message
        else:
            super()._received_method(frame)

    def _confirm(self, tag: int, multiple: bool, answer: Outcome) -> None:
        if multiple:
            while self._under_way and (first := next(iter(self._under_way))) <= tag:
                self._leave(first, answer)
        else:
            self._leave(tag, answer)

    def _leave(self, tag: int, answer: Outcome) -> None:
        slot = self._under_way.pop(tag, None)
        # What was returned is no longer known by its id, and its ack means only that it has been dealt with.
        if slot is not None and self._by_id.get(slot.parcel.message_id) is slot:
            del self._by_id[slot.parcel.message_id]
            slot.answer(answer)

    def _return(self, why: commands.Basic.Return, message_id: str | None) -> None:
        self._returned = None
        slot = self._by_id.pop(message_id or "", None)
        if slot is None:  # then its ack, which is on its way, would be taken for the word that it was delivered
            raise frames.NotAmqp("it returned a message that is not under way")
        slot.answer(unroutable(slot.parcel, code=why.reply_code or 0, text=why.reply_text))

    def _end(self, reason: Ended) -> None:
        super()._end(reason)
        slots, self._under_way, self._by_id = list(self._by_id.values()), {}, {}
        for slot in slots:
            slot.answer(interrupted(reason, slot.parcel, is_alone=len(slots) == 1))
