"""Janitor: removes closed messages and inbox records that are older than their retention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from pillarbox.contracts.store import HistoryPartition, OperatorStore, PartitionedStore, Selection
from pillarbox.durations import FOREVER
from pillarbox.errors import StoreBusy, StoreForbidden
from pillarbox.message import State
from pillarbox.relay.archive import Archive, JsonLinesArchive
from pillarbox.relay.settings import Retention
from pillarbox.telemetry import Telemetry

__all__ = ["Janitor"]


class Janitor:
    """Deletes in small batches until nothing is old enough: a long transaction would hold up writers and relays.

    Where history has partitions, those of which all is old enough are dropped first.
    """

    def __init__(
        self, store: OperatorStore, *, retention: Retention, telemetry: Telemetry, archive: Archive | None = None
    ) -> None:
        self._store = store
        self._retention = retention
        self._telemetry = telemetry
        if archive is None and retention.archive is not None:
            archive = JsonLinesArchive(retention.archive)
        self._archive = archive
        self._archived: dict[State, int] = {}
        """The last id of each state that the archive has taken in this run."""
        self._spared: Sequence[tuple[int, int]] = ()
        """Ids of partitions that will be dropped as a whole, first and last of each."""

    async def run_once(self) -> int:
        """Remove all that is old enough; return how many messages and inbox records were removed."""
        removed = await self.drop_partitions()
        for state, age in self._list_ages():
            while count := await self.clean_batch(state, age):
                removed += count
        inbox = await self._clean_inbox()
        await self._clean_rollups()
        await self._clean_journal()
        self._telemetry.on_cleaned(messages=removed, inbox=inbox)
        return removed + inbox

    async def drop_partitions(self) -> int:
        """Archive and drop the partitions of history that have expired; return how many messages that removed.

        One that another session has a lock on is left for the next run, and so are those behind it.
        """
        if not isinstance(self._store, PartitionedStore):
            return 0
        ages, removed, after = dict(self._list_ages()), 0, None
        try:
            while partition := await self._store.find_expired_partition(ages, after=after):
                if self._archive is not None and not partition.is_detached:
                    await self._archive_partition(partition, self._archive)
                removed += await self._store.drop_partition(partition)
                after = partition.first
        except (StoreBusy, StoreForbidden):  # the doctor reports a missing right; rows are deleted as ever
            pass
        return removed

    async def _archive_partition(self, partition: HistoryPartition, archive: Archive) -> None:
        """Give the archive everything that will be dropped. What is closed meanwhile is younger than the cutoffs."""
        for state, cutoff in partition.cutoffs.items():
            after = partition.first - 1
            selection = Selection(states=[state], changed_before=cutoff, after=after)
            while found := await self._store.find(selection, limit=self._retention.batch):
                if old := [one for one in found if one.waits is None and one.id <= partition.last]:
                    await archive(old)
                if found[-1].id >= partition.last:
                    break
                selection = msgspec.structs.replace(selection, after=found[-1].id)

    def _list_ages(self) -> list[tuple[State, timedelta]]:
        keep = self._retention
        ages = [
            (State.DELIVERED, keep.delivered),
            (State.FAILED, keep.failed),
            (State.SKIPPED, keep.skipped),
            (State.DISCARDED, keep.discarded),
        ]
        return [(state, age) for state, age in ages if age != FOREVER]

    async def clean_batch(self, state: State, age: timedelta) -> int:
        """Archive and delete one batch of messages that were closed so long ago; return how many."""
        if self._archive is None:
            return await self._store.purge(state, older_than=age, limit=self._retention.batch)
        before = await self._store.now() - age
        # From where the last batch ended, and in the end from the front: a search that always began there would walk
        # again over what stays, and over deleted rows that the database has not removed yet.
        mark = self._archived.pop(state, 0)
        if state is State.DELIVERED and isinstance(self._store, PartitionedStore) and not mark:
            self._spared = await self._store.list_spared_ids(older_than=age)
        spared = self._spared if state is State.DELIVERED else ()
        for start in (mark, 0) if mark else (0,):
            selection = Selection(states=[state], changed_before=before, after=start)
            # Exactly what the archive received is deleted: what was closed again meanwhile stays.
            while found := await self._store.find(selection, limit=self._retention.batch):
                # A held message is shown as failed, but it is open: it is not deleted, and not archived each time.
                if old := [one for one in found if one.waits is None and not _is_spared(one.id, spared)]:
                    await self._archive(old)
                    if count := await self._store.purge_archived(old):
                        self._archived[state] = found[-1].id
                        return count
                # Behind a partition that will be dropped as a whole, if it ends among the ids of one.
                ends = [last for first, last in spared if first <= found[-1].id <= last]
                selection = msgspec.structs.replace(selection, after=max(ends, default=found[-1].id))
        return 0

    async def _clean_rollups(self) -> None:
        keep = self._retention
        if keep.rollups != FOREVER:
            while await self._store.purge_rollups(older_than=keep.rollups, limit=keep.batch):
                pass

    async def _clean_journal(self) -> None:
        keep = self._retention
        if keep.journal != FOREVER:
            while await self._store.purge_journal(older_than=keep.journal, limit=keep.batch):
                pass

    async def _clean_inbox(self) -> int:
        keep, removed = self._retention, 0
        for age, failed in ((keep.inbox, False), (keep.inbox_failed, True)):
            if age == FOREVER:
                continue
            while count := await self._store.purge_inbox(older_than=age, limit=keep.batch, failed=failed):
                removed += count
        return removed


def _is_spared(message_id: int, spared: Sequence[tuple[int, int]]) -> bool:
    return any(first <= message_id <= last for first, last in spared)
