"""What is set on a topic that could lose messages. The judging is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.aws.inspecting import Inspection, each
from pillarbox.transports.aws.names import is_fifo
from pillarbox.transports.aws.topics import Topics

__all__ = ["inspected", "judged"]


async def inspected(topics: Topics, inspection: Inspection) -> Sequence[Finding]:
    """Findings of every topic that the messages' topics lead to."""
    return await each(inspection, "sns", partial(_looked_at, topics))


async def _looked_at(topics: Topics, name: str) -> Sequence[Finding]:
    return list(judged(name, await topics.attributes(name), await topics.subscriptions(name)))


def judged(name: str, settings: Mapping[str, str], subscriptions: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """What these settings can do to messages."""
    yield from _subscribed(name, settings, seen=len(subscriptions))
    careless = [one.get("Endpoint", "") for one in subscriptions if not one.get("RedrivePolicy")]
    if careless:
        yield Finding(
            code="sns.no-dead-letter-queue",
            severity=Severity.WARNING,
            what=f"{len(careless)} of {len(subscriptions)} subscriptions of {name!r} have no dead-letter queue.",
            why="What SNS cannot pass on in time, or is not allowed to, is dropped.",
            fix="Give each subscription a RedrivePolicy with a queue that is watched.",
        )
    if not settings.get("KmsMasterKeyId"):
        yield Finding(
            code="sns.not-encrypted",
            severity=Severity.INFO,
            what=f"The topic {name!r} has no KMS key.",
            why="Payloads lie on AWS's disks as they are while SNS passes them on.",
            fix="Set KmsMasterKeyId, and let the subscribed queues use the key.",
        )
    if is_fifo(name):
        yield Finding(
            code="sns.dedup-window",
            severity=Severity.INFO,
            what=f"The topic {name!r} knows a repeated message for 5 minutes.",
            why="One that is sent again after a longer outage arrives twice.",
            fix="Deduplicate by the id, for example with the inbox.",
        )


def _subscribed(name: str, settings: Mapping[str, str], *, seen: int) -> Iterator[Finding]:
    if not seen and not int(settings.get("SubscriptionsConfirmed", 0)):
        yield Finding(
            code="sns.no-subscriptions",
            severity=Severity.CRITICAL,
            what=f"The topic {name!r} has no confirmed subscription.",
            why="SNS takes messages for it, and drops them.",
            fix="Subscribe a queue to it, and confirm.",
        )
    if pending := int(settings.get("SubscriptionsPending", 0)):
        yield Finding(
            code="sns.subscriptions-pending",
            severity=Severity.WARNING,
            what=f"{pending} subscriptions of {name!r} are not confirmed.",
            why="They get nothing, and messages of now will not come later.",
            fix="Confirm them, or delete them.",
        )
