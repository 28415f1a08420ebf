"""The meaning of the server's replies, for a message, the destination and a receiver. Pure."""

from __future__ import annotations

import re
from typing import Final

from pillarbox.brokers.redis.settings import Durability, RedisReceiverSettings
from pillarbox.brokers.send_batch import DELIVERED, Answer, NotAnswered
from pillarbox.contracts.transport import Outcome
from pillarbox.redaction import redact_line

__all__ = [
    "ErrorReply",
    "describe_error_reply",
    "describe_ping_reply",
    "is_demotion",
    "is_missing_group",
    "is_script_refusal",
    "read_add_reply",
    "read_run_reply",
    "read_wait_reply",
]

_STATES: Final = {
    "BUSY": "a script keeps it busy: wait, or end it with SCRIPT KILL",
    "CLUSTERDOWN": "the cluster is down",
    "LOADING": "it is loading its data: wait",
    "MASTERDOWN": "its master is away: wait, or name the master",
    "MISCONF": "it cannot write to its disk: give it room",
    "NOAUTH": "it requires a login: set user and password",
    "READONLY": "it is a replica: name the master",
}
_OUTAGES: Final = {
    **_STATES,
    "ASK": "this is a cluster, which the transport does not know: name a single server",
    "MOVED": "this is a cluster, which the transport does not know: name a single server",
    "NOREPLICAS": "too few replicas are connected: see min-replicas-to-write",
}
"""The same for every message: the state of the server."""
_WRONG_TYPE: Final = "the key holds something else than a stream: use another key, or remove it"
_MISSING: Final = {
    "NOPERM": "this user may not add to it: allow XADD on the key, or use another login",
    "WRONGTYPE": _WRONG_TYPE,
}
"""The same for every message of that stream."""
_USED_UP: Final = "exhausted the last possible ID"
_NOT_NOW: Final = frozenset({"OOM", "TRYAGAIN"})
_UNKNOWN: Final = ("unknown command", "WAITAOF cannot be used")
_SCRIPT_POSITION: Final = re.compile(r"\A@?user_script: ?\d+: ?-?")
_TOO_LARGE: Final = "Protocol error: invalid bulk length"


class ErrorReply(str):
    """An error of the server, with its code at the beginning."""

    __slots__ = ()

    @property
    def code(self) -> str:
        return self.partition(" ")[0]


def read_add_reply(reply: object, *, key: str) -> Answer:
    """Return the answer in the reply to XADD."""
    if isinstance(reply, bytes):
        return DELIVERED
    stream = repr(redact_line(key, limit=100))
    if reply is None:
        text = f"Redis has no stream {stream}, and create=false: create it, or let the first message do it."
        return Outcome(False, text, not_now=True, missing=True)
    if not isinstance(reply, ErrorReply):
        return Outcome(False, f"Redis replied something unknown for the stream {stream}.")
    text = redact_line(reply).rstrip(".")
    if _TOO_LARGE in reply:
        return Outcome(False, f"Redis takes no field as large as this one: {text}.", rejected=True)
    if advice := _find_missing(reply):
        error = f"Redis does not take messages for the stream {stream} ({text}): {advice}."
        return Outcome(False, error, not_now=True, missing=True)
    if advice := _find_advice(reply):
        return NotAnswered(f"Redis does not take messages for the stream {stream} ({text}): {advice}.", is_outage=True)
    is_later = reply.code in _NOT_NOW
    return Outcome(False, f"Redis did not take the message for the stream {stream}: {text}.", not_now=is_later)


def _find_missing(reply: ErrorReply) -> str | None:
    if _USED_UP in reply:  # an id was once given by hand, far above all that a clock gives
        return "its last id is the highest that there is: remove the stream, or use another key"
    return _MISSING.get(reply.code)


def read_run_reply(reply: object, *, key: str, count: int) -> list[Answer]:
    """Return the answers in the reply to a script that adds `count` messages: those that were tried.

    The last one may be a failure, and after it nothing was added. Of an error in place of the list nobody knows the
    message.
    """
    if isinstance(reply, list) and reply:
        plain = [_strip_position(one) if isinstance(one, ErrorReply) else one for one in reply[:count]]
        return [read_add_reply(one, key=key) for one in plain]
    if isinstance(reply, ErrorReply) and _TOO_LARGE in reply:
        # It is one of the messages that is too large, and the server has read none of them.
        text = redact_line(reply).rstrip(".")
        return [NotAnswered(f"Redis takes no field as large as one of these messages has ({text}).")] * count
    return [read_add_reply(reply if isinstance(reply, ErrorReply) else [], key=key)]


def _strip_position(reply: ErrorReply) -> ErrorReply:
    # Redis 6 begins the errors of a script with the line: "@user_script: 4: -OOM command not allowed".
    return ErrorReply(_SCRIPT_POSITION.sub("", reply))


_DEMOTIONS: Final = frozenset({"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"})


def is_demotion(reply: ErrorReply) -> bool:
    """Return True for an error of a server that is no master any more, or not yet again: another one may be."""
    return _strip_position(reply).code in _DEMOTIONS


def is_script_refusal(reply: object) -> bool:
    """Return True for a reply which says that this login may run no scripts, or that there are none."""
    is_refusal = isinstance(reply, ErrorReply) and (reply.code == "NOPERM" or _UNKNOWN[0] in reply)
    return is_refusal and "eval" in str(reply).lower()


def describe_ping_reply(reply: object) -> str:
    """Describe why a server that replied so to PING is out of service."""
    if not isinstance(reply, ErrorReply):
        return "it answers a ping with something else than a pong"
    text, advice = redact_line(reply).rstrip("."), _find_advice(reply)
    return f"{text}: {advice}" if advice else text


def read_wait_reply(reply: object, durability: Durability) -> Answer | None:
    """Return the answer for all messages of a batch in the reply to WAIT or WAITAOF; None when they are durable."""
    if isinstance(reply, ErrorReply):
        advice = _find_advice(reply) or "wait"
        text = f"Redis cannot say whether the messages are safe ({redact_line(reply)}): {advice}."
        return NotAnswered(text, is_outage=True)
    synced, replicas = (reply[0], reply[1]) if isinstance(reply, list) and len(reply) == 2 else (0, reply)
    if not isinstance(synced, int) or not isinstance(replicas, int):
        return Outcome(False, "Redis replied something unknown when asked whether the messages are safe.")
    if synced < durability.is_synced:
        return Outcome(False, "Redis has the message in memory, but did not get it to its disk in time.", not_now=True)
    if replicas < durability.replicas:
        error = f"Redis has the message, but only {replicas} of {durability.replicas} replicas in time."
        return Outcome(False, error, not_now=True)
    return None


def _find_advice(reply: ErrorReply) -> str | None:
    if any(words in reply for words in _UNKNOWN):
        return "the option durability needs Redis 7.2 or Valkey with appendonly yes; XADD needs Redis 5"
    return _OUTAGES.get(reply.code)


_RECEIVER_ADVICE: Final = {
    **_STATES,
    "ASK": "this is a cluster, which the receiver does not know: name a single server",
    "MOVED": "this is a cluster, which the receiver does not know: name a single server",
    "NOPERM": "this user may not read it: allow what the receiver needs on the key, or use another login",
    "OOM": "its memory is full: give it more, or trim the stream",
    "WRONGTYPE": _WRONG_TYPE,
}
_MISSING_GROUP: Final = ("NOGROUP", "UNBLOCKED")
"""The group or the stream does not exist, or was removed while a read waited."""


def is_missing_group(reply: object) -> bool:
    """Return True for a reply that reports a missing group."""
    return isinstance(reply, ErrorReply) and reply.code in _MISSING_GROUP


def describe_error_reply(reply: ErrorReply, settings: RedisReceiverSettings, *, where: str) -> str:
    """Describe what an error means for a receiver, and what to do."""
    text = redact_line(reply).rstrip(".")
    if is_missing_group(reply):
        missing = f"group {settings.group!r} of the stream {settings.stream!r}"
        return f"{where} has no {missing}: create it, or set declare=true ({text})."
    if "unknown command" in reply:
        return f"{where} is too old: the receiver needs Redis 6.2 or Valkey ({text})."
    advice = _RECEIVER_ADVICE.get(reply.code, "see its log")
    return f"{where} does not let the stream {settings.stream!r} be read ({text}): {advice}."
