"""What a broker's reason codes mean for a message and for the destination. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from pillarbox.protocols import Outcome
from pillarbox.transports.mqtt.settings import NoSubscribers
from pillarbox.transports.redaction import one_line

__all__ = ["DELIVERED", "Policy", "advice_on_connecting", "outcome_of"]

DELIVERED: Final = Outcome(delivered=True)
_NO_SUBSCRIBERS: Final = 0x10
_REASONS: Final = {
    0x80: "an unspecified error",
    0x83: "an error of its own kind",
    0x87: "no permission to publish to that topic; allow it in the broker's access list",
    0x90: "a topic name that it does not allow",
    0x91: "the packet identifier is in use",
    0x92: "the packet identifier is not known",
    0x95: "the message is larger than it takes",
    0x97: "a quota is exceeded",
    0x99: "the payload is not what it is said to be",
}
_REJECTS: Final = frozenset({0x90, 0x95, 0x99})
"""About this message, and the same at every attempt."""
_LOGIN: Final = frozenset({0x86, 0x87, 0x8C})
_CLIENT: Final = frozenset({0x85, 0x8A})
_PROTOCOL: Final = frozenset({0x01, 0x81, 0x82, 0x84})


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How to read the answers of one broker."""

    where: str
    """The broker, for people."""
    no_subscribers: NoSubscribers = "refuse"


def outcome_of(code: int, policy: Policy, *, topic: str, said: str | None = None) -> Outcome:
    """The outcome of a message that was acknowledged with this reason code.

    No permission is not a rejection: it ends when somebody allows it, and other topics go on meanwhile.
    """
    if code == 0:
        return DELIVERED
    if code == _NO_SUBSCRIBERS:
        return _nobody(policy, topic=topic)
    if code < 0x80:
        return DELIVERED
    reason = _REASONS.get(code, "an error")
    quoted = f" It said: {one_line(said)}" if said else ""
    return Outcome(
        delivered=False,
        error=f"{policy.where} refused a message to {topic[:100]!r}: {reason} (0x{code:02x}).{quoted}",
        rejected=code in _REJECTS,
    )


def _nobody(policy: Policy, *, topic: str) -> Outcome:
    if policy.no_subscribers == "accept":
        return DELIVERED
    error = f"Nobody subscribes to {topic[:100]!r} at {policy.where}, so the message would be gone (0x10)."
    return Outcome(delivered=False, error=error, rejected=policy.no_subscribers == "reject")


def advice_on_connecting(code: int) -> str:
    """What to do about a connection that the broker refused with this reason code, as the end of a sentence."""
    if code in _LOGIN:
        return "check user, password and what the broker allows them"
    if code in _CLIENT:
        return "check the option client_id and what the broker allows"
    if code in _PROTOCOL:
        return "it must speak MQTT 5: only there can a broker say that it refuses a message"
    return "ask whoever runs the broker"
