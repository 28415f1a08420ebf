"""The contract of a receiver. `ReceiverContract` in `pillarbox.testing` checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from pillarbox.cloudevents import Binding

__all__ = ["FallbackIdentity", "IncomingMessage", "Receiver", "ReceiverFeatures"]


class ReceiverFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Promises of a receiver."""

    name: str
    horizon: timedelta | None = None
    """Time after the first delivery during which the broker may deliver a message again; None: no limit."""


class FallbackIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a message that is no CloudEvent, or an incomplete one."""

    message_id: str
    """The producer's own id if there is one, or else the position in the broker: the same at every delivery."""
    source: str
    type: str
    topic: str
    key: str | None = None


class IncomingMessage(msgspec.Struct, kw_only=True, eq=False):
    """A message as a receiver delivers it."""

    headers: Mapping[str, Any]
    body: bytes
    binding: Binding
    """The form of CloudEvents attributes in this protocol."""
    fallback: FallbackIdentity
    redelivered: bool = False
    """A consumer may have received it before and crashed."""
    token: Any = None
    """The receiver's own handle for acknowledging it."""


class Receiver(Protocol):
    """Reads one broker for one consumer. What is not acknowledged is delivered again, to this consumer or another."""

    pending_bytes: int
    """Bytes of messages to hold at most, one message more at the end, before nothing is read from the broker.

    A message is held from its arrival until it is acknowledged or given back. The consumer sets this before `open`.
    """

    @property
    def features(self) -> ReceiverFeatures:
        """The promises of this receiver."""

    async def open(self) -> None:
        """Connect; raise `TransportUnavailable` when the broker cannot be reached or lacks the queue or topic."""

    async def close(self) -> None:
        """Disconnect. What was not acknowledged goes back to the broker, which delivers it again in the same order.

        Closing twice is harmless.
        """

    async def ping(self) -> None:
        """Check that the broker answers; raise `TransportUnavailable` when it does not."""

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        """Wait for messages and return at least one and at most `limit`, in the broker's order.

        Raises `TransportUnavailable` when the connection is lost; calling again connects again. Cancelling loses
        nothing.
        """

    async def acknowledge(self, received: IncomingMessage) -> None:
        """Remove the message from the broker for good.

        Does nothing for a message of a lost connection; it is delivered again.
        """

    async def give_back(self, received: IncomingMessage) -> None:
        """Return a message that was not handled to the broker, which delivers it again to any consumer.

        Does nothing for a message of a lost connection. Of several, give back the latest first. A consumer that stops
        gives nothing back: it closes.
        """
