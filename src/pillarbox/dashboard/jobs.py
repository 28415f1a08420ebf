"""Jobs: changes of many messages, in batches, with progress, that can be cancelled and never run twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from pillarbox.contracts.store import BulkResult, InboxSelection, OperatorStore, Selection
from pillarbox.dashboard.actions import ACTIONS, Order, Verb
from pillarbox.errors import PillarboxError
from pillarbox.message import State
from pillarbox.operations.bulk import format_count, note_bulk
from pillarbox.redaction import redact_line
from pillarbox.tasks import cancel_all

__all__ = ["Job", "JobState", "Jobs", "change_batch", "run_change", "run_inbox_change", "run_probe"]

log = logging.getLogger("pillarbox.dashboard")

_BATCH: Final = 500
"""Messages that one transaction changes: long ones would hold up the relays."""
_MOST_KEPT: Final = 200
_PROBE_TIMEOUT: Final = timedelta(seconds=60)
_PROBE_INTERVAL: Final = 0.25


class JobState:
    """Names of the states of a job."""

    RUNNING: Final = "running"
    DONE: Final = "done"
    PARTLY: Final = "partly"
    """It went through everything, and some of what was counted was not changed."""
    CANCELLED: Final = "cancelled"
    FAILED: Final = "failed"


class Job:
    """A change that runs or has run. Only this process knows it; what it changed is in the journal."""

    def __init__(self, job_id: str, *, store: str, title: str, done_word: str, total: int, by: str, reason: str,
                 started_at: datetime, more: bool = False) -> None:  # fmt: skip
        self.id = job_id
        self.store = store
        self.title = title
        self.done_word = done_word
        self.total = total
        self.more = more
        """At least so many matched: counting ended there."""
        self.by = by
        self.reason = reason
        self.started_at = started_at
        self.state = JobState.RUNNING
        self.changed = 0
        self.without_payload = 0
        self.left_alone = ""
        """Why a job that ended by itself left the rest of what matched alone."""
        self.note = ""
        """What the job says about itself: what it waits for, or why it ended."""
        self.is_cancelled = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.state == JobState.RUNNING

    @property
    def rest(self) -> int:
        """Messages that were counted before, and are not changed."""
        return 0 if self.more else max(self.total - self.changed - self.without_payload, 0)

    @property
    def elsewhere(self) -> int:
        """Messages that did not match any more when it was their turn."""
        is_gone_through = self.state in (JobState.DONE, JobState.PARTLY) and not self.left_alone
        return self.rest if is_gone_through else 0

    @property
    def headline(self) -> str:
        """How it ended, in two words."""
        if self.state == JobState.PARTLY:
            return "Partly done" if self.changed else "Nothing was changed"
        return {
            JobState.RUNNING: "Running", JobState.DONE: "Done", JobState.CANCELLED: "Cancelled",
            JobState.FAILED: "Failed",
        }[self.state]  # fmt: skip

    @property
    def share(self) -> int:
        """How much is done, in percent."""
        if not self.is_running or not self.total:
            return 100
        return min(100 * (self.changed + self.without_payload) // self.total, 99)

    def describe(self) -> str:
        """Say what was done, what was skipped, and why."""
        text = f"{format_count(self.changed)} {self.done_word}"
        if self.without_payload:
            text += f", {self.without_payload:,} skipped: their payload was not kept"
        if self.elsewhere:
            text += f", {self.elsewhere:,} skipped: they no longer matched, or a relay was sending them"
        elif self.left_alone and self.rest:
            text += f", {self.rest:,} left as they are: {self.left_alone}"
        elif self.state in (JobState.CANCELLED, JobState.FAILED) and self.rest:
            text += f", {self.rest:,} left as they are"
        return f"{text}."

    def to_document(self) -> Mapping[str, object]:
        return {
            "id": self.id, "store": self.store, "title": self.title, "state": self.state, "by": self.by,
            "reason": self.reason, "matched": self.total, "more": self.more, "changed": self.changed,
            "without_payload": self.without_payload, "changed_elsewhere": self.elsewhere,
            "left_alone": self.rest if not self.is_running else None, "result": self.describe(), "note": self.note,
            "started_at": self.started_at,
        }  # fmt: skip


Run = Callable[[Job], Awaitable[None]]


class Jobs:
    """The jobs of a dashboard, the latest of them."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], Job] = {}
        """By store and id: a form of one store must not show a job of another."""

    def get(self, job_id: str, *, store: str | None = None) -> Job | None:
        """Return a job of a store, or of any."""
        if store is not None:
            return self._jobs.get((store, job_id))
        return next((job for job in self._jobs.values() if job.id == job_id), None)

    def list_latest(self, store: str, *, limit: int = 10) -> list[Job]:
        return [job for job in reversed(self._jobs.values()) if job.store == store][:limit]

    def start(self, job: Job, run: Run) -> Job:
        """Run a job in the background. One with the same id is the same form sent twice: it does not run again."""
        if (known := self._jobs.get((job.store, job.id))) is not None:
            return known
        self._jobs[job.store, job.id] = job
        for old in [key for key, one in self._jobs.items() if not one.is_running][
            : max(len(self._jobs) - _MOST_KEPT, 0)
        ]:
            del self._jobs[old]
        job.task = asyncio.create_task(self._run(job, run))
        return job

    async def _run(self, job: Job, run: Run) -> None:
        try:
            await run(job)
            job.state = _judge(job)
        except asyncio.CancelledError:
            job.state, job.note = JobState.CANCELLED, "The dashboard was stopped."
            raise
        except PillarboxError as error:
            job.state, job.note = JobState.FAILED, redact_line(str(error))
        except Exception:
            log.exception("a job of the dashboard failed")
            job.state, job.note = JobState.FAILED, "Something unexpected happened; the log of the dashboard has it."

    async def close(self) -> None:
        """Stop what runs, between two batches or in one: each batch is a transaction."""
        await cancel_all([job.task for job in self._jobs.values() if job.task is not None and not job.task.done()])


def _judge(job: Job) -> str:
    """Return the state in which a job ends whose run raised nothing."""
    if job.is_cancelled:
        return JobState.CANCELLED
    if job.left_alone:
        return JobState.FAILED
    is_short = job.without_payload > 0 or job.rest > 0 or (job.more and not job.changed)
    return JobState.PARTLY if is_short else JobState.DONE


# --- what jobs do ---


async def change_batch(
    store: OperatorStore, selection: Selection, order: Order, *, by: str, limit: int, now: datetime
) -> BulkResult:
    """Change the first messages of a selection."""
    match order.verb:
        case Verb.REDRIVE:
            return await store.redrive(selection, by=by, limit=limit, to=order.to, reason=order.reason or None)
        case Verb.REPLAY:
            return await store.replay(selection, by=by, limit=limit, reason=order.reason or None)
        case Verb.DISCARD:
            return await store.discard(selection, by=by, reason=order.reason, limit=limit)
        case Verb.DEFER:
            until = order.read_until(now)
            return await store.defer(selection, until=until, by=by, limit=limit, reason=order.reason or None)


async def run_change(job: Job, store: OperatorStore, selection: Selection, order: Order) -> None:
    """Change all messages of a selection, batch after batch in the order of their ids, and note it in the journal."""
    now = await store.now()
    named = selection
    try:
        while not job.is_cancelled:
            result = await change_batch(store, selection, order, by=job.by, limit=_BATCH, now=now)
            job.changed += result.count
            job.without_payload += result.without_payload
            # A short batch is not the last one: relays may have claimed some of its messages meanwhile.
            if result.last_id <= selection.after:
                break
            selection = msgspec.structs.replace(selection, after=result.last_id)
    finally:
        reason = order.reason or None
        await note_bulk(store, order.rule.action, named, job.changed, by=job.by, reason=reason, job=job.id)


async def run_probe(job: Job, store: OperatorStore, selection: Selection, order: Order, *, probe_id: int) -> None:
    """Redrive one message, wait until it is delivered, then redrive the rest; none of them if it fails again."""
    now = await store.now()
    one = Selection(ids=[probe_id])
    result = await change_batch(store, one, order, by=job.by, limit=1, now=now)
    if not result.count:
        job.left_alone = "the probe was not redriven, so nothing followed it"
        job.note = f"Message {probe_id} could not be redriven: somebody redrove or discarded it meanwhile."
        return
    job.changed += result.count
    job.note = f"Message {probe_id} was redriven as a probe; the rest follows when it is delivered."
    deadline = now + _PROBE_TIMEOUT
    while not job.is_cancelled:
        found = await store.find(one, limit=1, payloads=False)
        state = found[0].state if found else None
        if state is State.DELIVERED:
            job.note = f"The probe, message {probe_id}, was delivered."
            await run_change(job, store, selection, order)
            return
        if state is State.FAILED:
            job.left_alone = "the probe failed again"
            job.note = redact_line(f"Message {probe_id} failed again: {found[0].last_error or 'no error is known'}")
            return
        if await store.now() > deadline:
            seconds = _PROBE_TIMEOUT.total_seconds()
            job.left_alone = f"the probe was not delivered within {seconds:g} s"
            is_now = "gone" if state is None else state.value
            job.note = f"Message {probe_id} is {is_now}. If it is delivered later, redrive the rest then."
            return
        await asyncio.sleep(_PROBE_INTERVAL)


async def run_inbox_change(job: Job, store: OperatorStore, selection: InboxSelection, *, verb: Verb) -> None:
    """Redrive or discard failed messages of an inbox, batch after batch."""
    try:
        while not job.is_cancelled:
            if verb is Verb.DISCARD:
                count = await store.discard_inbox(selection, by=job.by, reason=job.reason, limit=_BATCH)
            else:
                count = await store.redrive_inbox(selection, by=job.by, limit=_BATCH, reason=job.reason or None)
            if not count:
                return
            job.changed += count
    finally:
        reason = job.reason or None
        await note_bulk(store, ACTIONS[verb].action, selection, job.changed, by=job.by, reason=reason, job=job.id)
