"""Log lines, for people and for machines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.message import Message
from pillarbox.protocols import Trouble
from pillarbox.telemetry.seam import Telemetry

__all__ = ["LoggingTelemetry"]

log: Final = logging.getLogger("pillarbox.relay")


class LoggingTelemetry(Telemetry):
    """Lines for people and for machines: the fields stand in `extra`, so a JSON formatter has them all."""

    def __init__(self, *, deliveries: int = logging.DEBUG) -> None:
        self._deliveries = deliveries
        """The level of the line for each single delivery."""

    def delivered(self, destination: str, messages: Sequence[Message]) -> None:
        if log.isEnabledFor(self._deliveries):
            for message in messages:
                fields = _fields(destination, message)
                log.log(self._deliveries, "delivered %s to %s", message.message_id, destination, extra=fields)

    def troubled(self, destination: str, message: Message, trouble: Trouble) -> None:
        fields = _fields(destination, message) | {"attempt": trouble.attempts, "error": trouble.error}
        match trouble.waits:
            case None:
                text = f"{trouble.state.value} %s to %s after %d attempts: %s"
            case "held":
                text = "held %s to %s after %d attempts, its key waits: %s"
            case _:
                text = "will retry %s to %s after attempt %d: %s"
        log.warning(text, message.message_id, destination, trouble.attempts, trouble.error, extra=fields)

    def returned(self, destination: str, messages: Sequence[Message], *, reason: str) -> None:
        log.info("gave %d messages for %s back: %s", len(messages), destination, reason, extra=_at(destination))

    def settled(self, destination: str, *, delivered: int, troubled: int) -> None:
        extra = _at(destination) | {"delivered": delivered, "troubled": troubled}
        log.info("settled %d delivered, %d troubled for %s", delivered, troubled, destination, extra=extra)

    def breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        extra = _at(destination) | {"error": reason, "seconds": seconds}
        log.warning("%s is down, trying again in %.1f s: %s", destination, seconds, reason, extra=extra)

    def breaker_closed(self, destination: str) -> None:
        log.warning("%s answers again", destination, extra=_at(destination))

    def paused(self, destination: str, *, reason: str) -> None:
        log.warning("%s is paused: %s", destination, reason, extra=_at(destination))

    def resumed(self, destination: str) -> None:
        log.warning("%s is resumed", destination, extra=_at(destination))

    def lanes_taken(self, destination: str, partitions: Iterable[int], *, inherited: int) -> None:
        lanes = sorted(partitions)
        extra = _at(destination) | {"lanes": lanes, "inherited": inherited}
        log.info("took %d lanes of %s, inherited %d messages", len(lanes), destination, inherited, extra=extra)

    def lanes_left(self, destination: str, partitions: Iterable[int]) -> None:
        lanes = sorted(partitions)
        log.info("left %d lanes of %s", len(lanes), destination, extra=_at(destination) | {"lanes": lanes})

    def fenced(self, destination: str, partitions: Iterable[int]) -> None:
        lanes = sorted(partitions)
        extra = _at(destination) | {"lanes": lanes}
        log.error("refused: another relay owns lanes %s of %s", lanes, destination, extra=extra)

    def lease_lost(self, *, reason: str) -> None:
        log.error("the lease is lost, starting again under a new id: %s", reason)

    def store_failed(self, what: str, error: Exception) -> None:
        log.warning("%s failed, trying again: %s", what, error, extra={"error": str(error)})

    def duty_failed(self, what: str, error: Exception) -> None:
        told = f"{type(error).__name__}: {error}"
        log.warning("%s failed, trying again later: %s", what, told, extra={"error": told})

    def cleaned(self, *, messages: int, inbox: int) -> None:
        if messages or inbox:
            log.info("cleaned %d closed messages, %d inbox records", messages, inbox)


def _at(destination: str) -> dict[str, object]:
    return {"destination": destination}


def _fields(destination: str, message: Message) -> dict[str, object]:
    return {
        "destination": destination,
        "message_id": str(message.message_id),
        "correlation_id": message.correlation_id,
        "type": message.type,
        "topic": message.topic,
        "attempt": message.attempts + 1,
    }
