"""Messages under way on one connection, and the answers to them as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pillarbox.protocols import Outcome
from pillarbox.transports.answers import Answer, Interrupted
from pillarbox.transports.nats.publications import Publication
from pillarbox.transports.nats.verdicts import NotAllowed, answer_of
from pillarbox.transports.nats.window import Window

__all__ = ["Batch", "Batches"]

_WRITTEN_AT_ONCE = 256 * 1024


class Batch:
    """The messages of one send."""

    def __init__(self, parts: Sequence[Publication | Outcome], window: Window) -> None:
        self.answers: list[Answer | None] = [part if isinstance(part, Outcome) else None for part in parts]
        self.is_under_way = False
        """Something of it was written."""
        self.done = asyncio.Event()
        """Every message has its answer."""
        self._parts = parts
        self._window = window
        self._sizes: dict[int, int] = {}
        """What takes room in the window: place in the batch to bytes."""
        self._left = self.answers.count(None)
        if not self._left:
            self.done.set()

    async def write(self, write: Callable[[bytes], None], *, reply: str) -> None:
        """Hand everything to the connection, as fast as the window lets it."""
        frames: list[bytes] = []
        size = 0
        for place, part in enumerate(self._parts):
            if self.answers[place] is not None or isinstance(part, Outcome):
                continue
            frame = part.frame(f"{reply}.{place}")
            if size > _WRITTEN_AT_ONCE or not self._window.has_room(len(frame)):
                self._write(write, frames)
                size = 0
                await self._window.room(len(frame))
            self._window.enter(len(frame))
            self._sizes[place] = len(frame)
            frames.append(frame)
            size += len(frame)
        self._write(write, frames)

    def _write(self, write: Callable[[bytes], None], frames: list[bytes]) -> None:
        if frames and self._left:
            write(b"".join(frames))
            self.is_under_way = True
        frames.clear()

    def answer(self, place: int, answer: Answer) -> None:
        """The first answer counts."""
        if place >= len(self.answers) or self.answers[place] is not None:
            return
        self.answers[place] = answer
        self._release(place)
        self._left -= 1
        if not self._left:
            self.done.set()

    def take(self, place: int, data: bytes, status: str | None) -> None:
        """What came back for the message at this place."""
        if place < len(self._parts) and isinstance(part := self._parts[place], Publication):
            self.answer(place, answer_of(data, status=status, subject=part.subject))

    def forbid(self, refusal: NotAllowed) -> None:
        """The server does not let us publish to this subject, and gives no other answer."""
        for place, part in enumerate(self._parts):
            if isinstance(part, Publication) and part.subject.lower() == refusal.subject:
                text = f"NATS does not let this user publish to {part.subject[:100]!r}: allow it, or use another login."
                self.answer(place, Interrupted(text, is_outage=True))

    def interrupt(self, reason: str) -> None:
        """No more answers will come."""
        for place, answer in enumerate(self.answers):
            if answer is None:
                self.answer(place, Interrupted(reason))

    def forget(self) -> None:
        """Give back the room of what will not be waited for any more."""
        for place in list(self._sizes):
            self._release(place)

    def _release(self, place: int) -> None:
        size = self._sizes.pop(place, None)
        if size is not None:
            self._window.leave(size)


class Batches:
    """Those of one connection, by the number that stands in their reply subjects."""

    def __init__(self) -> None:
        self._under_way: dict[int, Batch] = {}
        self._last = 0

    def add(self, batch: Batch) -> int:
        self._last += 1
        self._under_way[self._last] = batch
        return self._last

    def remove(self, number: int) -> None:
        batch = self._under_way.pop(number, None)
        if batch is not None:
            batch.forget()

    def take(self, token: str, data: bytes, status: str | None) -> None:
        """An answer at a reply subject that ends in NUMBER.PLACE. One that comes too late finds nobody."""
        number, _, place = token.partition(".")
        batch = self._under_way.get(int(number))
        if batch is not None:
            batch.take(int(place), data, status)

    def forbid(self, refusal: NotAllowed) -> None:
        for batch in list(self._under_way.values()):
            batch.forbid(refusal)

    def interrupt(self, reason: str) -> None:
        for batch in list(self._under_way.values()):
            batch.interrupt(reason)
