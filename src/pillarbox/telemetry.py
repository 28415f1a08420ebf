"""Telemetry of the relay: the callbacks, log lines, and the names of metrics and span attributes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

from pillarbox.clock import Clock, SystemClock
from pillarbox.contracts.store import LATENCY_BOUNDS, FailedOutcome
from pillarbox.durations import format_duration
from pillarbox.errors import StoreUnavailable
from pillarbox.message import SKIPPED_DESTINATION, Message, State
from pillarbox.redaction import find_place, redact_line

__all__ = [
    "ATTEMPT",
    "ATTEMPTS_FAILED",
    "BLOCKED_ADDRESSES",
    "BODY_SIZE",
    "BREAKER_OPEN",
    "CONSUMER_GROUP",
    "CONVERSATION_ID",
    "DELIVERED",
    "DESTINATION",
    "DESTINATION_SERVED",
    "END_TO_END",
    "FAILED",
    "FAILED_NOW",
    "FENCED",
    "INBOX_DUPLICATES",
    "INBOX_FAILED",
    "INBOX_FAILED_NOW",
    "INBOX_HANDLED",
    "INBOX_IGNORED",
    "INBOX_RETRIED",
    "LATENCY",
    "LATENCY_BUCKETS",
    "LEASES",
    "MAX_AGE",
    "MESSAGE_ID",
    "OPERATION",
    "OPERATION_TYPE",
    "PAUSED",
    "RELAYS",
    "RETURNED",
    "SKIPPED_NOW",
    "STORES",
    "STORE_UP",
    "STUCK",
    "SUMMARY_EVERY",
    "SYSTEM",
    "TOPIC",
    "TYPE",
    "UNSENT",
    "CompositeTelemetry",
    "LoggingTelemetry",
    "OutageLines",
    "Telemetry",
    "current_store",
    "in_store",
]


# Metrics. Counters get the suffix `_total` from the client library.
UNSENT: Final = "outbox_unsent_count"
MAX_AGE: Final = "outbox_max_age_seconds"
STUCK: Final = "outbox_stuck_messages"
FAILED_NOW: Final = "outbox_failed_messages"
SKIPPED_NOW: Final = "outbox_skipped_messages"
DELIVERED: Final = "outbox_delivered"
FAILED: Final = "outbox_failed"
ATTEMPTS_FAILED: Final = "outbox_retried"
RETURNED: Final = "outbox_returned"
FENCED: Final = "outbox_fenced"
LATENCY: Final = "outbox_delivery_latency_seconds"
END_TO_END: Final = "outbox_end_to_end_seconds"
BREAKER_OPEN: Final = "outbox_breaker_open"
BLOCKED_ADDRESSES: Final = "outbox_blocked_addresses"
PAUSED: Final = "outbox_paused"
LEASES: Final = "outbox_leases"
RELAYS: Final = "outbox_relays"
DESTINATION_SERVED: Final = "outbox_destination_relays"
STORES: Final = "outbox_stores"
STORE_UP: Final = "outbox_store_up"
PROCESS_UP: Final = "outbox_process_up"
PROCESS_RESTARTS: Final = "outbox_process_restarts"
INBOX_HANDLED: Final = "inbox_handled"
INBOX_DUPLICATES: Final = "inbox_duplicates"
INBOX_FAILED: Final = "inbox_failed"
INBOX_FAILED_NOW: Final = "inbox_failed_messages"
INBOX_RETRIED: Final = "inbox_retried"
INBOX_IGNORED: Final = "inbox_ignored"

LATENCY_BUCKETS: Final = LATENCY_BOUNDS
"""Seconds."""

# Span attributes, from OpenTelemetry's conventions for messaging where they have one.
SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BODY_SIZE: Final = "messaging.message.body.size"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
ATTEMPT: Final = "pillarbox.attempt"
TOPIC: Final = "pillarbox.topic"
TYPE: Final = "pillarbox.type"


class Telemetry:
    """Callbacks of a relay. Each does nothing: override those of interest. They are called per batch where possible."""

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        """The destination acknowledged these."""

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        """A message was not delivered: it waits for another attempt, is held, or failed."""

    def on_tried(self, destination: str, tries: Sequence[tuple[Message, FailedOutcome]], *, why: str) -> None:
        """These were sent and not delivered, and no attempt was spent. `why` says why they are not given up."""

    def on_returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        """Messages returned to the table unchanged: no attempt was spent."""

    def on_settled(self, destination: str, *, delivered: int, failed: int) -> None:
        """A batch of outcomes was recorded."""

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        """Nothing is sent to the destination for that long. Called again after each probe that failed."""

    def on_breaker_closed(self, destination: str) -> None:
        """Messages are sent to the destination again."""

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        """The destination is down. `is_reachable`: it answers, and acknowledges nothing."""

    def on_recovered(self, destination: str) -> None:
        """The destination is no longer down."""

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        """One address of the destination takes nothing. `is_missing`: it does not exist, or is forbidden."""

    def on_address_unblocked(self, destination: str, address: str) -> None:
        """The address takes messages again, or nothing waits for it any more."""

    def on_paused(self, destination: str, *, reason: str) -> None:
        """The destination was paused."""

    def on_resumed(self, destination: str) -> None:
        """The destination was resumed."""

    def on_lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        """The relay owns more lanes, and so many messages that dead relays had in flight."""

    def on_lanes_released(self, destination: str, partitions: Iterable[int]) -> None:
        """The relay released lanes to others."""

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        """A write was refused, because another relay owns those lanes."""

    def on_started(self, relay: str, *, relay_id: str) -> None:
        """The relay is in the registry and begins to deliver. `relay` names its store, redacted, and destinations."""

    def on_lease_lost(self, *, reason: str) -> None:
        """The relay dropped everything and starts again under a new id."""

    def on_store_failed(self, what: str, error: Exception) -> None:
        """The store could not be reached; the call is repeated."""

    def on_store_answered(self) -> None:
        """The store answered a heartbeat, as it does several times in every lease."""

    def on_turn(self, *, is_last: bool = False) -> None:
        """Some seconds have passed, or the relay ends (`is_last`): what was added up may be reported."""

    def on_set_aside(self, destination: str, message: Message, *, reason: str) -> None:
        """The store refuses to record anything about a message: it stays with this relay, and is not sent again."""

    def on_run_broken(self, destination: str, messages: Sequence[Message]) -> None:
        """The transport acknowledged these behind a message of their key that it did not acknowledge, in one send.

        They may have arrived out of order. They are sent again in order, and from now on one of a key at a time.
        """

    def on_duty_failed(self, what: str, error: Exception) -> None:
        """A duty such as cleaning failed; it is repeated at its next turn."""

    def on_cleaned(self, *, messages: int, inbox: int) -> None:
        """The janitor removed closed messages and dedup records."""

    def on_directory_failed(self, reason: str) -> None:
        """The tenants could not be asked for, or one that was found cannot be served."""


_store: ContextVar[str | None] = ContextVar("pillarbox_store", default=None)


@contextmanager
def in_store(name: str) -> Iterator[None]:
    """Note that what runs in the block, and the tasks that it starts, belongs to the store with that name."""
    token = _store.set(name)
    try:
        yield
    finally:
        _store.reset(token)


def current_store() -> str | None:
    """Return the name of the store that the running code belongs to; None where there is only one."""
    return _store.get()


log: Final = logging.getLogger("pillarbox.relay")
_MAX_LINES: Final = 3
"""Most lines about the tries of one send."""
_MOST_TOPICS: Final = 1_000
"""Most topics without a route that are remembered, so that each is reported once."""
SUMMARY_EVERY: Final = 60.0
"""Seconds between two lines about what was delivered, or about a store that is away."""


def _describe_error(failure: FailedOutcome) -> str:
    """Return the error, and for the exception of a handler the line of code that raised it."""
    place = find_place(failure.detail)
    return f"{failure.error} (at {place})" if place else f"{failure.error}"


class LoggingTelemetry(Telemetry):
    """Logs starts, stops, takeovers, outages and failures, and what was delivered once a minute.

    The fields are in `extra`, where a JSON formatter finds them.
    """

    def __init__(self, *, deliveries: int = logging.DEBUG, clock: Clock | None = None) -> None:
        self._deliveries = deliveries
        """Level of the line for each single delivery."""
        self._clock = SystemClock() if clock is None else clock
        self._settled: dict[str, list[int]] = {}
        """Destination to how many messages were delivered and not delivered since the last summary."""
        self._summed_at = self._clock.monotonic()
        self._skipped: set[str] = set()
        """Topics without a route that were reported."""
        self._away = OutageLines("the store", log=log, clock=self._clock)

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        if log.isEnabledFor(self._deliveries):
            for message in messages:
                fields = _fields(destination, message)
                log.log(self._deliveries, "delivered %s to %s", message.message_id, destination, extra=fields)

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        spent = {"attempt": failure.attempts, "error": failure.error, "tries": failure.tries}
        fields = _fields(destination, message) | spent
        if failure.state is State.SKIPPED:
            self._log_skipped(message, fields)
            return
        # Where the two counts are the same, one is enough.
        tries = "" if failure.tries in (0, failure.attempts) else f" and {_describe_tries(failure)}"
        attempts = "attempt" if failure.attempts == 1 else "attempts"
        match failure.waits:
            case None:
                text = f"{failure.state.value} %s to %s after %d {attempts}%s: %s"
            case "held":
                text = f"held %s to %s after %d {attempts}%s, its key waits: %s"
            case _:
                text = "will retry %s to %s after attempt %d%s: %s"
        error = _describe_error(failure)
        log.warning(text, message.message_id, destination, failure.attempts, tries, error, extra=fields)

    def _log_skipped(self, message: Message, fields: Mapping[str, object]) -> None:
        """Report the first message of each topic. A service may publish many events that no route takes."""
        is_news = message.topic not in self._skipped and len(self._skipped) < _MOST_TOPICS
        if is_news:
            self._skipped.add(message.topic)
        more = "; further ones of this topic are only counted" if is_news else ""
        text = f"skipped %s of topic %s, because no route takes it{more}"
        level = logging.WARNING if is_news else logging.DEBUG
        log.log(level, text, message.message_id, redact_line(message.topic), extra=fields)

    def on_tried(self, destination: str, tries: Sequence[tuple[Message, FailedOutcome]], *, why: str) -> None:
        for message, failure in tries[:_MAX_LINES]:
            spent = {"attempt": failure.attempts, "error": failure.error, "tries": failure.tries}
            fields = _fields(destination, message) | spent
            text = "tried %s to %s (type %s, topic %s, correlation %s; %s, attempts %d), not given up because %s: %s"
            names = (redact_line(message.type), redact_line(message.topic), redact_line(message.correlation_id))
            counts, error = (_describe_tries(failure), failure.attempts), _describe_error(failure)
            log.warning(text, message.message_id, destination, *names, *counts, why, error, extra=fields)
        if len(tries) > _MAX_LINES:
            more = len(tries) - _MAX_LINES
            log.warning("and %d more to %s, as their journals say", more, destination, extra=_fields(destination))

    def on_returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        if not messages:
            return
        log.debug("gave %d messages for %s back: %s", len(messages), destination, reason, extra=_fields(destination))

    def on_settled(self, destination: str, *, delivered: int, failed: int) -> None:
        if not delivered and not failed:
            return  # messages were only parked or given back
        counts = self._settled.setdefault(destination, [0, 0])
        counts[0] += delivered
        counts[1] += failed
        extra = _fields(destination) | {"delivered": delivered, "not_delivered": failed}
        log.debug("recorded %d delivered, %d not delivered for %s", delivered, failed, destination, extra=extra)

    def on_turn(self, *, is_last: bool = False) -> None:
        self._away.remind()
        now = self._clock.monotonic()
        if not is_last and now - self._summed_at < SUMMARY_EVERY:
            return
        for destination, (delivered, failed) in sorted(self._settled.items()):
            extra = _fields(destination) | {"delivered": delivered, "not_delivered": failed}
            if destination == SKIPPED_DESTINATION:
                text = (
                    "skipped %d in %.0f s, because no route takes them: see `pillarbox messages list --state skipped`"
                )
                log.warning(text, failed, now - self._summed_at, extra=extra)
                continue
            text = "delivered %d to %s in %.0f s" + (", %d not delivered" if failed else "")
            values = (delivered, destination, now - self._summed_at, *([failed] if failed else []))
            log.info(text, *values, extra=extra)
        self._settled.clear()
        self._summed_at = now

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        extra = _fields(destination) | {"error": reason, "seconds": seconds}
        log.debug("backs off from %s for %.1f s: %s", destination, seconds, reason, extra=extra)

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        text = "%s acknowledges nothing, and is probed: %s" if is_reachable else "%s is down, and is probed: %s"
        log.warning(text, destination, reason, extra=_fields(destination) | {"error": reason})

    def on_recovered(self, destination: str) -> None:
        log.warning("%s answers again", destination, extra=_fields(destination))

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        extra = _fields(destination) | {"address": address, "error": reason}
        text = "%s lacks %s, its messages wait: %s" if is_missing else "%s takes nothing for %s, its messages wait: %s"
        log.warning(text, destination, address, reason, extra=extra)

    def on_address_unblocked(self, destination: str, address: str) -> None:
        extra = _fields(destination) | {"address": address}
        log.warning("%s is no longer blocked for %s", destination, address, extra=extra)

    def on_paused(self, destination: str, *, reason: str) -> None:
        log.warning("%s is paused: %s", destination, redact_line(reason), extra=_fields(destination))

    def on_resumed(self, destination: str) -> None:
        log.warning("%s is resumed", destination, extra=_fields(destination))

    def on_lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        lanes = sorted(partitions)
        extra = _fields(destination) | {"lanes": lanes, "inherited": inherited}
        level = logging.DEBUG if destination == SKIPPED_DESTINATION else logging.INFO
        log.log(level, "took %d lanes of %s, inherited %d messages", len(lanes), destination, inherited, extra=extra)

    def on_lanes_released(self, destination: str, partitions: Iterable[int]) -> None:
        lanes = sorted(partitions)
        level = logging.DEBUG if destination == SKIPPED_DESTINATION else logging.INFO
        log.log(level, "left %d lanes of %s", len(lanes), destination, extra=_fields(destination) | {"lanes": lanes})

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        lanes = sorted(partitions)
        extra = _fields(destination) | {"lanes": lanes}
        log.error("refused: another relay owns lanes %s of %s", lanes, destination, extra=extra)

    def on_started(self, relay: str, *, relay_id: str) -> None:
        log.info("the %s runs as %s", relay, relay_id, extra={"relay_id": relay_id})

    def on_lease_lost(self, *, reason: str) -> None:
        log.error("the lease is lost, starting again under a new id: %s", redact_line(reason))

    def on_store_failed(self, what: str, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self._away.note_failure(what, redact_line(str(error)))
            return
        reason = redact_line(str(error))
        log.warning("%s failed, trying again: %s", what, reason, extra={"error": reason})

    def on_store_answered(self) -> None:
        self._away.note_answer()

    def on_set_aside(self, destination: str, message: Message, *, reason: str) -> None:
        extra = _fields(destination, message) | {"error": reason}
        text = "set %s to %s aside, because the store refuses to record anything about it: %s"
        log.error(text, message.message_id, destination, reason, extra=extra)

    def on_run_broken(self, destination: str, messages: Sequence[Message]) -> None:
        text = (
            "the transport of %s broke its promise for runs: it acknowledged %s and %d more behind a message of the "
            "same key that it did not acknowledge. They may have arrived out of order, and are sent again. From now on "
            "one message of a key goes at a time; report this to the author of the transport"
        )
        fields = _fields(destination, messages[0])
        log.error(text, destination, messages[0].message_id, len(messages) - 1, extra=fields)

    def on_duty_failed(self, what: str, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self._away.note_failure(what, redact_line(str(error)))
            return
        reason = redact_line(f"{type(error).__name__}: {error}")
        log.warning("%s failed, trying again later: %s", what, reason, extra={"error": reason})

    def on_cleaned(self, *, messages: int, inbox: int) -> None:
        if messages or inbox:
            log.debug("cleaned %d closed messages, %d inbox records", messages, inbox)

    def on_directory_failed(self, reason: str) -> None:
        log.warning("a tenant cannot be served, or tenants cannot be asked for: %s", redact_line(reason))


class OutageLines:
    """Log lines about a store or a broker that is away: one when it goes, one a minute, one when it is back."""

    def __init__(
        self, subject: str, *, log: logging.Logger, clock: Clock, extra: Mapping[str, object] | None = None
    ) -> None:
        self._subject = subject
        self._log = log
        self._clock = clock
        self._extra = {} if extra is None else extra
        self._began_at: float | None = None
        """Since when it is away; None while it is there."""
        self._reported_at = 0.0
        self._reason = ""
        self._failures = 0
        """Failed calls since it went."""
        self._is_failing = False
        """A call failed since the last heartbeat that was answered."""

    def note_failure(self, what: str, reason: str) -> None:
        now, self._is_failing = self._clock.monotonic(), True
        self._reason = reason
        self._failures += 1
        if self._began_at is None:
            self._began_at = self._reported_at = now
            text = "%s is away: %s failed, trying again: %s"
            self._log.warning(text, self._subject, what, reason, extra={**self._extra, "error": reason})
        else:
            extra = {**self._extra, "error": reason}
            self._log.debug("%s failed, trying again: %s", what, reason, extra=extra)

    def note_answer(self, *, is_only_call: bool = False) -> None:
        """Note an answer. It is back when nothing failed between two of them: some calls may work, and others not.

        One is enough where no other calls are made meanwhile.
        """
        if self._began_at is not None and (is_only_call or not self._is_failing):
            text = "%s answers again after %.1f s, and %d failed calls"
            seconds = self._clock.monotonic() - self._began_at
            self._log.warning(text, self._subject, seconds, self._failures, extra=self._extra)
            self._began_at, self._failures = None, 0
        self._is_failing = False

    def remind(self) -> None:
        now = self._clock.monotonic()
        if self._began_at is not None and now - self._reported_at >= SUMMARY_EVERY:
            self._reported_at = now
            text = "%s is away for %.0f s, %d calls have failed: %s"
            values = (self._subject, now - self._began_at, self._failures, self._reason)
            self._log.warning(text, *values, extra={**self._extra, "error": self._reason})


class CompositeTelemetry(Telemetry):
    """Passes every call on to several telemetries, in order."""

    def __init__(self, *telemetries: Telemetry) -> None:
        self._telemetries = telemetries

    def on_delivered(self, destination: str, messages: Sequence[Message]) -> None:
        for telemetry in self._telemetries:
            telemetry.on_delivered(destination, messages)

    def on_failed(self, destination: str, message: Message, failure: FailedOutcome) -> None:
        for telemetry in self._telemetries:
            telemetry.on_failed(destination, message, failure)

    def on_tried(self, destination: str, tries: Sequence[tuple[Message, FailedOutcome]], *, why: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_tried(destination, tries, why=why)

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        for telemetry in self._telemetries:
            telemetry.on_outage(destination, reason=reason, is_reachable=is_reachable)

    def on_recovered(self, destination: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_recovered(destination)

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        for telemetry in self._telemetries:
            telemetry.on_address_blocked(destination, address, reason=reason, is_missing=is_missing)

    def on_address_unblocked(self, destination: str, address: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_address_unblocked(destination, address)

    def on_returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_returned(destination, messages, reason=reason)

    def on_settled(self, destination: str, *, delivered: int, failed: int) -> None:
        for telemetry in self._telemetries:
            telemetry.on_settled(destination, delivered=delivered, failed=failed)

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        for telemetry in self._telemetries:
            telemetry.on_breaker_opened(destination, reason=reason, seconds=seconds)

    def on_breaker_closed(self, destination: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_breaker_closed(destination)

    def on_paused(self, destination: str, *, reason: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_paused(destination, reason=reason)

    def on_resumed(self, destination: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_resumed(destination)

    def on_lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        for telemetry in self._telemetries:
            telemetry.on_lanes_taken(destination, partitions, inherited=inherited)

    def on_lanes_released(self, destination: str, partitions: Iterable[int]) -> None:
        for telemetry in self._telemetries:
            telemetry.on_lanes_released(destination, partitions)

    def on_fenced(self, destination: str, partitions: Iterable[int]) -> None:
        for telemetry in self._telemetries:
            telemetry.on_fenced(destination, partitions)

    def on_started(self, relay: str, *, relay_id: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_started(relay, relay_id=relay_id)

    def on_lease_lost(self, *, reason: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_lease_lost(reason=reason)

    def on_store_failed(self, what: str, error: Exception) -> None:
        for telemetry in self._telemetries:
            telemetry.on_store_failed(what, error)

    def on_store_answered(self) -> None:
        for telemetry in self._telemetries:
            telemetry.on_store_answered()

    def on_turn(self, *, is_last: bool = False) -> None:
        for telemetry in self._telemetries:
            telemetry.on_turn(is_last=is_last)

    def on_set_aside(self, destination: str, message: Message, *, reason: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_set_aside(destination, message, reason=reason)

    def on_run_broken(self, destination: str, messages: Sequence[Message]) -> None:
        for telemetry in self._telemetries:
            telemetry.on_run_broken(destination, messages)

    def on_duty_failed(self, what: str, error: Exception) -> None:
        for telemetry in self._telemetries:
            telemetry.on_duty_failed(what, error)

    def on_cleaned(self, *, messages: int, inbox: int) -> None:
        for telemetry in self._telemetries:
            telemetry.on_cleaned(messages=messages, inbox=inbox)

    def on_directory_failed(self, reason: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_directory_failed(reason)


def _describe_tries(failure: FailedOutcome) -> str:
    """Describe the tries of a message, such as "7 tries in 45s"."""
    if failure.tries <= 1 or failure.tried_for is None:
        return "1 try"
    return f"{failure.tries} tries in {format_duration(timedelta(seconds=round(failure.tried_for.total_seconds())))}"


def _fields(destination: str, message: Message | None = None) -> dict[str, object]:
    if message is None:
        return {"destination": destination}
    return {
        "destination": destination,
        "message_id": str(message.message_id),
        "correlation_id": message.correlation_id,
        "type": message.type,
        "topic": message.topic,
        "attempt": message.attempts + 1,
    }
