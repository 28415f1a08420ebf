"""Meaning of a broker's reason codes for a message and for the destination. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from pillarbox.brokers.mqtt.settings import NoSubscribers
from pillarbox.brokers.send_batch import DELIVERED
from pillarbox.contracts.transport import Outcome
from pillarbox.redaction import redact_line

__all__ = ["AcknowledgementPolicy", "advise_on_refused_connect", "to_outcome"]

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
_MISSING: Final = 0x87
_NOT_NOW: Final = frozenset({0x91, 0x92, 0x97})
_REJECTED: Final = frozenset({0x90, 0x95, 0x99})
"""Codes that concern the message itself, and are the same at every attempt."""
_LOGIN_CODES: Final = frozenset({0x86, 0x87, 0x8C})
_CLIENT_ID_CODES: Final = frozenset({0x85, 0x8A})
_PROTOCOL_CODES: Final = frozenset({0x01, 0x81, 0x82, 0x84})


class AcknowledgementPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Interpretation of one broker's acknowledgements."""

    where: str
    """The broker, for people."""
    no_subscribers: NoSubscribers = "refuse"


def to_outcome(code: int, policy: AcknowledgementPolicy, *, topic: str, text: str | None = None) -> Outcome:
    """Return the outcome of a message that was acknowledged with this reason code and reason string."""
    if code == _NO_SUBSCRIBERS and policy.no_subscribers != "accept":
        error = f"Nobody subscribes to {topic[:100]!r} at {policy.where}, so the message would be gone (0x10)."
        if policy.no_subscribers == "reject":
            return Outcome(delivered=False, error=error, rejected=True)
        return Outcome(delivered=False, error=error, not_now=True, missing=True)
    if code < 0x80:
        return DELIVERED
    reason = _REASONS.get(code, "an error")
    quote = f" It said: {redact_line(text)}" if text else ""
    return Outcome(
        delivered=False,
        error=f"{policy.where} refused a message to {topic[:100]!r}: {reason} (0x{code:02x}).{quote}",
        rejected=code in _REJECTED,
        # A permission can be granted, and other topics work meanwhile.
        not_now=code == _MISSING or code in _NOT_NOW,
        missing=code == _MISSING,
    )


def advise_on_refused_connect(code: int) -> str:
    """Return the end of a sentence: what to do when a broker refused the connection with this reason code."""
    if code in _LOGIN_CODES:
        return "check user, password and what the broker allows them"
    if code in _CLIENT_ID_CODES:
        return "check the option client_id and what the broker allows"
    if code in _PROTOCOL_CODES:
        return "it must speak MQTT 5: only there can a broker say that it refuses a message"
    return "ask whoever runs the broker"
