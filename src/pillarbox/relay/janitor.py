"""Janitor: removes closed messages and inbox records that are older than their retention."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from pillarbox.contracts.store import OperatorStore, Selection
from pillarbox.durations import FOREVER
from pillarbox.message import State
from pillarbox.relay.archive import Archive, JsonLinesArchive
from pillarbox.relay.settings import Retention
from pillarbox.telemetry import Telemetry

__all__ = ["Janitor"]


class Janitor:
    """Deletes in small batches until nothing is old enough: a long transaction would hold up writers and relays."""

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

    async def run_once(self) -> int:
        """Remove all that is old enough; return how many messages and inbox records were removed."""
        removed = 0
        for state, age in self._list_ages():
            while count := await self.clean_batch(state, age):
                removed += count
        inbox = await self._clean_inbox()
        await self._clean_rollups()
        await self._clean_journal()
        self._telemetry.on_cleaned(messages=removed, inbox=inbox)
        return removed + inbox

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
        for start in (mark, 0) if mark else (0,):
            selection = Selection(states=[state], changed_before=before, after=start)
            # Found and deleted by id, so that exactly what the archive received is deleted.
            while found := await self._store.find(selection, limit=self._retention.batch):
                # A held message is shown as failed, but it is open: it is not deleted, and not archived each time.
                if old := [message for message in found if message.waits is None]:
                    await self._archive(old)
                    count = await self._store.purge_ids([message.id for message in old])
                    self._archived[state] = found[-1].id
                    return count
                selection = msgspec.structs.replace(selection, after=found[-1].id)
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
