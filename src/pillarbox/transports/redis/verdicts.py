"""What the server's replies mean for a message and for the destination. Pure."""

from __future__ import annotations

from typing import Final

from pillarbox.protocols import Outcome
from pillarbox.transports.answers import DELIVERED, Answer, Interrupted
from pillarbox.transports.redaction import one_line
from pillarbox.transports.redis.settings import Durability

__all__ = ["Refusal", "answer_of", "outage_of", "shortfall"]

_OUTAGES: Final = {
    "ASK": "this is a cluster, which the transport does not know: name a single server",
    "CLUSTERDOWN": "the cluster is down",
    "LOADING": "it is loading its data: wait",
    "MASTERDOWN": "its master is away: wait, or name the master",
    "MISCONF": "it cannot write to its disk: give it room",
    "MOVED": "this is a cluster, which the transport does not know: name a single server",
    "NOAUTH": "it wants a login: set user and password",
    "NOPERM": "this user may not add to it: allow XADD on the key, or use another login",
    "NOREPLICAS": "too few replicas are connected: see min-replicas-to-write",
    "READONLY": "it is a replica: name the master",
    "WRONGTYPE": "the key holds something else than a stream: use another key, or remove it",
}
"""The same for every message of that stream, or of all: topology, permission, the state of the server."""
_UNKNOWN: Final = ("unknown command", "WAITAOF cannot be used")
_TOO_LARGE: Final = "Protocol error: invalid bulk length"


class Refusal(str):
    """An error that the server replied, with its code at the beginning."""

    __slots__ = ()

    @property
    def code(self) -> str:
        return self.partition(" ")[0]


def answer_of(reply: object, *, key: str) -> Answer:
    """What the reply to the command that adds a message says."""
    if isinstance(reply, bytes):
        return DELIVERED
    stream = repr(one_line(key, limit=100))
    if reply is None:
        text = f"Redis has no stream {stream}, and create=false: create it, or let the first message do it."
        return Interrupted(text, is_outage=True)
    if not isinstance(reply, Refusal):
        return Outcome(False, f"Redis replied something unknown for the stream {stream}.")
    said = one_line(reply).rstrip(".")
    if _TOO_LARGE in reply:
        return Outcome(False, f"Redis takes no field as large as this one: {said}.", rejected=True)
    if advice := _advice(reply):
        return Interrupted(f"Redis does not take messages for the stream {stream} ({said}): {advice}.", is_outage=True)
    return Outcome(False, f"Redis did not take the message for the stream {stream}: {said}.")


def outage_of(reply: object) -> str:
    """Why a server that replied so to a ping is out of service."""
    if not isinstance(reply, Refusal):
        return "it answers a ping with something else than a pong"
    said, advice = one_line(reply).rstrip("."), _advice(reply)
    return f"{said}: {advice}" if advice else said


def shortfall(reply: object, wanted: Durability) -> Answer | None:
    """What the reply to WAIT or WAITAOF says about every message of the batch; None when all is as wanted."""
    if isinstance(reply, Refusal):
        advice = _advice(reply) or "wait"
        text = f"Redis cannot say whether the messages are safe ({one_line(reply)}): {advice}."
        return Interrupted(text, is_outage=True)
    synced, replicas = (reply[0], reply[1]) if isinstance(reply, list) and len(reply) == 2 else (0, reply)
    if not isinstance(synced, int) or not isinstance(replicas, int):
        return Outcome(False, "Redis replied something unknown when asked whether the messages are safe.")
    if synced < wanted.is_synced:
        return Outcome(False, "Redis has the message in memory, but did not get it to its disk in time.")
    if replicas < wanted.replicas:
        return Outcome(False, f"Redis has the message, but only {replicas} of {wanted.replicas} replicas in time.")
    return None


def _advice(refusal: Refusal) -> str | None:
    if any(words in refusal for words in _UNKNOWN):
        return "the option durability needs Redis 7.2 or Valkey with appendonly yes; XADD needs Redis 5"
    return _OUTAGES.get(refusal.code)
