"""Finding and counting messages, and reading the journal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from pillarbox.journal import Action
from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Activity, Count, Entry, OpenClaim, Sample, Selection
from pillarbox.stores.memory.data import Parts
from pillarbox.stores.memory.selection import matches

__all__ = ["Asking"]


class Asking(Parts):
    """The asking part of the store."""

    async def find(self, selection: Selection, *, limit: int, payloads: bool = True) -> Sequence[Message]:
        found = [message for message in self._data.messages() if matches(message, selection)][:limit]
        return found if payloads else [replace(message, payload=b"") for message in found]

    async def count(self, selection: Selection) -> int:
        return sum(matches(message, selection) for message in self._data.messages())

    async def journal(self, *, message_id: UUID | None = None, limit: int = 100) -> Sequence[Entry]:
        lines = [line for line in self._data.journal if message_id is None or line.message_id == message_id]
        return lines[max(0, len(lines) - limit) :]

    async def counts(self, *, limit: int = 100_000) -> Sequence[Count]:
        groups: dict[tuple[str, str, State, bool], list[datetime]] = defaultdict(list)
        now = self._clock.now()
        for message in self._data.messages():
            at = _since(message)
            due = message.waits not in (Waits.DEFERRED, Waits.RETRY) or at <= now
            groups[message.destination, message.topic, message.state, due].append(at)
        return [
            Count(
                destination=destination, topic=topic, state=state, due=due, count=len(ats[:limit]), oldest_at=min(ats),
                more=len(ats) >= limit,
            )
            for (destination, topic, state, due), ats in sorted(groups.items())
        ]  # fmt: skip

    async def oldest_due(self) -> Mapping[str, datetime]:
        now, oldest = self._clock.now(), dict[str, datetime]()
        for message in self._data.messages():
            at = _since(message)
            if not message.state.is_closed and message.waits is not Waits.PARKED and at <= now:
                oldest[message.destination] = min(at, oldest.get(message.destination, at))
        return oldest

    async def activity(self, *, window: timedelta, limit: int = 10_000) -> Activity:
        since = self._clock.now() - window
        closed = [one for one in self._data.messages() if one.state is State.DELIVERED and _at(one) >= since]
        closed.sort(key=lambda one: (_at(one), one.id), reverse=True)
        failures = [line for line in self._data.journal if line.action == Action.ATTEMPT_FAILED and line.at >= since]
        counted = Counter(line.destination for line in failures[-limit:])
        return Activity(
            delivered=[_sample(one) for one in closed[:limit]],
            attempts_failed=counted,
            complete=len(closed) <= limit and len(failures) <= limit,
        )

    async def claims(self, *, older_than: timedelta, limit: int = 50) -> Sequence[OpenClaim]:
        before, claimed_at = self._clock.now() - older_than, self._data.claimed_at
        old = [
            OpenClaim(relay_id=key[0], claimed_at=claimed_at[key], message_ids=claim.message_ids, strikes=claim.strikes)
            for key, claim in self._data.claims.items()
            if claimed_at[key] <= before and claim.message_ids
        ]
        return sorted(old, key=lambda claim: claim.claimed_at)[:limit]


def _at(message: Message) -> datetime:
    assert message.status_at is not None  # noqa: S101 - every stored message has it
    return message.status_at


def _sample(message: Message) -> Sample:
    assert message.created_at is not None  # noqa: S101 - every stored message has it
    due = message.created_at
    if message.attempts == 0 and message.available_at is not None:
        due = max(due, message.available_at)
    return Sample(
        destination=message.destination,
        topic=message.topic,
        latency=max(_at(message) - due, timedelta(0)),
        end_to_end=_at(message) - message.event_time,
        at=_at(message),
    )


def _since(message: Message) -> datetime:
    """When an open message was or will be due, or a closed one closed."""
    if message.state.is_closed and message.waits is None:
        at = message.status_at
    elif message.waits in (Waits.DEFERRED, Waits.RETRY):
        at = message.available_at
    else:
        at = message.created_at
    assert at is not None  # noqa: S101 - every stored message has these times
    return at
