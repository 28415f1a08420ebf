"""What a cluster's settings mean for messages. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.kafka.verdicts import Verdict, answer_of

__all__ = ["TopicFacts", "addressed", "findings_of", "unaddressed"]

_SHORT: Final = timedelta(days=1)


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one topic."""

    name: str
    error: int = 0
    """The code the cluster answered with, if it did not describe the topic."""
    replicas: int = 0
    """Of the partition that has the fewest."""
    settings: Mapping[str, str] = {}
    hidden: str | None = None
    """Why the settings are not shown."""
    auto_create: str | None = None
    """The cluster's `auto.create.topics.enable`; None when it is not shown."""


def findings_of(facts: TopicFacts, *, max_message_bytes: int) -> Sequence[Finding]:
    """What could lose, delay or refuse messages of the topic."""
    if facts.error:
        return [_unusable(facts)]
    found = [*_replication(facts), *_keeping(facts), *_sizes(facts, max_message_bytes)]
    if facts.hidden is not None:
        found.append(_unseen(facts))
    if facts.auto_create == "true":
        found.append(_auto_create())
    return found


def _unusable(facts: TopicFacts) -> Finding:
    answer = answer_of(facts.error, topic=facts.name, said=f"error {facts.error}")
    what, _, fix = answer.text.partition(": ")
    return Finding(
        code="kafka.topic-missing" if answer.verdict is Verdict.OUTAGE else "kafka.topic-broken",
        severity=Severity.CRITICAL,
        what=f"{what[:1].upper()}{what[1:]}.",
        why="Its messages wait in the outbox; nothing is lost.",
        fix=f"{fix[:1].upper()}{fix[1:]}." if fix else "Look at the brokers' logs.",
    )


def _replication(facts: TopicFacts) -> Iterator[Finding]:
    least = facts.settings.get("min.insync.replicas")
    if facts.replicas < 3:
        yield Finding(
            code="kafka.few-replicas",
            severity=Severity.WARNING,
            what=f"The topic {facts.name} has partitions on {facts.replicas} broker{'s' * (facts.replicas != 1)} only.",
            why="A broker that is lost takes acknowledged messages with it, or stops delivery.",
            fix="Raise the replication factor to 3 with kafka-reassign-partitions.",
        )
    if least is not None and int(least) < 2:
        yield Finding(
            code="kafka.min-insync-replicas",
            severity=Severity.WARNING,
            what=f"The topic {facts.name} acknowledges with min.insync.replicas = {least}.",
            why="While the other replicas lag, one broker alone acknowledges; if it is lost, so are the messages.",
            fix="Set min.insync.replicas = 2, with a replication factor of 3.",
        )
    if facts.settings.get("unclean.leader.election.enable") == "true":
        yield Finding(
            code="kafka.unclean-leader-election",
            severity=Severity.CRITICAL,
            what=f"The topic {facts.name} has unclean.leader.election.enable = true.",
            why="A replica that lags behind can become the leader, and acknowledged messages are gone.",
            fix="Set unclean.leader.election.enable = false.",
        )


def _keeping(facts: TopicFacts) -> Iterator[Finding]:
    policy = facts.settings.get("cleanup.policy", "")
    kept = facts.settings.get("retention.ms")
    most = facts.settings.get("retention.bytes")
    if "compact" in policy:
        yield Finding(
            code="kafka.compacted",
            severity=Severity.WARNING,
            what=f"The topic {facts.name} is compacted (cleanup.policy = {policy}).",
            why="Of each key only the last message is kept, and messages without a key are refused.",
            fix="Set cleanup.policy = delete, unless every message of a key replaces the one before.",
        )
    if "delete" in policy and kept is not None and 0 <= int(kept) < _SHORT / timedelta(milliseconds=1):
        yield Finding(
            code="kafka.short-retention",
            severity=Severity.WARNING,
            what=f"The topic {facts.name} keeps messages for {int(kept) / 3_600_000:.3g} h.",
            why="A consumer that is down for longer never sees them.",
            fix="Raise retention.ms above the longest outage a consumer may have.",
        )
    if "delete" in policy and most is not None and int(most) >= 0:
        yield Finding(
            code="kafka.retention-bytes",
            severity=Severity.INFO,
            what=f"The topic {facts.name} keeps at most {most} bytes per partition.",
            why="In a busy hour messages go before consumers have read them.",
            fix="Watch the consumers' lag, or set retention.bytes = -1.",
        )


def _sizes(facts: TopicFacts, max_message_bytes: int) -> Iterator[Finding]:
    most = facts.settings.get("max.message.bytes")
    if most is not None and int(most) < max_message_bytes:
        yield Finding(
            code="kafka.small-messages",
            severity=Severity.WARNING,
            what=f"The topic {facts.name} takes requests of {most} bytes; this transport sends {max_message_bytes}.",
            why="Requests of several messages are refused, and the messages sent again one by one, which is slow.",
            fix=f"Raise max.message.bytes, or set max_message_bytes={most} on the transport.",
        )


def _unseen(facts: TopicFacts) -> Finding:
    return Finding(
        code="kafka.settings-hidden",
        severity=Severity.INFO,
        what=f"The settings of the topic {facts.name} are not shown to this login ({facts.hidden}).",
        why="Whether min.insync.replicas, retention and leader election are safe is not known.",
        fix="Let the login describe configs, or look with kafka-configs --describe.",
    )


def _auto_create() -> Finding:
    return Finding(
        code="kafka.auto-create",
        severity=Severity.WARNING,
        what="The cluster creates topics when somebody names them (auto.create.topics.enable = true).",
        why="A misspelt name elsewhere makes a topic with the defaults, often one replica. This transport never does.",
        fix="Set auto.create.topics.enable = false on the brokers.",
    )


def addressed(template: str, topic: str) -> str | None:
    """Where messages of a topic go, if the topic alone decides."""
    name = template.replace("{topic}", topic)
    return None if "{" in name else name


def unaddressed(template: str) -> Finding:
    """Said when more than the topic decides where messages go."""
    return Finding(
        code="kafka.topics-unknown",
        severity=Severity.INFO,
        what=f"The Kafka topics are made from each message ({template}), so their settings were not looked at.",
        why="Whether they are replicated and kept long enough is not known.",
        fix="Look with kafka-topics --describe and kafka-configs --describe.",
    )
