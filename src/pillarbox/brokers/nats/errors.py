"""The meaning of the server's answers and errors, for a message and for the destination. Pure."""

from __future__ import annotations

import re
import ssl
from typing import Final

import msgspec

from pillarbox.brokers.errors import describe_error as describe_system_error
from pillarbox.brokers.errors import login_refused_error, tls_error, unreachable_error
from pillarbox.brokers.send_batch import DELIVERED, Answer, NotAnswered
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_line

__all__ = [
    "BatchRefused",
    "BatchStarted",
    "CommitReply",
    "FirstStored",
    "PermissionViolation",
    "StartReply",
    "describe_error",
    "map_connect_error",
    "parse_permission_violation",
    "read_ack",
    "read_batch_commit",
    "read_batch_start",
]

_TOO_LARGE: Final = frozenset({10054, 10097})
"""The message, or its headers, are larger than the stream takes."""
_OUTAGES: Final = {
    10039: "JetStream is not enabled for this account: enable it, or use another login",
    10076: "JetStream is not enabled on this server: enable it",
}
"""The same for every message."""
_MISSING: Final = {
    10059: "there is no such stream: create it, or set declare=true",
    10060: "another stream has this subject than the option stream says: correct one of them",
    10109: "the stream is sealed: give the subject to another stream",
}
"""The same for every message of the subject."""
_NOT_NOW: Final = frozenset({429, 503})
"""The stream is full, or has no leader, or the server is short of something: at another time it takes the message."""
_FULL: Final = frozenset({10002, 10028, 10047, 10120})
"""The account or the server has no room left. Servers call it the sender's fault (400), or an error of theirs (500)."""
_UNDER_WAY: Final = 10158
"""Another message with the same id is being stored."""
_LOGIN_WORDS: Final = ("authorization", "authentication", "account")


# --- acknowledgements ---


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    """JetStream's reply to a publish. One for a repeat within the duplicate window is as good as the first."""

    stream: str | None = None
    seq: int = 0
    batch: str | None = None
    count: int = 0
    error: _Error | None = None


_decode_ack: Final = msgspec.json.Decoder(_Ack).decode


def read_ack(data: bytes, *, status: str | None, subject: str) -> Answer:
    """Return the answer in an acknowledgement. `status` is the one in its headers: 503 means that nobody listens."""
    if status is not None:
        return Outcome(False, _describe_status(subject, status), not_now=True, missing=True)
    try:
        ack = _decode_ack(data)
    except (msgspec.DecodeError, RecursionError):
        ack = _Ack()
    if ack.error is not None:
        return _read_refusal(ack.error, subject)
    if ack.stream is None or ack.seq < 1:
        return Outcome(False, f"Something else than a stream answered for the subject {_quote(subject)}.")
    return DELIVERED


class BatchRefused(msgspec.Struct, frozen=True):
    """The stream did not take an atomic batch, and stored nothing of it."""

    is_unsupported: bool = False
    """It takes no batches at all."""


class BatchStarted(msgspec.Struct, frozen=True):
    """The stream takes a batch, and has stored nothing of it yet."""


class FirstStored(msgspec.Struct, frozen=True):
    """The server knows no batches: it stored the first message like any other."""


StartReply = BatchStarted | FirstStored | BatchRefused | NotAnswered
CommitReply = Outcome | BatchRefused | NotAnswered
_NO_BATCHES: Final = frozenset({10174, 10177})
"""The stream has no `allow_atomic`, or its server takes no message ids in a batch."""


def read_batch_start(data: bytes, *, status: str | None) -> StartReply:
    """Return what the reply to the first message of an atomic batch means."""
    if status is None and not data:
        return BatchStarted()
    ack = _read_ack_or_none(data) if status is None else None
    if ack is not None and ack.error is None and ack.stream is not None and ack.seq > 0 and ack.batch is None:
        return FirstStored()
    return _refuse_batch(ack)


def read_batch_commit(data: bytes, *, status: str | None, count: int) -> CommitReply:
    """Return what the reply to the last message of an atomic batch means: delivered is all of it."""
    ack = _read_ack_or_none(data) if status is None else None
    if ack is not None and ack.error is None:
        if ack.stream is not None and ack.batch is not None and ack.count == count:
            return DELIVERED
        return NotAnswered("NATS answered for a batch with something else than its count.")
    return _refuse_batch(ack)


def _refuse_batch(ack: _Ack | None) -> BatchRefused:
    code = ack.error.err_code if ack is not None and ack.error is not None else 0
    return BatchRefused(is_unsupported=code in _NO_BATCHES)


def _read_ack_or_none(data: bytes) -> _Ack | None:
    try:
        return _decode_ack(data)
    except msgspec.DecodeError:
        return None


def _describe_status(subject: str, status: str) -> str:
    if status != "503":
        return f"NATS answered with status {redact_line(status)} for the subject {_quote(subject)}."
    return (
        f"No stream has the subject {_quote(subject)}: create one that has it, or set stream and declare=true, "
        "and see that JetStream is enabled."
    )


def _read_refusal(error: _Error, subject: str) -> Answer:
    text = redact_line(f"{error.description} ({error.err_code or error.code})")
    if error.err_code in _TOO_LARGE:
        return Outcome(False, f"The stream takes no message as large as this: {text}.", rejected=True)
    if error.err_code in _OUTAGES:
        return NotAnswered(f"NATS takes no messages ({text}): {_OUTAGES[error.err_code]}.", is_outage=True)
    if error.err_code in _MISSING:
        reason = f"No stream takes messages for the subject {_quote(subject)} ({text}): {_MISSING[error.err_code]}."
        return Outcome(False, reason, not_now=True, missing=True)
    is_later = error.code in _NOT_NOW or error.err_code in _FULL or error.err_code == _UNDER_WAY
    return Outcome(False, f"The stream did not take the message: {text}.", not_now=is_later)


def _quote(subject: str) -> str:
    return repr(redact_line(subject, limit=100))


# --- permissions ---


class PermissionViolation(msgspec.Struct, frozen=True):
    """A command that the server refused to this login. The client reports the subject in lower case."""

    action: str
    subject: str


_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


def parse_permission_violation(error: str) -> PermissionViolation | None:
    """Parse an error of the connection. The server reports these beside the answers, as text alone."""
    match = _VIOLATION.search(error)
    return None if match is None else PermissionViolation(match[1].lower(), match[2].lower())


# --- connecting ---


def map_connect_error(error: BaseException, where: str, *, seconds: float) -> TransportUnavailable:
    """Map what the client raised or reported while it connected."""
    reason = describe_error(error, seconds=seconds)
    if isinstance(error, ssl.SSLError):
        return tls_error(where, reason)
    if any(word in reason.lower() for word in _LOGIN_WORDS):
        return login_refused_error(where, reason, check="user, password, token or key, and what the account allows")
    return unreachable_error(where, reason)


def describe_error(error: BaseException, *, seconds: float | None = None) -> str:
    """Describe an error of the client or the system in a few words."""
    return describe_system_error(error, seconds=seconds).removeprefix("nats: ").strip("'") or type(error).__name__
