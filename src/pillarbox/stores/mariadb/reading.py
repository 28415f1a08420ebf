"""Reads of fresh messages: each lane from its start, past the ids that are known.

Ids can become visible late, and MySQL tells no client which transactions were in progress. So a read starts at the
beginning of each lane and passes over the ids that the cursor knows: those that were returned or skipped before, and
are still open. What is visible and not known is new, wherever it stands.

A hot key can leave very many known ids in its lane. Their ids are not fetched each time: they are kept in blocks, and
the server counts and sums up what stands in the range of each. Only a block that changed is fetched again.
"""

from __future__ import annotations

import time
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from pillarbox.contracts.store import Cursor
from pillarbox.message import compute_partition
from pillarbox.stores.mariadb.connection import Transaction
from pillarbox.stores.sync_sql.batch import cut_batch, find_complete_lanes, select_batch
from pillarbox.stores.sync_sql.rows import decode_ids
from pillarbox.stores.unreadable import NO_ID

__all__ = ["FreshRead", "IdBlock", "KnownIds"]

_PARTITION: Final = 3
"""Column of a row."""
_BLOCK: Final = 2_048
"""Ids in a block. Known ids that stand above the blocks are fetched with each read: at most two blocks of them."""
_STEP_GROWTH: Final = 4
_LONGEST_STEP: Final = 40_000
"""A lane with keys to skip is read in steps that grow from round to round, up to so many ids."""
_MOST_PASSED: Final = 200_000
"""Most ids of skipped keys that one read passes in a lane. The next read goes on behind them."""
_CHECK_REST: Final = 8
"""A check of a lane's blocks is followed by a rest of this many times its duration."""


class IdBlock(msgspec.Struct, frozen=True):
    """Known ids of a lane that stand next to each other, and the sums by which a change of them is noticed."""

    ids: array[int]
    total: int
    checksum: int

    @classmethod
    def build(cls, ids: Iterable[int]) -> IdBlock:
        """Build a block of ids that are in order."""
        packed = array("q", ids)
        return cls(packed, sum(packed), sum(zlib.crc32(b"%d" % id_) for id_ in packed))

    @property
    def last(self) -> int:
        return self.ids[-1]

    def matches(self, count: int, total: int, checksum: int) -> bool:
        """Return whether these sums, of all that is visible in its range, are its own.

        Sums of ids alone may agree though two of them went and two others came; those of their checksums then differ.
        """
        return (count, total, checksum) == (len(self.ids), self.total, self.checksum)


class KnownIds(msgspec.Struct, frozen=True):
    """Ids of one lane that were returned or skipped, and were open when they were last seen."""

    ids: frozenset[int] = frozenset()
    """Those above the blocks."""
    blocks: tuple[IdBlock, ...] = ()
    """In the order of their ids. A block's range begins behind the one before it."""
    rests_until: float = 0.0
    """By the monotonic clock: the blocks are not checked before, unless something new stands above them."""


class _Lane:
    """One lane in one read."""

    def __init__(self, partition: int, *, low: int, known: KnownIds, floor: int, skip: Sequence[str]) -> None:
        self.partition = partition
        self.low = low
        self.skip = list(skip)
        self.blocks = list(known.blocks)
        self.rests_until = known.rests_until
        self.known = set(known.ids)
        self.after = max(floor, self.blocks[-1].last if self.blocks else 0)
        """The lane is read above this id."""
        self.seen: list[int] = []
        """The fresh ids above it, as far as the last round read them."""
        self.passed: set[int] = set()
        """Known ids that this read skipped."""
        self.step = 0
        self.is_checked = not self.blocks

    def accept(self, ids: Sequence[int]) -> None:
        """Note the ids that a round read."""
        self.seen = list(ids)

    def list_unknown(self) -> list[int]:
        """Return the ids that were read and are not known."""
        return [id_ for id_ in self.seen if id_ not in self.known]

    def list_new(self) -> list[int]:
        """Return those of them that are not late."""
        return [id_ for id_ in self.list_unknown() if id_ > self.low]

    def pass_by(self, ids: Iterable[int]) -> None:
        """Skip those of these messages that are new."""
        passed = {id_ for id_ in ids if id_ > self.low and id_ not in self.known}
        self.passed |= passed
        self.known |= passed

    def forget_beyond_unread(self) -> None:
        """Pass over nothing that stands above a message which is left for a later read."""
        first = next((id_ for id_ in self.seen if id_ not in self.known), None)
        if first is not None:
            beyond = {id_ for id_ in self.passed if id_ > first}
            self.passed -= beyond
            self.known -= beyond

    def list_ranges(self, destination: str) -> list[dict[str, object]]:
        """Return the values that name the range of each block."""
        ends = [0, *(block.last for block in self.blocks)]
        return [
            {"destination": destination, "partition": self.partition, "number": number, "after": after, "last": last}
            for number, (after, last) in enumerate(pairwise(ends))
        ]

    def build_known(self, gone: set[int]) -> KnownIds:
        """Return what is known after this read. What was known and is not seen any more was settled.

        Beyond the last id that was seen, all known ones stay.
        """
        last = self.seen[-1] if self.seen else 0
        rest = ({id_ for id_ in self.known if id_ > last} | self.known.intersection(self.seen)) - gone
        blocks = [block for block in self.blocks if block.ids]
        if len(rest) > 2 * _BLOCK:
            beginning: list[int] = []
            for id_ in self.seen:
                if id_ not in rest:
                    if id_ not in gone:
                        break
                    continue
                beginning.append(id_)
            while len(beginning) > 2 * _BLOCK:
                blocks.append(IdBlock.build(beginning[:_BLOCK]))
                rest.difference_update(beginning[:_BLOCK])
                del beginning[:_BLOCK]
        return KnownIds(frozenset(rest), tuple(blocks), self.rests_until if blocks else 0.0)


class FreshRead:
    """One read of fresh messages, in rounds over the lanes that may have more until there are enough."""

    def __init__(self, tx: Transaction, destination: str, cursor: Cursor, partitions: Sequence[int]) -> None:
        self._tx = tx
        self._destination = destination
        self._cursor = cursor
        skip: dict[int, list[str]] = {}
        for key in cursor.skip:
            skip.setdefault(compute_partition(key, NO_ID), []).append(key)
        snapshot: Any = cursor.snapshot
        self._lanes = {
            lane: _Lane(
                lane,
                low=cursor.low.get(lane, 0),
                known=snapshot[lane] if snapshot and lane in cursor.low and lane in snapshot else KnownIds(),
                # A mark that comes without known ids: what stands below it is not wanted.
                floor=cursor.low.get(lane, 0) if snapshot is None else 0,
                skip=skip.get(lane, ()),
            )
            for lane in partitions
        }
        self._late: list[int] = []
        self._fresh: list[int] = []
        self._complete: set[int] = set()

    def select(self, limit: int, max_bytes: int) -> tuple[list[int] | None, frozenset[int]]:
        """Return the ids to read, late ones in addition to the limits, and the lanes that have no more.

        None instead of ids: the late ones are too large for one read, and every lane must start over.
        """
        now = time.monotonic()
        resting = [lane for lane in self._lanes.values() if lane.blocks and now < lane.rests_until]
        self._read_lanes([lane for lane in self._lanes.values() if lane not in resting], limit)
        if resting and not self._fresh and not self._late:
            # Long lanes do not hold up the others, and are not held up where there are no others.
            self._read_lanes(resting, limit)
        self._check_blocks([lane for lane in self._lanes.values() if lane.blocks and self._must_check(lane, now)])
        self._complete = {lane for lane in self._complete if self._lanes[lane].is_checked}
        if len(self._late) > 1 and len(cut_batch(self._tx, self._late, max_bytes)) < len(self._late):
            return None, frozenset()
        fitting = cut_batch(self._tx, self._fresh, max_bytes)
        if dropped := set(self._fresh[len(fitting) :]):
            for lane in self._lanes.values():
                if not dropped.isdisjoint(lane.known):
                    lane.known -= dropped
                    self._complete.discard(lane.partition)
        for lane in self._lanes.values():
            lane.forget_beyond_unread()
        return sorted({*self._late, *fitting}), frozenset(self._complete)

    def _read_lanes(self, lanes: Sequence[_Lane], limit: int) -> None:
        while lanes and len(self._fresh) < limit:
            room = limit - len(self._fresh)
            share = max(1, room // len(lanes))
            ahead, more = self._read_ahead(lanes, 2 * share)
            behind = {id_ for lane, ids in ahead.items() for id_ in ids if id_ <= self._lanes[lane].low}
            new = {lane: [id_ for id_ in ids if id_ not in behind] for lane, ids in ahead.items()}
            batch = select_batch(list(new.values()), floor=max(1, share // 2), limit=room)
            self._late += behind
            self._fresh += batch
            taken = {*behind, *batch}
            for partition, ids in ahead.items():
                self._lanes[partition].known.update(taken.intersection(ids))
            self._complete |= find_complete_lanes({lane.partition for lane in lanes} - more, new, set(batch))
            lanes = [lane for lane in lanes if lane.partition in more and len(lane.passed) < _MOST_PASSED]

    def _read_ahead(self, lanes: Sequence[_Lane], count: int) -> tuple[dict[int, list[int]], set[int]]:
        """Return the next unknown ids of each lane, and the lanes that may have more."""
        limits: dict[int, int] = {}
        each: list[dict[str, object]] = []
        for lane in lanes:
            lane.step = max(min(_STEP_GROWTH * lane.step, _LONGEST_STEP), count) if lane.skip else count
            limits[lane.partition] = lane.step + len(lane.known)
            each.append(self._lane_values(lane) | {"after": lane.after, "limit": limits[lane.partition]})
        for partition, ids in self._tx.union("read_ahead", each):
            self._lanes[partition].accept(_split_ids(ids))
        self._pass_by([lane for lane in lanes if lane.skip])
        more = {lane.partition for lane in lanes if len(lane.seen) >= limits[lane.partition]}
        return {lane.partition: lane.list_unknown() for lane in lanes}, more

    def _pass_by(self, lanes: Sequence[_Lane]) -> None:
        """Skip what these lanes have of their hot keys. Only what is new is looked up, for the index has no keys."""
        new = [(lane, ids) for lane in lanes if (ids := lane.list_new())]
        each = [self._lane_values(lane) | {"first": ids[0], "last": ids[-1], "skip": lane.skip} for lane, ids in new]
        for partition, ids in self._tx.union("find_skipped", each) if each else ():
            lane = self._lanes[partition]
            lane.pass_by(set(_split_ids(ids)).intersection(lane.seen))

    def _lane_values(self, lane: _Lane) -> dict[str, object]:
        return {"destination": self._destination, "partition": lane.partition}

    def _must_check(self, lane: _Lane, now: float) -> bool:
        """Return whether the blocks of a lane are to be checked: what is taken must not overtake a late one."""
        is_new = not lane.known.isdisjoint(self._fresh) or not lane.known.isdisjoint(self._late)
        return is_new or bool(lane.passed) or now >= lane.rests_until

    def _check_blocks(self, lanes: Sequence[_Lane]) -> None:
        """Look for late ids among those of the blocks. After the rounds, which may have read what follows one."""
        for lane in lanes:
            began_at = time.monotonic()
            ranges = lane.list_ranges(self._destination)
            sums = {number: tuple(map(int, row)) for _, number, *row in self._tx.union("check_block", ranges)}
            changed = [one for number, one in enumerate(ranges) if not lane.blocks[number].matches(*sums[number])]
            for _, number, ids in self._tx.union("read_block", changed) if changed else ():
                found, known = _split_ids(ids), set(lane.blocks[number].ids)
                self._late += [id_ for id_ in found if id_ not in known]
                lane.blocks[number] = IdBlock.build(found)
            lane.blocks = [block for block in lane.blocks if block.ids]
            lane.is_checked = True
            ended_at = time.monotonic()
            lane.rests_until = ended_at + _CHECK_REST * (ended_at - began_at)

    def advance(self, ids: Sequence[int], rows: Sequence[Any]) -> Cursor:
        """Return the cursor after this read."""
        low = dict(self._cursor.low)
        for row in rows:
            low[row[_PARTITION]] = max(row[0], low.get(row[_PARTITION], 0))
        gone = set(ids) - {row[0] for row in rows}
        snapshot: dict[int, KnownIds] = dict(self._cursor.snapshot or {})  # type: ignore[call-overload]
        for partition, lane in self._lanes.items():
            snapshot[partition] = lane.build_known(gone)
            low[partition] = max(low.get(partition, 0), max(lane.passed, default=0))
        return Cursor(low, snapshot, self._cursor.session)


def _split_ids(ids: str | None) -> list[int]:
    return [] if ids is None else decode_ids(f"[{ids}]")
