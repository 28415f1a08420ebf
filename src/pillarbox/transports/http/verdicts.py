"""What an answer means for the message and for the destination. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.protocols import Outcome
from pillarbox.transports.redaction import one_line

__all__ = ["OUTAGES", "REJECTS", "Answer", "Policy", "Verdict", "check_rejects", "outcome_of", "retry_after", "verdict"]

REJECTS: Final = frozenset({400, 413, 415, 422, 431})
"""The message's own fault: malformed, too large, of a type nobody wants there, with too large headers."""
OUTAGES: Final = frozenset({401, 402, 403, 404, 405, 406, 407, 411, 414, 417, 426})
"""The same for every message, so the endpoint's or the configuration's fault: authentication, a URL where nothing is,
a method or a way of asking that it does not have."""
_GONE: Final = 410
_MEANT_TO_PASS: Final = frozenset({408, 425, 429})
_LONGEST_WAIT: Final = timedelta(days=1)
_DETAIL: Final = 4_000


class Verdict(Enum):
    """What becomes of a message."""

    DELIVERED = auto()
    REJECTED = auto()
    FAILED = auto()
    OUTAGE = auto()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came back, as far as it was read."""

    status: int
    retry_after: str | None = None
    body: bytes = b""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How to read answers of one endpoint."""

    where: str
    """The endpoint, for people."""
    rejects: Collection[int] = REJECTS
    gone: Literal["unavailable", "reject"] = "unavailable"
    hide: Callable[[str], str] = str
    """Takes secrets out of a text: an endpoint may echo them."""


def check_rejects(statuses: Collection[int]) -> None:
    """`ConfigError` for statuses that cannot mean a bad message."""
    for status in statuses:
        if not 400 <= status <= 499 or status in _MEANT_TO_PASS:
            raise ConfigError(
                f"The option rejects has {status}; it takes 4xx without 408, 425 and 429, which ask to try again."
            )


def verdict(status: int, policy: Policy) -> Verdict:
    """Delivered is 2xx and nothing else. A redirect is a failure: it is never followed."""
    if 200 <= status <= 299:
        return Verdict.DELIVERED
    if status in policy.rejects or (status == _GONE and policy.gone == "reject"):
        return Verdict.REJECTED
    return Verdict.OUTAGE if status in OUTAGES or status == _GONE else Verdict.FAILED


def outcome_of(answer: Answer, policy: Policy, *, now: datetime) -> Outcome:
    """The outcome of a message that was answered so; `TransportUnavailable` when it says nothing about the message."""
    found = verdict(answer.status, policy)
    if found is Verdict.DELIVERED:
        return Outcome(delivered=True)
    wait = retry_after(answer.retry_after, now=now)
    said = policy.hide(answer.body.decode(errors="replace"))
    text = _told(answer.status, said, policy)
    if found is Verdict.OUTAGE:
        raise TransportUnavailable(text, retry_after=wait)
    detail = one_line(said, limit=_DETAIL) or None
    return Outcome(delivered=False, error=text, rejected=found is Verdict.REJECTED, retry_after=wait, detail=detail)


def retry_after(header: str | None, *, now: datetime) -> timedelta | None:
    """How long to wait: a count of seconds or a date, at most a day. None when it is neither."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return _LONGEST_WAIT if len(text) > 9 else min(timedelta(seconds=int(text)), _LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return min(max(at - now, timedelta(0)), _LONGEST_WAIT)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _told(status: int, said: str, policy: Policy) -> str:
    quoted = f" It said: {excerpt}" if (excerpt := one_line(said)) else ""
    return f"{policy.where} answered {_phrase(status)}{_advice(status)}.{quoted}"


def _phrase(status: int) -> str:
    """In our words: the phrase in an answer is whatever the endpoint likes."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _advice(status: int) -> str:
    if 300 <= status <= 399:
        return ", a redirect, which is not followed; correct the URL"
    if status in (401, 402, 403, 407):
        return "; check the secret, the headers and what the endpoint allows"
    if status in OUTAGES or status == _GONE:
        return "; check the URL and the method"
    return ""
