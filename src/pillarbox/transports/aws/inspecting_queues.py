"""What is set on a queue that could lose messages. The judging is pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.aws.client import NoAnswer, Refused
from pillarbox.transports.aws.inspecting import Inspection, each
from pillarbox.transports.aws.names import is_fifo
from pillarbox.transports.aws.queues import Queues

__all__ = ["inspected", "judged"]

_DAY: Final = 86_400
_LARGEST: Final = 1_048_576


async def inspected(queues: Queues, inspection: Inspection) -> Sequence[Finding]:
    """Findings of every queue that the topics lead to."""
    return await each(inspection, "sqs", partial(_looked_at, queues))


async def _looked_at(queues: Queues, name: str) -> Sequence[Finding]:
    settings = await queues.attributes(name)
    return list(judged(name, settings, dead=await _dead_letters(queues, settings)))


async def _dead_letters(queues: Queues, settings: Mapping[str, str]) -> Mapping[str, str] | None:
    """The settings of the queue's own dead-letter queue, if they can be seen."""
    target = str(_redrive(settings).get("deadLetterTargetArn", "")).rpartition(":")[2]
    try:
        return await queues.attributes(target) if target else None
    except (Refused, NoAnswer):
        return None


def judged(name: str, settings: Mapping[str, str], *, dead: Mapping[str, str] | None) -> Iterator[Finding]:
    """What these settings can do to messages."""
    yield from _kept(name, settings, dead)
    yield from _dead_lettered(name, settings)
    yield from _order(name)
    if int(settings.get("MaximumMessageSize", _LARGEST)) < _LARGEST:
        yield Finding(
            code="sqs.size-limit",
            severity=Severity.INFO,
            what=f"The queue {name!r} takes messages of at most {settings['MaximumMessageSize']} bytes.",
            why="What is larger, with its attributes, is rejected.",
            fix="Raise MaximumMessageSize to 1048576, or lower max_payload of the outbox.",
        )
    if settings.get("SqsManagedSseEnabled") != "true" and not settings.get("KmsMasterKeyId"):
        yield Finding(
            code="sqs.not-encrypted",
            severity=Severity.WARNING,
            what=f"The queue {name!r} is not encrypted.",
            why="Payloads lie on AWS's disks as they are.",
            fix="Set SqsManagedSseEnabled to true, or give it a KMS key.",
        )


def _kept(name: str, settings: Mapping[str, str], dead: Mapping[str, str] | None) -> Iterator[Finding]:
    kept = int(settings.get("MessageRetentionPeriod", 4 * _DAY))
    if kept < 4 * _DAY:
        yield Finding(
            code="sqs.short-retention",
            severity=Severity.WARNING,
            what=f"The queue {name!r} keeps messages for {kept / 3_600:g} h.",
            why="What its consumers have not taken by then is deleted, though it was delivered.",
            fix="Set MessageRetentionPeriod to 1209600, 14 days.",
        )
    if dead is not None and int(dead.get("MessageRetentionPeriod", 4 * _DAY)) <= kept:
        yield Finding(
            code="sqs.dead-letters-expire",
            severity=Severity.WARNING,
            what=f"The dead-letter queue of {name!r} keeps messages no longer than the queue itself.",
            why="The time counts from when a message was sent, so it may be deleted as soon as it gets there.",
            fix="Let the dead-letter queue keep messages longer than the queue.",
        )


def _dead_lettered(name: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    tries = _redrive(settings).get("maxReceiveCount")
    if tries is None:
        yield Finding(
            code="sqs.no-dead-letter-queue",
            severity=Severity.WARNING,
            what=f"The queue {name!r} has no dead-letter queue.",
            why="A message that its consumer cannot handle comes again until it is too old, and is then deleted.",
            fix="Give it a RedrivePolicy with a queue that is watched.",
        )
    elif int(str(tries)) < 3:
        yield Finding(
            code="sqs.few-receives",
            severity=Severity.WARNING,
            what=f"The queue {name!r} gives a message up after {tries} receives.",
            why="A consumer that restarts in their midst sends good messages to the dead letters.",
            fix="Set maxReceiveCount to 5 or more.",
        )


def _order(name: str) -> Iterator[Finding]:
    if is_fifo(name):
        yield Finding(
            code="sqs.dedup-window",
            severity=Severity.INFO,
            what=f"The queue {name!r} knows a repeated message for 5 minutes.",
            why="One that is sent again after a longer outage arrives twice.",
            fix="Deduplicate by the id, for example with the inbox.",
        )
    else:
        yield Finding(
            code="sqs.standard-queue",
            severity=Severity.INFO,
            what=f"The queue {name!r} is a standard queue.",
            why="It may deliver messages out of order and more than once, also of one key.",
            fix="Where order matters use a FIFO queue, whose name ends in .fifo.",
        )


def _redrive(settings: Mapping[str, str]) -> Mapping[str, object]:
    try:
        policy = json.loads(settings.get("RedrivePolicy") or "{}")
    except ValueError:
        return {}
    return policy if isinstance(policy, dict) else {}
