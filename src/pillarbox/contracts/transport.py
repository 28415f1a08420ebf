"""The contract of a transport. `TransportContract` in `pillarbox.testing` checks it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

import msgspec

from pillarbox.contracts.finding import Finding
from pillarbox.message import Message

__all__ = ["Addressing", "Inspector", "Outcome", "Transport", "TransportFeatures", "find_addressing"]


class TransportFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Promises of a transport."""

    name: str
    batch: int = 500
    """Number of messages that one `send` takes at most. 1: each message is answered on its own."""
    max_payload: int | None = None
    """The largest payload in bytes that the broker is known to take."""
    readiness: bool = True
    """A relay that cannot reach the other side is not ready, unless its destination says otherwise.

    False for webhooks: the other side is a partner's, and a partner's outage is no reason to stop a rollout.
    """
    in_process: bool = False
    """What receives the messages runs in the relay's own process: it can always be reached, and a failure is the
    message's own. It spends an attempt at once, without another message as witness. What means that something else is
    away is raised as `TransportUnavailable`.
    """
    addresses: bool = False
    """Messages go to several addresses, and the transport is `Addressing`. A blocked one does not stop the others."""
    ping_is_witness: bool = False
    """A successful `ping` shows that messages could get through. A message that is refused after one is at fault."""
    runs: bool = False
    """One `send` may have several messages of a key: a run, in their order, to one address.

    What the broker takes of a run is its beginning, however the send ends. If it does not take one message, it has none
    of the later ones, and their outcome is `unsent`. Without this promise no two messages of a key are in one `send`.
    """
    one_key: bool = False
    """One `send` has messages of one key only, or one without a key: no other key waits for its answer.

    True for handlers: they may take long, and what they did counts only when the `send` has answered.
    """
    slow_runs: bool = False
    """A run takes longer than single messages. While many keys are on their way, only long queues become runs."""


class Outcome(msgspec.Struct, frozen=True):
    """The broker's answer for one message. `delivered` is said only on its own word."""

    delivered: bool
    error: str | None = None
    rejected: bool = False
    """The broker will never take it: the fault is in the message."""
    retry_after: timedelta | None = None
    """Time after which the broker asks for another try."""
    detail: str | None = None
    """More for the journal: a redacted stack trace, the broker's full answer."""
    lost: bool = False
    """The connection broke before this one was answered, after others were. It spends no attempt."""
    unanswered: bool = False
    """No answer came in time. A ping that succeeds is no witness against it."""
    not_now: bool = False
    """The broker works, but the address of this message takes nothing at present: its queue is full, it throttles, it
    has no leader. The message is not at fault and spends no attempt. It is tried again at the pace of its address."""
    unsent: bool = False
    """It was not tried, because an earlier message of its run was not acknowledged, or because the transport ended the
    run here. The first message of a run is never unsent."""
    missing: bool = False
    """With `not_now`: the address does not exist, or this login may not send to it. The same for every message."""


class Transport(Protocol):
    """Sends messages to one broker. One instance per destination; calls of `send` may overlap."""

    @property
    def features(self) -> TransportFeatures:
        """The promises of this transport."""

    async def open(self) -> None:
        """Connect; raise `TransportUnavailable` when the broker cannot be reached."""

    async def close(self) -> None:
        """Disconnect. Closing twice is harmless."""

    async def ping(self) -> None:
        """Check, without a message, that the broker answers; raise `TransportUnavailable` when it does not."""

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Deliver each message; answer for each, in the same order.

        `delivered` is said only on the broker's own word. Raises `TransportUnavailable` when the broker
        cannot be reached, or the connection broke before any was answered; when it broke after some were, the
        others are `lost`. What was not answered for was not delivered.
        """


@runtime_checkable
class Addressing(Protocol):
    """A transport that can tell the address of a message, used where its features say that it has several."""

    def get_address(self, message: Message) -> str | None:
        """Return the address of a message for people, such as "exchange 'shop', routing key 'orders'".

        Messages with the same text share an address. None for a message that has no valid address.
        """


def find_addressing(transport: Transport) -> Addressing | None:
    """Return a transport as one with addresses, if it sends to several."""
    return transport if transport.features.addresses and isinstance(transport, Addressing) else None


@runtime_checkable
class Inspector(Protocol):
    """A transport that can check its broker for settings that lose messages."""

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        """Find settings of the broker that could lose messages of these topics. Changes nothing.

        Raises `TransportUnavailable` when the broker cannot be reached. Settings that the login may not read are
        reported as a finding.
        """
