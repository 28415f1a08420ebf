"""Why a server does not let us read, as a sentence that says what to do. Pure."""

from __future__ import annotations

from typing import Final

from pillarbox.receivers.redis.settings import RedisReceiverSettings
from pillarbox.transports.redaction import one_line
from pillarbox.transports.redis.verdicts import Refusal

__all__ = ["is_missing", "said"]

_CLUSTER: Final = "this is a cluster, which the receiver does not know: name a single server"
_ADVICE: Final = {
    "ASK": _CLUSTER,
    "CLUSTERDOWN": "the cluster is down",
    "LOADING": "it is loading its data: wait",
    "MASTERDOWN": "its master is away: wait, or name the master",
    "MISCONF": "it cannot write to its disk: give it room",
    "MOVED": _CLUSTER,
    "NOAUTH": "it wants a login: set user and password",
    "NOPERM": "this user may not read it: allow what the receiver needs on the key, or use another login",
    "OOM": "its memory is full: give it more, or trim the stream",
    "READONLY": "it is a replica: name the master",
    "WRONGTYPE": "the key holds something else than a stream: use another key, or remove it",
}
_MISSING: Final = ("NOGROUP", "UNBLOCKED")
"""The group or the stream is not there, or was removed while somebody waited."""


def is_missing(reply: object) -> bool:
    """There is no such group."""
    return isinstance(reply, Refusal) and reply.code in _MISSING


def said(refusal: Refusal, settings: RedisReceiverSettings, *, where: str) -> str:
    """What a refusal means, and what to do."""
    words = one_line(refusal).rstrip(".")
    if is_missing(refusal):
        missing = f"group {settings.group!r} of the stream {settings.stream!r}"
        return f"{where} has no {missing}: create it, or set declare=true ({words})."
    if "unknown command" in refusal:
        return f"{where} is too old: the receiver needs Redis 6.2 or Valkey ({words})."
    advice = _ADVICE.get(refusal.code, "see its log")
    return f"{where} does not let the stream {settings.stream!r} be read ({words}): {advice}."
