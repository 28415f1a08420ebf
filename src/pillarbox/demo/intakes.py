"""How the consumer gets its messages: one intake for each kind of line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pillarbox.cloudevents import CloudEvent
from pillarbox.demo.line import Line
from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.transports.redaction import one_line
from pillarbox.transports.urls import shown

__all__ = ["Intake", "Taker", "intake_of", "reaching", "take"]


class Taker(Protocol):
    """What the consumer does with a message."""

    def apply(self, message: CloudEvent) -> None:
        """Committed when it returns. `MessageRejected` for what is no order; then nothing was written."""

    def refuse(self, message: CloudEvent, reason: str) -> None:
        """Keep what will never be applied, out of the way of the rest. Committed when it returns."""


class Intake(Protocol):
    """One end of a line."""

    async def prepare(self) -> None:
        """Make what the relays send to; `TransportUnavailable` when there is no such broker."""

    async def remove(self) -> None:
        """Remove what was made."""

    async def is_ready(self) -> bool:
        """Whether the relays have somebody to talk to."""

    async def serve(self, taker: Taker) -> None:
        """Hand over messages one by one, and acknowledge only what was taken, until cancelled or killed."""


def intake_of(line: Line) -> Intake:
    """The intake of this line. `MissingExtra` when its client is not installed."""
    match line.kind:
        case "http":
            from pillarbox.demo.http_intake import HttpIntake

            return HttpIntake(line)
        case "rabbitmq":
            from pillarbox.demo.rabbitmq_intake import RabbitmqIntake

            return RabbitmqIntake(line)
        case "nats":
            from pillarbox.demo.nats_intake import NatsIntake

            return NatsIntake(line)
        case "redis":
            from pillarbox.demo.redis_intake import RedisIntake

            return RedisIntake(line)


def take(taker: Taker, message: CloudEvent) -> None:
    """Apply it, or keep it as refused: a broker has delivered it and does not want it back."""
    try:
        taker.apply(message)
    except MessageRejected as error:
        taker.refuse(message, str(error))


@contextmanager
def reaching(line: Line, *errors: type[Exception]) -> Iterator[None]:
    """A client's errors in one sentence, without the password."""
    expected: tuple[type[Exception], ...] = (OSError, TimeoutError, *errors)
    try:
        yield
    except expected as error:
        reason = one_line(str(error) or type(error).__name__)
        raise TransportUnavailable(
            f"The broker {shown(line.at)} cannot be used for the demo ({reason}): check that it runs, and --to."
        ) from error
