"""Meaning of AWS's error codes for a message and for the destination. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from pillarbox.redaction import redact_line

__all__ = [
    "Refusal",
    "RefusalKind",
    "ServiceDescription",
    "classify_call_error",
    "classify_entry_error",
    "describe_refusal",
]

_THROTTLED: Final = frozenset(
    {
        "throttling", "throttled", "requestthrottled", "toomanyrequests", "requestlimitexceeded", "slowdown",
        "bandwidthlimitexceeded", "overlimit", "kmsthrottling", "kmsthrottled", "priorrequestnotcomplete",
    }
)  # fmt: skip
_LOGIN: Final = frozenset(
    {
        "invalidclienttokenid", "unrecognizedclient", "signaturedoesnotmatch", "invalidsignature", "authfailure",
        "incompletesignature", "expiredtoken", "requestexpired", "invalidaccesskeyid", "missingauthenticationtoken",
        "optinrequired",
    }
)  # fmt: skip
_DENIED: Final = frozenset(
    {
        "accessdenied", "authorizationerror", "kmsaccessdenied", "kmsdisabled", "kmsinvalidstate", "kmsinvalidkeyusage",
        "notauthorized", "kmsnotfound", "kmsoptinrequired", "invalidsecurity",
    }
)  # fmt: skip
_MISSING: Final = frozenset({"nonexistentqueue", "queuedoesnotexist", "notfound", "resourcenotfound", "invalidaddress"})
_TRANSIENT: Final = frozenset(
    {
        "internalerror", "internalfailure", "internalservererror", "serviceunavailable", "requesttimeout",
        "queuedeletedrecently",
    }
)  # fmt: skip


class RefusalKind(Enum):
    """Subject of a refusal."""

    REJECTED = auto()
    """The message; of a whole call, one of its messages."""
    FAILED = auto()
    """This moment: AWS throttles, or has an error of its own."""
    DENIED = auto()
    """A permission that the login does not have."""
    MISSING = auto()
    """The queue or topic, which does not exist."""
    LOGIN = auto()
    """The login itself."""


class Refusal(msgspec.Struct, frozen=True):
    """AWS's refusal of a message or a call."""

    kind: RefusalKind
    code: str
    text: str


def classify_call_error(code: str, text: str, *, status: int) -> Refusal:
    """Return the refusal of a whole call."""
    name = _normalize(code)
    kind = _find_kind(name)
    if kind is None:
        kind = RefusalKind.FAILED if name in _TRANSIENT or status >= 500 else RefusalKind.REJECTED
    return Refusal(kind, code, text)


def classify_entry_error(failed: Mapping[str, object]) -> Refusal:
    """Return the refusal of one message, from its entry in `Failed`."""
    code = str(failed.get("Code", ""))
    kind = _find_kind(_normalize(code))
    if kind is None:
        kind = RefusalKind.REJECTED if failed.get("SenderFault") else RefusalKind.FAILED
    return Refusal(kind, code, str(failed.get("Message") or ""))


def _find_kind(name: str) -> RefusalKind | None:
    if name in _THROTTLED:
        return RefusalKind.FAILED
    if name in _LOGIN:
        return RefusalKind.LOGIN
    if name in _DENIED:
        return RefusalKind.DENIED
    return RefusalKind.MISSING if name in _MISSING else None


def _normalize(code: str) -> str:
    """Return one name for the spellings of a code, such as `KMS.ThrottlingException` and `KMSThrottlingException`."""
    name = code.rpartition("#")[2].removeprefix("AWS.SimpleQueueService.").replace(".", "")
    return name.lower().removesuffix("exception")


class ServiceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Words for one service in errors and findings."""

    where: str
    """The service, for people."""
    target: str
    """`queue` or `topic`."""
    action: str
    """The permission that a login needs, such as `sqs:SendMessage`."""
    hide: Callable[[str], str] = str
    """Removes secrets from a text: AWS may echo them."""


def describe_refusal(refusal: Refusal, target: str, service: ServiceDescription) -> str:
    """Describe a refusal in a sentence, with what to do about it."""
    where, code = service.where, redact_line(refusal.code) or "no code"
    quote = f" It said: {redact_line(service.hide(refusal.text))}" if refusal.text else ""
    match refusal.kind:
        case RefusalKind.LOGIN:
            return f"{where} does not take this login ({code}): check the access key, its secret and the clock.{quote}"
        case RefusalKind.DENIED:
            return (
                f"{where} denies the {service.target} {target!r} to this login ({code}): allow {service.action}.{quote}"
            )
        case RefusalKind.MISSING:
            return f"{where} has no {service.target} {target!r} ({code}): create it, or set declare=true."
        case RefusalKind.REJECTED:
            return f"{where} will not take this message for {target!r} ({code}).{quote}"
        case RefusalKind.FAILED:
            return f"{where} did not take a message for {target!r} ({code}).{quote}"
