"""The one seam through which a consumer tells what happens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final

from pillarbox.cloudevents import CloudEvent
from pillarbox.protocols import Plain

__all__ = ["ConsumerTelemetry", "LoggingConsumerTelemetry", "SeveralConsumerTelemetries"]

log: Final = logging.getLogger("pillarbox.consumer")


class ConsumerTelemetry:
    """Every method does nothing: override what interests you."""

    def handling(self, consumer: str, event: CloudEvent) -> AbstractContextManager[None]:
        """Around the transaction that a message is handled in."""
        return nullcontext()

    def handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        """A message was handled, and its transaction has committed."""

    def duplicate(self, consumer: str, event: CloudEvent) -> None:
        """A message came again and did nothing."""

    def ignored(self, consumer: str, event: CloudEvent) -> None:
        """No handler wants a message; it was acknowledged."""

    def retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        """A handler failed; it is called again after so long."""

    def failed(self, consumer: str, plain: Plain, *, attempts: int, error: str) -> None:
        """A message is kept as failed."""

    def repeated(self, consumer: str, event: CloudEvent, *, error: str) -> None:
        """A transaction met another one, and is repeated. No attempt is spent."""

    def store_failed(self, consumer: str, error: Exception) -> None:
        """The database cannot be reached; it is tried again."""

    def broker_failed(self, consumer: str, error: Exception) -> None:
        """The broker cannot be reached; it is tried again."""

    def window_short(self, consumer: str, *, retention: str, horizon: str) -> None:
        """Handled messages are forgotten before the broker has stopped to deliver them again."""


class SeveralConsumerTelemetries(ConsumerTelemetry):
    """Tells several of them, in order."""

    def __init__(self, *telemetries: ConsumerTelemetry) -> None:
        self._telemetries = telemetries

    @contextmanager
    def handling(self, consumer: str, event: CloudEvent) -> Iterator[None]:
        with ExitStack() as stack:
            for one in self._telemetries:
                stack.enter_context(one.handling(consumer, event))
            yield

    def handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        for one in self._telemetries:
            one.handled(consumer, event, seconds=seconds)

    def duplicate(self, consumer: str, event: CloudEvent) -> None:
        for one in self._telemetries:
            one.duplicate(consumer, event)

    def ignored(self, consumer: str, event: CloudEvent) -> None:
        for one in self._telemetries:
            one.ignored(consumer, event)

    def retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        for one in self._telemetries:
            one.retried(consumer, event, attempt=attempt, error=error, seconds=seconds)

    def failed(self, consumer: str, plain: Plain, *, attempts: int, error: str) -> None:
        for one in self._telemetries:
            one.failed(consumer, plain, attempts=attempts, error=error)

    def repeated(self, consumer: str, event: CloudEvent, *, error: str) -> None:
        for one in self._telemetries:
            one.repeated(consumer, event, error=error)

    def store_failed(self, consumer: str, error: Exception) -> None:
        for one in self._telemetries:
            one.store_failed(consumer, error)

    def broker_failed(self, consumer: str, error: Exception) -> None:
        for one in self._telemetries:
            one.broker_failed(consumer, error)

    def window_short(self, consumer: str, *, retention: str, horizon: str) -> None:
        for one in self._telemetries:
            one.window_short(consumer, retention=retention, horizon=horizon)


class LoggingConsumerTelemetry(ConsumerTelemetry):
    """Lines for people and for machines: the fields stand in `extra`, so a JSON formatter has them all."""

    def handled(self, consumer: str, event: CloudEvent, *, seconds: float) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("handled %s", event.message_id, extra=_fields(consumer, event) | {"seconds": seconds})

    def duplicate(self, consumer: str, event: CloudEvent) -> None:
        log.info("%s came again and was done already", event.message_id, extra=_fields(consumer, event))

    def ignored(self, consumer: str, event: CloudEvent) -> None:
        log.info("nobody wants %s of type %s", event.message_id, event.type, extra=_fields(consumer, event))

    def retried(self, consumer: str, event: CloudEvent, *, attempt: int, error: str, seconds: float) -> None:
        extra = _fields(consumer, event) | {"attempt": attempt, "error": error}
        log.warning("attempt %d on %s, again in %.1f s: %s", attempt, event.message_id, seconds, error, extra=extra)

    def failed(self, consumer: str, plain: Plain, *, attempts: int, error: str) -> None:
        extra = {"consumer": consumer, "message_id": plain.message_id, "attempt": attempts, "error": error}
        log.warning("failed %s after %d attempts: %s", plain.message_id, attempts, error, extra=extra)

    def repeated(self, consumer: str, event: CloudEvent, *, error: str) -> None:
        log.info("repeating %s: %s", event.message_id, error, extra=_fields(consumer, event) | {"error": error})

    def store_failed(self, consumer: str, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        log.warning("the database is away, trying again: %s", told, extra={"consumer": consumer, "error": told})

    def broker_failed(self, consumer: str, error: Exception) -> None:
        log.warning("the broker is away, trying again: %s", error, extra={"consumer": consumer, "error": str(error)})

    def window_short(self, consumer: str, *, retention: str, horizon: str) -> None:
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
