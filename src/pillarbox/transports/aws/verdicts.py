"""What AWS's errors mean for a message and for the destination. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import msgspec

from pillarbox.transports.redaction import one_line

__all__ = ["Refusal", "Verdict", "Words", "entry_refusal", "refusal", "told"]

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
        "kmsnotfound", "kmsoptinrequired", "invalidsecurity",
    }
)  # fmt: skip
_MISSING: Final = frozenset({"nonexistentqueue", "queuedoesnotexist", "notfound", "resourcenotfound"})
_PASSING: Final = frozenset(
    {
        "internalerror", "internalfailure", "internalservererror", "serviceunavailable", "requesttimeout",
        "queuedeletedrecently",
    }
)  # fmt: skip


class Verdict(Enum):
    """What a refusal is about."""

    REJECTED = auto()
    """The message, or of a whole call one of its messages."""
    FAILED = auto()
    """This moment: throttled, or an error on their side."""
    DENIED = auto()
    """What this login may do there."""
    MISSING = auto()
    """The queue or topic, which is not there."""
    LOGIN = auto()
    """Who we are."""


class Refusal(msgspec.Struct, frozen=True):
    """Why AWS did not take a message or a call."""

    verdict: Verdict
    code: str
    said: str


def refusal(code: str, said: str, *, status: int) -> Refusal:
    """Of a whole call."""
    word = _word(code)
    found = _known(word)
    if found is None:
        found = Verdict.FAILED if word in _PASSING or status >= 500 else Verdict.REJECTED
    return Refusal(found, code, said)


def entry_refusal(failed: Mapping[str, object]) -> Refusal:
    """Of one message, from its entry in `Failed`."""
    code = str(failed.get("Code", ""))
    found = _known(_word(code))
    if found is None:
        found = Verdict.REJECTED if failed.get("SenderFault") else Verdict.FAILED
    return Refusal(found, code, str(failed.get("Message") or ""))


def _known(word: str) -> Verdict | None:
    if word in _THROTTLED:
        return Verdict.FAILED
    if word in _LOGIN:
        return Verdict.LOGIN
    if word in _DENIED:
        return Verdict.DENIED
    return Verdict.MISSING if word in _MISSING else None


def _word(code: str) -> str:
    """The same error has several names, such as `KMS.ThrottlingException` and `KMSThrottlingException`."""
    name = code.rpartition("#")[2].removeprefix("AWS.SimpleQueueService.").replace(".", "")
    return name.lower().removesuffix("exception")


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What a service's places are called, for people."""

    where: str
    what: str
    """`queue` or `topic`."""
    action: str
    """What a login must be allowed to do, such as `sqs:SendMessage`."""
    hide: Callable[[str], str] = str
    """Takes secrets out of a text: AWS may echo them."""


def told(why: Refusal, place: str, words: Words) -> str:
    """A refusal as a sentence, and what to do about it."""
    where, code = words.where, one_line(why.code) or "no code"
    quoted = f" It said: {one_line(words.hide(why.said))}" if why.said else ""
    match why.verdict:
        case Verdict.LOGIN:
            return f"{where} does not take this login ({code}): check the access key, its secret and the clock.{quoted}"
        case Verdict.DENIED:
            return f"{where} denies the {words.what} {place!r} to this login ({code}): allow {words.action}.{quoted}"
        case Verdict.MISSING:
            return f"{where} has no {words.what} {place!r} ({code}): create it, or set declare=true."
        case Verdict.REJECTED:
            return f"{where} will not take this message for {place!r} ({code}).{quoted}"
        case Verdict.FAILED:
            return f"{where} did not take a message for {place!r} ({code}).{quoted}"
