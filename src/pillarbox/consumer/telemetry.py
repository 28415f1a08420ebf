"""Telemetry of a consumer: the callbacks, and the log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final

from pillarbox.clock import Clock, SystemClock
from pillarbox.cloudevents import CloudEvent
from pillarbox.contracts.receiver import FallbackIdentity
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_error, redact_line
from pillarbox.telemetry import SUMMARY_EVERY, OutageLines

__all__ = ["CompositeConsumerTelemetry", "ConsumerTelemetry", "LoggingConsumerTelemetry", "log"]

log: Final = logging.getLogger("pillarbox.consumer")
_MOST_TYPES: Final = 1_000
"""Types that are remembered, and so logged once: senders choose their names."""


class ConsumerTelemetry:
    """Callbacks of a consumer. Each does nothing: override those of interest."""

    def on_handling(self, consumer: str, event: CloudEvent) -> AbstractContextManager[None]:
        """Return a context manager that is entered around the transaction of each message."""
        return nullcontext()

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        """A message was handled, and its transaction has committed."""

    def on_duplicate(self, consumer: str, event: CloudEvent) -> None:
        """A message came again and did nothing."""

    def on_ignored(self, consumer: str, event: CloudEvent) -> None:
        """No handler matches a message; it was acknowledged."""

    def on_retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        """A handler failed; it is called again after that time."""

    def on_failed(self, consumer: str, identity: FallbackIdentity, *, attempts: int, error: str) -> None:
        """A message is kept as failed."""

    def on_conflict(self, consumer: str, event: CloudEvent, *, error: str) -> None:
        """A transaction conflicted with another one, and is repeated. No attempt is spent."""

    def on_store_failed(self, consumer: str, error: Exception) -> None:
        """The database cannot be reached; the call is repeated."""

    def on_broker_failed(self, consumer: str, error: Exception) -> None:
        """The broker cannot be reached; the call is repeated."""

    def on_store_answered(self, consumer: str) -> None:
        """The database answered. Called about once per `poll_interval`."""

    def on_broker_answered(self, consumer: str) -> None:
        """The broker answered after it had failed."""

    def on_turn(self, consumer: str, *, is_last: bool = False) -> None:
        """About once per `poll_interval`, and once more when the consumer has finished."""

    def on_ended(self, consumer: str, error: BaseException) -> None:
        """A consumer that runs in the background of its block has ended with an error, and handles nothing more."""

    def on_started(self, consumer: str) -> None:
        """The receiver is open, and messages are handled from now on."""

    def on_full(self, consumer: str, *, set_aside: int, size: int) -> None:
        """So many messages wait behind failing or slow ones that nothing is received until some of them are done."""

    def on_cleanup_failed(self, consumer: str, error: Exception) -> None:
        """Old records could not be removed from the inbox; that is tried again an hour later."""

    def on_short_window(self, consumer: str, *, retention: str, horizon: str) -> None:
        """The dedup window is shorter than the time in which the broker may deliver a message again."""


class CompositeConsumerTelemetry(ConsumerTelemetry):
    """Passes every call on to several telemetries, in order."""

    def __init__(self, *telemetries: ConsumerTelemetry) -> None:
        self._telemetries = telemetries

    @contextmanager
    def on_handling(self, consumer: str, event: CloudEvent) -> Iterator[None]:
        with ExitStack() as stack:
            for telemetry in self._telemetries:
                stack.enter_context(telemetry.on_handling(consumer, event))
            yield

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        for telemetry in self._telemetries:
            telemetry.on_handled(consumer, event, seconds=seconds)

    def on_duplicate(self, consumer: str, event: CloudEvent) -> None:
        for telemetry in self._telemetries:
            telemetry.on_duplicate(consumer, event)

    def on_ignored(self, consumer: str, event: CloudEvent) -> None:
        for telemetry in self._telemetries:
            telemetry.on_ignored(consumer, event)

    def on_retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        for telemetry in self._telemetries:
            telemetry.on_retried(consumer, event, attempt=attempt, error=error, seconds=seconds)

    def on_failed(self, consumer: str, identity: FallbackIdentity, *, attempts: int, error: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_failed(consumer, identity, attempts=attempts, error=error)

    def on_conflict(self, consumer: str, event: CloudEvent, *, error: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_conflict(consumer, event, error=error)

    def on_store_failed(self, consumer: str, error: Exception) -> None:
        for telemetry in self._telemetries:
            telemetry.on_store_failed(consumer, error)

    def on_broker_failed(self, consumer: str, error: Exception) -> None:
        for telemetry in self._telemetries:
            telemetry.on_broker_failed(consumer, error)

    def on_store_answered(self, consumer: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_store_answered(consumer)

    def on_broker_answered(self, consumer: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_broker_answered(consumer)

    def on_turn(self, consumer: str, *, is_last: bool = False) -> None:
        for telemetry in self._telemetries:
            telemetry.on_turn(consumer, is_last=is_last)

    def on_ended(self, consumer: str, error: BaseException) -> None:
        for telemetry in self._telemetries:
            telemetry.on_ended(consumer, error)

    def on_started(self, consumer: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_started(consumer)

    def on_full(self, consumer: str, *, set_aside: int, size: int) -> None:
        for telemetry in self._telemetries:
            telemetry.on_full(consumer, set_aside=set_aside, size=size)

    def on_cleanup_failed(self, consumer: str, error: Exception) -> None:
        for telemetry in self._telemetries:
            telemetry.on_cleanup_failed(consumer, error)

    def on_short_window(self, consumer: str, *, retention: str, horizon: str) -> None:
        for telemetry in self._telemetries:
            telemetry.on_short_window(consumer, retention=retention, horizon=horizon)


class LoggingConsumerTelemetry(ConsumerTelemetry):
    """Logs starts, outages and failures, and what was handled once a minute. Each message is logged at debug.

    The fields are in `extra`, where a JSON formatter finds them. Of messages that no handler takes, the first of each
    type is a warning. An outage is one line when it begins, one a minute, and one when it ends.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._ignored: set[tuple[str, str]] = set()
        self._counts: dict[str, list[int]] = {}
        """Consumer to how many messages were handled and came again since the last summary."""
        self._summed_at = self._clock.monotonic()
        self._away: dict[tuple[str, str], OutageLines] = {}
        """Outages of the broker and the database of each consumer."""

    def on_turn(self, consumer: str, *, is_last: bool = False) -> None:
        now = self._clock.monotonic()
        if not is_last and now - self._summed_at < SUMMARY_EVERY:
            return
        for name, (handled, repeats) in sorted(self._counts.items()):
            extra = {"consumer": name, "handled": handled, "repeats": repeats}
            text = "%s handled %d in %.0f s" + (", and %d came again" if repeats else "")
            log.info(text, name, handled, now - self._summed_at, *([repeats] if repeats else []), extra=extra)
        self._counts.clear()
        self._summed_at = now

    def _count(self, consumer: str) -> list[int]:
        return self._counts.setdefault(consumer, [0, 0])

    def _outage(self, what: str, consumer: str) -> OutageLines:
        known = self._away.get((what, consumer))
        if known is None:
            subject = f"the {what} of the consumer {consumer}"
            known = OutageLines(subject, log=log, clock=self._clock, extra={"consumer": consumer})
            self._away[what, consumer] = known
        return known

    def on_handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        self._count(consumer)[0] += 1
        if log.isEnabledFor(logging.DEBUG):
            log.debug("handled %s", event.message_id, extra=_fields(consumer, event) | {"seconds": seconds})

    def on_duplicate(self, consumer: str, event: CloudEvent) -> None:
        self._count(consumer)[1] += 1
        log.debug("%s came again and was done already", event.message_id, extra=_fields(consumer, event))

    def on_ignored(self, consumer: str, event: CloudEvent) -> None:
        fields = _fields(consumer, event)
        kind = (consumer, event.type)
        if kind in self._ignored or len(self._ignored) >= _MOST_TYPES:
            log.debug("no handler takes %s of type %s", event.message_id, redact_line(event.type), extra=fields)
            return
        self._ignored.add(kind)
        log.warning(
            "no handler of %s takes the type %s: its messages are acknowledged and ignored; register a handler, or set "
            "unknown to fail, which keeps them",
            consumer,
            redact_line(event.type),
            extra=fields,
        )

    def on_retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        extra = _fields(consumer, event) | {"attempt": attempt, "error": error}
        log.warning("attempt %d on %s, again in %.1f s: %s", attempt, event.message_id, seconds, error, extra=extra)

    def on_failed(self, consumer: str, identity: FallbackIdentity, *, attempts: int, error: str) -> None:
        extra = {
            "consumer": consumer,
            "message_id": identity.message_id,
            "type": identity.type,
            "topic": identity.topic,
            "attempt": attempts,
            "error": error,
        }
        log.warning("failed %s after %d attempts: %s", identity.message_id, attempts, error, extra=extra)

    def on_conflict(self, consumer: str, event: CloudEvent, *, error: str) -> None:
        log.debug("repeating %s: %s", event.message_id, error, extra=_fields(consumer, event) | {"error": error})

    def on_store_failed(self, consumer: str, error: Exception) -> None:
        self._note_failure("database", consumer, error, what="a transaction")

    def on_broker_failed(self, consumer: str, error: Exception) -> None:
        if isinstance(error, TransportUnavailable):
            self._note_failure("broker", consumer, error, what="a call")
            return
        reason = redact_error(error)
        text = "the receiver of the consumer %s failed: %s"
        log.warning(text, consumer, reason, extra={"consumer": consumer, "error": reason})

    def _note_failure(self, place: str, consumer: str, error: Exception, *, what: str) -> None:
        outage = self._outage(place, consumer)
        outage.note_failure(what, redact_error(error))
        outage.remind()

    def on_store_answered(self, consumer: str) -> None:
        if ("database", consumer) in self._away:
            self._outage("database", consumer).note_answer()

    def on_broker_answered(self, consumer: str) -> None:
        self._outage("broker", consumer).note_answer(is_only_call=True)

    def on_ended(self, consumer: str, error: BaseException) -> None:
        reason = redact_error(error)
        log.critical("the consumer %s has ended: %s", consumer, reason, extra={"consumer": consumer, "error": reason})

    def on_started(self, consumer: str) -> None:
        log.info("the consumer %s runs", consumer, extra={"consumer": consumer})

    def on_full(self, consumer: str, *, set_aside: int, size: int) -> None:
        log.error(
            "nothing is received until some are done: %d messages wait behind failing or slow ones, and the bodies of "
            "all take %d bytes; fix the handler, or raise set_aside or pending_bytes",
            set_aside,
            size,
            extra={"consumer": consumer, "set_aside": set_aside, "bytes": size},
        )

    def on_cleanup_failed(self, consumer: str, error: Exception) -> None:
        reason = redact_error(error)
        log.warning(
            "old records stay in the inbox of this consumer: %s; let its login delete there, or leave that to a relay",
            reason,
            extra={"consumer": consumer, "error": reason},
        )

    def on_short_window(self, consumer: str, *, retention: str, horizon: str) -> None:
        log.warning(
            "handled messages are remembered for %s, and the broker may deliver one again after up to %s: a duplicate "
            "that late would be handled again; raise the retention",
            retention,
            horizon,
            extra={"consumer": consumer},
        )


def _fields(consumer: str, event: CloudEvent) -> dict[str, object]:
    return {
        "consumer": consumer,
        "message_id": event.message_id,
        "correlation_id": event.correlation_id,
        "type": event.type,
        "topic": event.topic,
    }
