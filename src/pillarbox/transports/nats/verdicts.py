"""What the server's answers mean for a message and for the destination. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pillarbox.protocols import Outcome
from pillarbox.transports.answers import DELIVERED, Answer, Interrupted
from pillarbox.transports.redaction import one_line

__all__ = ["NotAllowed", "answer_of", "not_allowed"]

_TOO_LARGE: Final = frozenset({10054, 10097})
"""The message, or its headers, are larger than the stream takes."""
_NOWHERE: Final = {
    10039: "JetStream is not enabled for this account: enable it, or use another login",
    10059: "there is no such stream: create it, or set declare=true",
    10060: "another stream has this subject than the option stream says: correct one of them",
    10076: "JetStream is not enabled on this server: enable it",
    10109: "the stream is sealed: give the subject to another stream",
}
"""The same for every message, whatever it is: topology and permission."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    """What JetStream answers. A repeat within the duplicate window is an answer as good as the first."""

    stream: str | None = None
    seq: int = 0
    error: _Error | None = None


_decoded: Final = msgspec.json.Decoder(_Ack).decode


def answer_of(data: bytes, *, status: str | None, subject: str) -> Answer:
    """What an acknowledgement says. `status` is the one in its headers: 503 means that nobody listens."""
    if status is not None:
        return Interrupted(_no_stream(subject, status), is_outage=True)
    try:
        ack = _decoded(data)
    except msgspec.DecodeError:
        ack = _Ack()
    if ack.error is not None:
        return _refusal(ack.error, subject)
    if ack.stream is None or ack.seq < 1:
        return Outcome(False, f"Something else than a stream answered for the subject {_shown(subject)}.")
    return DELIVERED


def _no_stream(subject: str, status: str) -> str:
    if status != "503":
        return f"NATS answered with status {one_line(status)} for the subject {_shown(subject)}."
    return (
        f"No stream has the subject {_shown(subject)}: create one that has it, or set stream and declare=true, "
        "and see that JetStream is enabled."
    )


def _refusal(error: _Error, subject: str) -> Answer:
    said = one_line(f"{error.description} ({error.err_code or error.code})")
    if error.err_code in _TOO_LARGE:
        return Outcome(False, f"The stream takes no message as large as this: {said}.", rejected=True)
    if error.err_code in _NOWHERE:
        reason = f"No stream takes messages for the subject {_shown(subject)} ({said}): {_NOWHERE[error.err_code]}."
        return Interrupted(reason, is_outage=True)
    return Outcome(False, f"The stream did not take the message: {said}.")


# --- permissions: told beside the answers, in words alone ---


class NotAllowed(msgspec.Struct, frozen=True):
    """The server refused a command of this login. `subject` is in lower case, as the client tells it."""

    action: str
    subject: str


_PERMISSION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


def not_allowed(error: str) -> NotAllowed | None:
    """Whether an error of the connection says so."""
    match = _PERMISSION.search(error)
    return None if match is None else NotAllowed(match[1].lower(), match[2].lower())


def _shown(subject: str) -> str:
    return repr(one_line(subject, limit=100))
