"""Hot keys: one holds a share of the window, the rest of it is left in the table and skipped by the reads."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from pillarbox.message import Message
from pillarbox.protocols import Reading
from pillarbox.relay.lane.line import Line
from pillarbox.relay.lane.rows import Offer, Rows

__all__ = ["Crowds", "Left"]


class Left(msgspec.Struct, frozen=True):
    """A crowded key of which more should be met now: read its lane above that id."""

    key: str
    partition: int
    after: int


class Crowds(Rows):
    """The core's side for keys of which there is more than fits."""

    @property
    def crowded(self) -> list[str]:
        """Keys of which enough was met, and more is known to wait: reads should skip them."""
        return list(self._crowded)

    def meet_again(self, partitions: Collection[int]) -> None:
        """These lanes are about to be read from their start: nothing in them is skipped."""
        self._meet_all(partitions)

    def look_again(self, blocked: Collection[str]) -> None:
        """The table names these keys as blocked. Of others, whatever stood in front may be gone: a person can do that.

        Nothing of a crowded key may be parked, so that the table would not name it when its front is gone.
        """
        for key, line in list(self._crowded.items()):
            if key not in blocked and line.blocked and line.front is not None and line.is_quiet:
                line.front = None
                self._look(key, line)

    def left(self, limit: int) -> list[Left]:
        """Crowded keys that have room again. Each answer must come back by `offer_left`, or `left_failed`."""
        chosen: list[Left] = []
        for key, line in self._crowded.items():
            if line.met_to is not None and line.has_room and line.partition not in self._suspended:
                line.fetching = True
                chosen.append(Left(key, line.partition, line.met_to))
                if len(chosen) == limit:
                    break
        return chosen

    def offer_left(self, left: Left, reading: Reading) -> Offer:
        """What a read of a crowded key's lane found: the next of that key. Others were met before, or will be."""
        line = self._lines.get(left.key)
        if line is None:
            return Offer(())
        line.fetching, offer = False, Offer(())
        if line.met_to is not None and line.partition not in self._suspended:
            line.lags = False
            offer = self._meet_more(left.key, line, reading)
        self._look(left.key, line)
        return offer

    def left_failed(self, left: Left) -> None:
        """The lane could not be read: there is more to meet still."""
        if (line := self._lines.get(left.key)) is not None:
            line.fetching = False
            self._look(left.key, line)

    def _meet_more(self, key: str, line: Line, reading: Reading) -> Offer:
        """Only up to the lane's mark: above it a read would skip what becomes visible later."""
        met_to, mark = line.met_to or 0, self._marks.get(line.partition, 0)
        more = [m for m in reading.messages if m.key == key and met_to < m.id <= mark]
        met = more[: self._key_share]
        offer = self._met(line, met)
        if len(met) < len(more):
            line.met_to = met[-1].id
        elif line.partition in reading.complete or (reading.messages and reading.messages[-1].id >= mark):
            self._uncrowd(key, line)
        elif reading.messages:
            line.met_to = max(met_to, reading.messages[-1].id)
        return offer

    def _met(self, line: Line, messages: list[Message]) -> Offer:
        if line.blocked:
            for message in messages:
                line.park(message.id)
            return Offer((), messages)
        for message in messages:
            line.join(message.id)
            self._hold(message)
        return Offer(messages)
