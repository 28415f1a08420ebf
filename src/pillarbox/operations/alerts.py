"""Alerts: conditions over a `Status` that need a person, each with what to do. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.arguments import check_fields
from pillarbox.contracts.finding import Severity
from pillarbox.durations import format_duration
from pillarbox.errors import ConfigError
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION
from pillarbox.operations.monitor import (
    RETRIES_COUNTED_TO,
    STUCK_AFTER,
    BlockedKeyStatus,
    DestinationStatus,
    Status,
)

__all__ = ["Alert", "Thresholds", "choose_store", "find_alerts"]

_TAKING_LANES: Final = timedelta(seconds=3)
"""Time that a relay has to take its lanes after its start."""
_TOPICS: Final = 3
"""Topics that an alert names."""
_KEY_LENGTH: Final = 60
"""Letters of a key in an alert."""
_COMMAND: Final = re.compile(r"(?<=`)pillarbox (?!relay\b|doctor\b)[^`]+(?=`)")
"""A command in an advice that works on one store."""
_WORDS: Final = re.compile(r"\Apillarbox(?: [a-z]+(?= |\Z))+")
"""The words of a command, before its options and what follows them."""
_MORE_RELAYS: Final = "Look at `pillarbox status`: more relays, a larger window or a faster destination would help."


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the alerts. `forever` or a very large number switches one off."""

    failed: int = 0
    """More failed messages than this: critical."""
    inbox_failed: int = 0
    """More failed messages of one consumer than this: critical."""
    skipped: int = 0
    """More messages than this were skipped, because no route takes them: warning."""
    oldest_warning: timedelta = timedelta(seconds=60)
    oldest_critical: timedelta = timedelta(seconds=600)
    """The longest waiting message has been due for longer than this, or was tried and is not given up for so long."""
    backlog_warning: int = 1_000
    """More messages than this are due, and the oldest has been due for longer than `backlog_for`."""
    backlog_critical: int = 10_000
    """More messages than this are due, for however short a time."""
    backlog_for: timedelta = timedelta(minutes=5)
    sending: timedelta = timedelta(minutes=30)
    """A relay has held a claim for longer than this: warning."""
    stuck: timedelta = STUCK_AFTER
    """A claim that is older than this is listed as stuck. No alert by itself."""
    near_failure: float = 0.6
    """A message is listed as near failure after this share of its destination's attempts. No alert by itself."""
    unpruned: timedelta = timedelta(days=1)
    """A message of a handed-off destination was written longer ago than this, and is not pruned: warning."""
    relays: int = 1
    """Fewer live relays than this: warning."""
    latency: timedelta = timedelta(minutes=5)
    """Average latency in the window: warning."""
    retry_rate: float = 0.10
    """Share of the attempts in the window that failed and are made again: warning."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("oldest", "backlog"):
            if getattr(self, f"{name}_critical") < getattr(self, f"{name}_warning"):
                raise ConfigError(f"The threshold {name}_critical cannot be below its warning, {name}_warning.")
        if not 0 <= self.retry_rate <= 1:
            raise ConfigError("The threshold retry_rate is a part of all attempts: between 0 and 1.")
        if not 0 < self.near_failure <= 1:
            raise ConfigError("The threshold near_failure is a part of a destination's attempts: above 0, at most 1.")
        for name in ("failed", "inbox_failed", "skipped", "backlog_warning", "relays"):
            if getattr(self, name) < 0:
                raise ConfigError(f"The threshold {name} counts something, and cannot be below 0.")

    @property
    def listed_after(self) -> timedelta:
        """Age of a claim from which it must be read, for the list of stuck ones or for the alert."""
        return min(self.stuck, self.sending)


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that holds."""

    name: str
    """Stable: `failed`, `inbox_failed`, `skipped`, `oldest`, `backlog`, `sending`, `latency`, `retry_rate`, `unserved`,
    `waiting`, `unpruned`, `served_twice`, `lanes` and `relays`."""
    severity: Severity
    destination: str | None
    what: str
    do: str
    consumer: str | None = None
    """Of an alert about an inbox."""


def find_alerts(status: Status, thresholds: Thresholds, *, store: str | None = None) -> Sequence[Alert]:
    """Find the alerts that hold, the worst first, then by destination.

    `store` is the name of the store where there are several: the commands in the advice then choose it.
    """
    alerts = [alert for one in status.destinations for alert in _check_destination(status, one, thresholds)]
    alerts += _check_skipped(status, thresholds)
    alerts += _check_tries(status, thresholds)
    alerts += _check_relays(status, thresholds, unserved=any(alert.name == "unserved" for alert in alerts))
    alerts += _check_claims(status, thresholds)
    alerts += _check_inboxes(status, thresholds)
    if store is not None:
        alerts = [
            msgspec.structs.replace(alert, do=_COMMAND.sub(lambda found: choose_store(found[0], store), alert.do))
            for alert in alerts
        ]
    rank = [Severity.CRITICAL, Severity.WARNING, Severity.INFO]
    return sorted(
        alerts,
        key=lambda alert: (rank.index(alert.severity), alert.destination or "", alert.name, alert.consumer or ""),
    )


def _check_destination(status: Status, one: DestinationStatus, limits: Thresholds) -> Iterator[Alert]:
    if one.name == SKIPPED_DESTINATION:
        return
    if one.failed > limits.failed:
        yield Alert(
            name="failed",
            severity=Severity.CRITICAL,
            destination=one.name,
            what=f"{_format_count(one, 'failed')} for {one.name} "
            f"{_choose(one.failed, 'has failed and needs', 'have failed and need')} attention.",
            do=f"See why with `pillarbox failures --destination {one.name}`, fix the cause, then "
            f"`pillarbox messages redrive --destination {one.name}`.",
        )
    if one.handed_off_to is not None:
        yield from _check_handed_off(status, one, limits)
        return
    waiting = one.due + one.later + one.sending
    if waiting and not one.is_served:
        yield Alert(
            name="unserved",
            severity=Severity.CRITICAL,
            destination=one.name,
            what=f"No relay serves {one.name}, and {_format_count(one, 'due', 'later', 'sending')} "
            f"{_choose(waiting, 'waits', 'wait')}.",
            do=f"Start a relay with --to {one.name}=URL, or correct the route that names {one.name}.",
        )
    yield from _check_lanes(status, one)
    yield from _check_waiting(status, one, limits)
    yield from _check_deliveries(status, one, limits)


def _check_lanes(status: Status, one: DestinationStatus) -> Iterator[Alert]:
    """Check that the live relays own all lanes, once one of them had the time to take them."""
    serving = [relay for relay in status.relays if one.name in relay.destinations]
    had_time = any(one.started_at is not None and status.at - one.started_at > _TAKING_LANES for one in serving)
    free = PARTITIONS - one.lanes
    if free > 0 and had_time:
        relays = f"{len(serving)} live {_choose(len(serving), 'relay serves', 'relays serve')}"
        yield Alert(
            name="lanes",
            severity=Severity.WARNING,
            destination=one.name,
            what=f"{free} of the {PARTITIONS} lanes of {one.name} {_choose(free, 'has', 'have')} no owner, and "
            f"messages in them wait: {relays} it.",
            do=f"If this lasts longer than a takeover, start another relay of {one.name}, or raise "
            "--max-lanes (`max_lanes`) of those that are there.",
        )


def _check_handed_off(status: Status, one: DestinationStatus, limits: Thresholds) -> Iterator[Alert]:
    """Check a destination that another engine delivers. Its messages stay open until they are pruned."""
    if one.is_served:
        yield Alert(
            name="served_twice",
            severity=Severity.CRITICAL,
            destination=one.name,
            what=f"{one.name} is handed off to {one.handed_off_to}, and a relay serves it too: it is delivered twice.",
            do=f"Restart that relay with this configuration, or take `handoff` out of [destinations.{one.name}].",
        )
    age = status.oldest_age(one)
    if age > limits.unpruned:
        yield Alert(
            name="unpruned",
            severity=Severity.WARNING,
            destination=one.name,
            what=f"{_format_count(one, 'due', 'later')} for {one.name}, which is handed off to {one.handed_off_to}, "
            f"{_choose(one.due + one.later, 'is', 'are')} not pruned, the oldest for {format_duration(_round(age))}.",
            do=f"Look at the slot with `pillarbox doctor`, and run `pillarbox handoff prune --destination {one.name}` "
            "regularly.",
        )


def _check_waiting(status: Status, one: DestinationStatus, limits: Thresholds) -> Iterator[Alert]:
    age = status.oldest_age(one)
    severity = _grade(age > limits.oldest_warning, age > limits.oldest_critical)
    if severity is not None:
        yield Alert(
            name="oldest",
            severity=severity,
            destination=one.name,
            what=f"The longest waiting message for {one.name} has been due for {format_duration(_round(age))}.",
            do=_suggest(status, one),
        )
    lasts = age > limits.backlog_for
    severity = _grade(lasts and one.due > limits.backlog_warning, one.due > limits.backlog_critical)
    if severity is not None:
        some = f", some for over {format_duration(limits.backlog_for)}" if lasts else ""
        yield Alert(
            name="backlog",
            severity=severity,
            destination=one.name,
            what=f"{_format_count(one, 'due')} for {one.name} are due{some}.",
            do=_suggest(status, one),
        )


def _check_deliveries(status: Status, one: DestinationStatus, limits: Thresholds) -> Iterator[Alert]:
    window = f"in the last {format_duration(status.window)}"
    if one.latency is not None and one.latency.average > limits.latency:
        yield Alert(
            name="latency",
            severity=Severity.WARNING,
            destination=one.name,
            what=f"Deliveries to {one.name} took {format_duration(_round(one.latency.average))} on average {window}.",
            do=_MORE_RELAYS,
        )
    if one.retry_rate > limits.retry_rate:
        yield Alert(
            name="retry_rate",
            severity=Severity.WARNING,
            destination=one.name,
            what=f"{one.retried:,} of {one.attempts:,} attempts to deliver to {one.name} failed {window} "
            f"({one.retry_rate:.0%}).",
            do=f"See the errors with `pillarbox failures --attempts --destination {one.name}`, and ask the "
            "destination's owner.",
        )


def _check_relays(status: Status, limits: Thresholds, *, unserved: bool) -> Iterator[Alert]:
    alive = len(status.relays)
    if alive < limits.relays and not unserved:
        count = {0: "No relay is", 1: "Only 1 relay is"}.get(alive, f"Only {alive} relays are")
        yield Alert(
            name="relays",
            severity=Severity.WARNING,
            destination=None,
            what=f"{count} alive{', so new messages would wait' if not alive else ''}.",
            do="Start one with `pillarbox relay`, or set `relays` under [alerts] to how many there should be.",
        )


def _check_skipped(status: Status, limits: Thresholds) -> Iterator[Alert]:
    count, topics = status.skipped, status.skipped_topics
    if count <= limits.skipped:
        return
    named = ", ".join(topics[:_TOPICS]) + (", …" if len(topics) > _TOPICS else "")
    of = f" of {_choose(len(topics), 'topic', 'topics')} {named}" if topics else ""
    yield Alert(
        name="skipped",
        severity=Severity.WARNING,
        destination=None,
        what=f"{count:,}{'+' if status.skipped_more else ''} {_choose(count, 'message', 'messages')}{of} "
        f"{_choose(count, 'was', 'were')} sent nowhere, because no route takes {_choose(count, 'it', 'them')}.",
        do="List them with `pillarbox messages list --state skipped` and correct the routes; then "
        "`pillarbox messages redrive --state skipped --to NAME` sends them, and "
        "`pillarbox messages discard --state skipped --reason TEXT` closes them.",
    )


def _check_tries(status: Status, limits: Thresholds) -> Iterator[Alert]:
    for one in status.waiting:
        age = status.at - one.since
        severity = _grade(age > limits.oldest_warning, age > limits.oldest_critical)
        if severity is not None:
            count = f"{one.count:,}{'+' if one.more else ''} {_choose(one.count, 'message', 'messages')}"
            tried = f"the oldest was tried {one.tries} {_choose(one.tries, 'time', 'times')} in"
            yield Alert(
                name="waiting",
                severity=severity,
                destination=one.destination,
                what=f"{count} of topic {one.topic} for {one.destination} {_choose(one.count, 'waits', 'wait')}, "
                f"{tried if one.tries else 'the oldest for'} {format_duration(_round(age))}: {one.error}",
                do=f"Fix what the error names; the relay probes by itself, and delivers them then. See every try with "
                f"`pillarbox messages show {one.oldest_id}`.",
            )


def _check_claims(status: Status, limits: Thresholds) -> Iterator[Alert]:
    old = [claim for claim in status.stuck if status.at - claim.claimed_at > limits.sending]
    if old:
        count = sum(len(claim.message_ids) for claim in old)
        yield Alert(
            name="sending",
            severity=Severity.WARNING,
            destination=None,
            what=f"{count:,} {_choose(count, 'message has', 'messages have')} been sending for over "
            f"{format_duration(limits.sending)}.",
            do="See which relay has them with `pillarbox messages list --stuck`; restart that relay if it hangs.",
        )


def _check_inboxes(status: Status, limits: Thresholds) -> Iterator[Alert]:
    for one in status.inboxes:
        if one.failed > limits.inbox_failed:
            count = f"{one.failed:,}{'+' if one.more else ''} {_choose(one.failed, 'message', 'messages')}"
            chosen = f"--consumer {shlex.quote(one.consumer)}"
            age = format_duration(_round(max(status.at - one.oldest_at, timedelta(0))))
            yield Alert(
                name="inbox_failed",
                severity=Severity.CRITICAL,
                destination=None,
                consumer=one.consumer,
                what=f"{count} that {one.consumer} could not handle {_choose(one.failed, 'needs', 'need')} "
                f"attention, the oldest for {age}.",
                do=f"See why with `pillarbox inbox list {chosen}`, fix the cause, then "
                f"`pillarbox inbox redrive {chosen}`.",
            )


def _suggest(status: Status, one: DestinationStatus) -> str:
    if one.pause is not None:
        return f"{one.name} is paused by {one.pause.by}: `pillarbox resume {one.name}` when it may go on."
    if not one.is_served:
        return f"No relay serves {one.name}: start one with --to {one.name}=URL."
    if not one.reachable:
        return f"No relay can reach {one.name}: look at the destination, and at `pillarbox doctor`."
    blocked = [key for key in status.blocked if key.destination == one.name]
    behind, retrying = sum(key.waiting for key in blocked), status.retrying.get(one.name, 0)
    reasons = [_explain_blocked(blocked)] if behind else []
    if retrying > sum(not key.is_held for key in blocked):
        reasons.append(_explain_retries(one, retrying))
    if not reasons:
        return _MORE_RELAYS
    is_counted = retrying < RETRIES_COUNTED_TO and not any(key.more for key in blocked)
    if is_counted and behind + retrying < one.due:
        reasons.append(f"For the others: {_MORE_RELAYS[0].lower()}{_MORE_RELAYS[1:]}")
    return " ".join(reasons)


def _explain_retries(one: DestinationStatus, retrying: int) -> str:
    """Say what waits for another attempt, and where its errors are."""
    more = "+" if retrying >= RETRIES_COUNTED_TO else ""
    return (
        f"{retrying:,}{more} {_choose(retrying, 'message waits', 'messages wait')} for another attempt: see why with "
        f"`pillarbox failures --attempts --destination {one.name}`."
    )


def _explain_blocked(blocked: Sequence[BlockedKeyStatus]) -> str:
    """Say what messages wait behind, and what to do about it: first what a person must decide."""
    first = blocked[0]
    count = sum(key.waiting for key in blocked)
    more = "+" if any(key.more for key in blocked) else ""
    keys = _choose(len(blocked), "key", "keys")
    key = first.key if len(first.key) <= _KEY_LENGTH else f"{first.key[: _KEY_LENGTH - 1]}…"
    waits = (
        f"{count:,}{more} {_choose(count, 'message waits', 'messages wait')} behind others of {len(blocked):,} {keys}."
    )
    head = f"message {first.head_id} of the key {key}"
    if not first.is_held:
        return (
            f"{waits} First is {head}, which is tried again: see why with `pillarbox messages show {first.head_id}`, "
            "and fix the cause or discard it."
        )
    return (
        f"{waits} First is {head}, which is held: fix the cause, then `pillarbox messages redrive {first.head_id}`, or "
        f"`pillarbox messages discard {first.head_id} --reason TEXT`; see all with `pillarbox messages list "
        f"--phase held --destination {first.destination}`."
    )


def choose_store(command: str, store: str) -> str:
    """Return a command line that means this store: where there are several, most commands work on one."""
    return _WORDS.sub(lambda found: f"{found[0]} --store {shlex.quote(store)}", command)


def _grade(warning: bool, critical: bool) -> Severity | None:
    if critical:
        return Severity.CRITICAL
    return Severity.WARNING if warning else None


def _format_count(one: DestinationStatus, *names: str) -> str:
    count = sum(getattr(one, name) for name in names)
    more = "+" if any(name in one.more for name in names) else ""
    return f"{count:,}{more} {_choose(count, 'message', 'messages')}"


def _choose(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural


def _round(length: timedelta) -> timedelta:
    return timedelta(seconds=round(length.total_seconds()))
