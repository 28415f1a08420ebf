"""From what JetStream delivers to what a consumer handles. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pillarbox.cloudevents import NATS
from pillarbox.protocols import Plain, Received
from pillarbox.receivers.identity import identity

if TYPE_CHECKING:
    from nats.aio.msg import Msg

__all__ = ["Delivery", "delivery_of", "received_of"]

_OLD: Final = 9
"""Parts of the reply subject from servers that put no domain and account into it."""


class Delivery(NamedTuple):
    """A message as it came, and what its reply subject says about it."""

    message: Msg
    sequence: int
    """Its number in the stream."""
    times: int
    """How often it was delivered, with this time."""

    @property
    def reply(self) -> str:
        """Where it is acknowledged."""
        return self.message.reply


def delivery_of(message: Msg) -> Delivery | None:
    """None: it is not from a stream, but about the request that asked for messages."""
    parts = message.reply.split(".")
    if len(parts) < _OLD or parts[:2] != ["$JS", "ACK"]:
        return None
    times, sequence = parts[4:6] if len(parts) == _OLD else parts[6:8]
    return Delivery(message, int(sequence), int(times))


def received_of(delivery: Delivery, *, stream: str, token: object) -> Received:
    """The message as it came. Without an id from the producer it is known by its place in the stream."""
    message = delivery.message
    headers = message.headers or {}
    own = headers.get("Nats-Msg-Id")
    return Received(
        headers=headers,
        body=message.data,
        binding=NATS,
        plain=Plain(
            message_id=identity(own) if own else f"{stream}/{delivery.sequence}",
            source=f"nats:{stream}",
            type="nats",
            topic=message.subject,
        ),
        redelivered=delivery.times > 1,
        token=token,
    )
