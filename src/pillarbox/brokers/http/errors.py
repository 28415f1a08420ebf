"""Meaning of a response for the message and for the destination. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from pillarbox.brokers.send_batch import DELIVERED
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError
from pillarbox.redaction import redact_line

__all__ = [
    "REJECTS",
    "DeliveryStatus",
    "Response",
    "ResponsePolicy",
    "check_rejects",
    "classify",
    "parse_retry_after",
    "to_outcome",
]

REJECTS: Final = frozenset({400, 413, 415, 422, 431})
"""The message's own fault: malformed, too large, of an unsupported type, or with too large headers."""
_OUTAGES: Final = frozenset({401, 402, 403, 405, 406, 407, 411, 414, 417, 426})
"""The endpoint's or the configuration's fault, and the same for every message: login, URL, method, headers."""
_NOT_FOUND: Final = 404
"""Of a wrong URL, or of a message about something that the endpoint does not know. Evidence decides."""
_GONE: Final = 410
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_RETRIABLE: Final = frozenset({408, 425, 429})
_MAX_RETRY_AFTER: Final = timedelta(days=1)
_MAX_DETAIL: Final = 4_000


class DeliveryStatus(Enum):
    """Fate of one message."""

    DELIVERED = auto()
    REJECTED = auto()
    FAILED = auto()
    MISSING = auto()
    OUTAGE = auto()


_NO_FAULT: Final = (DeliveryStatus.MISSING, DeliveryStatus.OUTAGE)
"""The same response would be given to other messages, however often this one is sent."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as far as it was read."""

    status: int
    retry_after: str | None = None
    body: bytes = b""


class ResponsePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Interpretation of one endpoint's responses."""

    where: str
    """The endpoint, for people."""
    rejects: Collection[int] = REJECTS
    gone: Literal["unavailable", "reject"] = "unavailable"
    missing: Collection[int] = ()
    hide: Callable[[str], str] = str
    """Removes secrets from a text: an endpoint may echo them."""


def check_rejects(statuses: Collection[int], *, missing: Collection[int] = ()) -> None:
    """Raise `ConfigError` for statuses that cannot mean a bad message, or a missing endpoint."""
    for option, listed in (("rejects", statuses), ("missing", missing)):
        for status in listed:
            if not 400 <= status <= 499 or status in _RETRIABLE:
                raise ConfigError(
                    f"The option {option} has {status}; it takes 4xx without 408, 425 and 429, which ask to try again."
                )
    if both := sorted({*statuses} & {*missing}):
        raise ConfigError(f"The options rejects and missing both have {both[0]}; leave it in one of them.")


def classify(status: int, policy: ResponsePolicy) -> DeliveryStatus:
    """Return the meaning of a status. Only 2xx is delivered; a redirect is a failure, for it is never followed."""
    if 200 <= status <= 299:
        return DeliveryStatus.DELIVERED
    if status in policy.rejects or (status == _GONE and policy.gone == "reject"):
        return DeliveryStatus.REJECTED
    if status in policy.missing:
        return DeliveryStatus.MISSING
    return DeliveryStatus.OUTAGE if status in _OUTAGES or status == _GONE else DeliveryStatus.FAILED


def to_outcome(response: Response, policy: ResponsePolicy, *, now: datetime) -> Outcome:
    """Return the outcome of a message.

    A response that is not about the message, such as 401, spends no attempt. It is an answer all the same: a firewall
    may give it to one message alone.
    """
    status = classify(response.status, policy)
    if status is DeliveryStatus.DELIVERED:
        return DELIVERED
    retry_after = parse_retry_after(response.retry_after, now=now)
    body = policy.hide(response.body.decode(errors="replace"))
    quote = f" It said: {excerpt}" if (excerpt := redact_line(body)) else ""
    error = f"{policy.where} answered {_describe_status(response.status)}{_advise(response.status)}.{quote}"
    return Outcome(
        delivered=False,
        error=error,
        rejected=status is DeliveryStatus.REJECTED,
        retry_after=retry_after,
        not_now=status in _NO_FAULT or _is_not_now(response.status, retry_after),
        missing=status is DeliveryStatus.MISSING,
        detail=redact_line(body, limit=_MAX_DETAIL) or None,
    )


def _is_not_now(status: int, retry_after: timedelta | None) -> bool:
    """Return whether a status asks to come back later. A 503 without a time may be an answer to the message itself."""
    return status == _TOO_MANY or (status == _UNAVAILABLE and retry_after is not None)


def parse_retry_after(header: str | None, *, now: datetime) -> timedelta | None:
    """Parse a `Retry-After` header: seconds or a date, at most a day. Return None for anything else."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return _MAX_RETRY_AFTER if len(text) > 9 else min(timedelta(seconds=int(text)), _MAX_RETRY_AFTER)
    try:
        at = parsedate_to_datetime(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        return min(max(at - now, timedelta(0)), _MAX_RETRY_AFTER)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _describe_status(status: int) -> str:
    """Return the status with its standard phrase. The phrase of a response can be any text."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _advise(status: int) -> str:
    if 300 <= status <= 399:
        return ", a redirect, which is not followed; correct the URL"
    if status in (401, 402, 403, 407):
        return "; check the secret, the headers and what the endpoint allows"
    if status in _OUTAGES or status in (_NOT_FOUND, _GONE):
        return "; check the URL and the method"
    return ""
