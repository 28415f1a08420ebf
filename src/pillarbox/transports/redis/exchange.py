"""One batch over one connection: many commands out at once, then their replies, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pillarbox.protocols import Outcome
from pillarbox.transports.answers import DELIVERED, Answer, Interrupted
from pillarbox.transports.redis.entries import Entry
from pillarbox.transports.redis.link import Link
from pillarbox.transports.redis.settings import Durability
from pillarbox.transports.redis.verdicts import answer_of, shortfall

__all__ = ["Exchange"]

_AT_ONCE: Final = 1024 * 1024
"""Bytes that are written before the replies to them are read: more would only fill buffers."""


class Exchange:
    """The messages of one send, and what is known of them. What was answered stays so, however it ends."""

    def __init__(self, parts: Sequence[Entry | Outcome], *, wanted: Durability, wait: bytes | None) -> None:
        self.answers: list[Answer | None] = [part if isinstance(part, Outcome) else None for part in parts]
        self.is_under_way = False
        """Something of it was written."""
        self._parts = parts
        self._wanted = wanted
        self._wait = wait

    async def run(self, link: Link) -> None:
        """Add all, and wait until they are as safe as wanted; `LinkBroken` when the connection breaks."""
        try:
            for chunk in self._chunks():
                self.is_under_way = True
                await link.send(b"".join([piece for _, entry in chunk for piece in entry.pieces]))
                for place, entry in chunk:
                    self.answers[place] = answer_of(await link.reply(), key=entry.key)
                    if link.is_broken:
                        self._give_up(self.answers[place])
                        return
            await self._make_safe(link)
        except BaseException:
            self._doubt()
            raise

    def interrupt(self, reason: str) -> None:
        """No more answers will come."""
        self.answers = [Interrupted(reason) if answer is None else answer for answer in self.answers]

    def _chunks(self) -> Iterator[Sequence[tuple[int, Entry]]]:
        chunk: list[tuple[int, Entry]] = []
        size = 0
        for place, part in enumerate(self._parts):
            if isinstance(part, Outcome):
                continue
            if chunk and size + part.size > _AT_ONCE:
                yield chunk
                chunk, size = [], 0
            chunk.append((place, part))
            size += part.size
        if chunk:
            yield chunk

    def _give_up(self, last: Answer | None) -> None:
        """The server closed the connection over this one: too large, or a state in which it takes nothing."""
        if isinstance(last, Interrupted):
            self.answers = [last if answer is None else answer for answer in self.answers]

    async def _make_safe(self, link: Link) -> None:
        if self._wait is None or DELIVERED not in self.answers:
            return
        await link.send(self._wait)
        short = shortfall(await link.reply(), self._wanted)
        if short is not None:
            self._replace_delivered(short)

    def _doubt(self) -> None:
        """What was added, but not said to be safe, was not delivered."""
        if self._wait is not None:
            self._replace_delivered(None)

    def _replace_delivered(self, answer: Answer | None) -> None:
        self.answers = [answer if known is DELIVERED else known for known in self.answers]
