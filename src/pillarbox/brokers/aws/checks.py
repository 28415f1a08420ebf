"""Checks of queues and topics for settings that can lose messages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.brokers.aws.connection import CallRefused, NoResponse, SnsTopics, SqsQueues
from pillarbox.brokers.aws.encoding import find_target_of_topic, is_fifo
from pillarbox.brokers.aws.errors import RefusalKind, ServiceDescription, describe_refusal
from pillarbox.brokers.checks import report_critical, report_info, report_warning, sort_findings
from pillarbox.contracts.finding import Finding
from pillarbox.errors import MessageRejected, TransportUnavailable

__all__ = ["TargetChecks", "check_queue", "check_topic"]

_DAY: Final = 86_400
_DEFAULT_RETENTION: Final = 4 * _DAY
_MAX_MESSAGE_SIZE: Final = 1_048_576
_MIN_RECEIVES: Final = 3


class TargetChecks(msgspec.Struct, frozen=True):
    """Checks of the queues or topics of one destination."""

    name: str
    """`sqs` or `sns`."""
    service: ServiceDescription
    template: str
    max_length: int
    """Limit of a target's name."""
    topics: Sequence[str]

    async def run(self, check: Callable[[str], Awaitable[Sequence[Finding]]]) -> Sequence[Finding]:
        """Check every target that the topics lead to; return the findings, worst first."""
        findings: list[Finding] = []
        targets: dict[str, None] = {}
        for topic in self.topics:
            try:
                target = find_target_of_topic(self.template, topic, max_length=self.max_length)
            except MessageRejected as error:
                findings.append(self._report_unusable_name(topic, error))
                continue
            if target is not None:
                targets[target] = None
        if not targets and not findings:
            findings.append(self._report_unknown_targets())
        for target in targets:
            findings += await self._check_target(target, check)
        return sort_findings(findings)

    async def _check_target(
        self, target: str, check: Callable[[str], Awaitable[Sequence[Finding]]]
    ) -> Sequence[Finding]:
        try:
            return await check(target)
        except NoResponse as error:
            raise TransportUnavailable(str(error)) from error
        except CallRefused as error:
            if error.refusal.kind is RefusalKind.MISSING:
                return [self._report_missing_target(target)]
            if error.refusal.kind is RefusalKind.DENIED:
                return [self._report_hidden_settings(target)]
            raise TransportUnavailable(describe_refusal(error.refusal, target, self.service)) from error

    def _report_missing_target(self, target: str) -> Finding:
        return report_critical(
            f"{self.name}.{self.service.target}-missing",
            what=f"The {self.service.target} {target!r} does not exist.",
            why="Its messages cannot be delivered.",
            fix="Create it, or set declare=true.",
        )

    def _report_unusable_name(self, topic: str, error: MessageRejected) -> Finding:
        return report_critical(
            f"{self.name}.name-unusable",
            what=f"Messages of the topic {topic!r} have nowhere to go. {error}",
            why="They are rejected.",
            fix="Change the template, or the topic.",
        )

    def _report_hidden_settings(self, target: str) -> Finding:
        return report_info(
            f"{self.name}.settings-unseen",
            what=f"This login may not see the settings of the {self.service.target} {target!r}.",
            why="Whether they can lose messages is not known.",
            fix=f"Allow {self.name}:Get{self.service.target.capitalize()}Attributes, or ask somebody who may.",
        )

    def _report_unknown_targets(self) -> Finding:
        return report_info(
            f"{self.name}.{self.service.target}s-unknown",
            what=f"Which {self.service.target}s messages go to is known only when they come.",
            why="The template needs more than the topic, or no topic is known yet; nothing could be looked at.",
            fix=f"Look at the {self.service.target}s yourself: retention, dead letters, encryption.",
        )


# --- queues ---


async def check_queue(queues: SqsQueues, name: str) -> Sequence[Finding]:
    """Return the findings of one queue."""
    settings = await queues.read_attributes(name)
    dead_letters = await _read_dead_letter_queue(queues, settings)
    return list(_check_queue_settings(name, settings, dead_letters=dead_letters))


async def _read_dead_letter_queue(queues: SqsQueues, settings: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the settings of a queue's dead-letter queue; None if there is none or the login cannot read them."""
    name = str(_parse_redrive_policy(settings).get("deadLetterTargetArn", "")).rpartition(":")[2]
    try:
        return await queues.read_attributes(name) if name else None
    except (CallRefused, NoResponse):
        return None


def _check_queue_settings(
    name: str, settings: Mapping[str, str], *, dead_letters: Mapping[str, str] | None
) -> Iterator[Finding]:
    yield from _check_retention(name, settings, dead_letters)
    yield from _check_redrive_policy(name, settings)
    yield from _check_order(name)
    if int(settings.get("MaximumMessageSize", _MAX_MESSAGE_SIZE)) < _MAX_MESSAGE_SIZE:
        yield report_info(
            "sqs.size-limit",
            what=f"The queue {name!r} takes messages of at most {settings['MaximumMessageSize']} bytes.",
            why="What is larger, with its attributes, is rejected.",
            fix="Raise MaximumMessageSize to 1048576, or lower max_payload of the outbox.",
        )
    if settings.get("SqsManagedSseEnabled") != "true" and not settings.get("KmsMasterKeyId"):
        yield report_warning(
            "sqs.not-encrypted",
            what=f"The queue {name!r} is not encrypted.",
            why="Payloads lie on AWS's disks as they are.",
            fix="Set SqsManagedSseEnabled to true, or give it a KMS key.",
        )


def _check_retention(
    name: str, settings: Mapping[str, str], dead_letters: Mapping[str, str] | None
) -> Iterator[Finding]:
    retention = int(settings.get("MessageRetentionPeriod", _DEFAULT_RETENTION))
    if retention < _DEFAULT_RETENTION:
        yield report_warning(
            "sqs.short-retention",
            what=f"The queue {name!r} keeps messages for {retention / 3_600:g} h.",
            why="What its consumers have not taken by then is deleted, though it was delivered.",
            fix="Set MessageRetentionPeriod to 1209600, 14 days.",
        )
    if dead_letters is not None and int(dead_letters.get("MessageRetentionPeriod", _DEFAULT_RETENTION)) <= retention:
        yield report_warning(
            "sqs.dead-letters-expire",
            what=f"The dead-letter queue of {name!r} keeps messages no longer than the queue itself.",
            why="The time counts from when a message was sent, so it may be deleted as soon as it gets there.",
            fix="Let the dead-letter queue keep messages longer than the queue.",
        )


def _check_redrive_policy(name: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    receives = _parse_redrive_policy(settings).get("maxReceiveCount")
    if receives is None:
        yield report_warning(
            "sqs.no-dead-letter-queue",
            what=f"The queue {name!r} has no dead-letter queue.",
            why="A message that its consumer cannot handle comes again until it is too old, and is then deleted.",
            fix="Give it a RedrivePolicy with a queue that is watched.",
        )
    elif int(str(receives)) < _MIN_RECEIVES:
        yield report_warning(
            "sqs.few-receives",
            what=f"The queue {name!r} gives a message up after {receives} receives.",
            why="A consumer that restarts in their midst sends good messages to the dead letters.",
            fix="Set maxReceiveCount to 5 or more.",
        )


def _check_order(name: str) -> Iterator[Finding]:
    if is_fifo(name):
        yield report_info(
            "sqs.dedup-window",
            what=f"The queue {name!r} knows a repeated message for 5 minutes.",
            why="One that is sent again after a longer outage arrives twice.",
            fix="Deduplicate by the id, for example with the inbox.",
        )
    else:
        yield report_info(
            "sqs.standard-queue",
            what=f"The queue {name!r} is a standard queue.",
            why="It may deliver messages out of order and more than once, also of one key.",
            fix="Where order matters use a FIFO queue, whose name ends in .fifo.",
        )


def _parse_redrive_policy(settings: Mapping[str, str]) -> Mapping[str, object]:
    try:
        policy = json.loads(settings.get("RedrivePolicy") or "{}")
    except ValueError:
        return {}
    return policy if isinstance(policy, dict) else {}


# --- topics ---


async def check_topic(topics: SnsTopics, name: str) -> Sequence[Finding]:
    """Return the findings of one SNS topic."""
    settings, subscriptions = await topics.read_attributes(name), await topics.read_subscriptions(name)
    return list(_check_topic_settings(name, settings, subscriptions))


def _check_topic_settings(
    name: str, settings: Mapping[str, str], subscriptions: Sequence[Mapping[str, str]]
) -> Iterator[Finding]:
    yield from _check_subscriptions(name, settings, count=len(subscriptions))
    unprotected = sum(not one.get("RedrivePolicy") for one in subscriptions)
    if unprotected:
        yield report_warning(
            "sns.no-dead-letter-queue",
            what=f"{unprotected} of {len(subscriptions)} subscriptions of {name!r} have no dead-letter queue.",
            why="What SNS cannot pass on in time, or is not allowed to, is dropped.",
            fix="Give each subscription a RedrivePolicy with a queue that is watched.",
        )
    if not settings.get("KmsMasterKeyId"):
        yield report_info(
            "sns.not-encrypted",
            what=f"The topic {name!r} has no KMS key.",
            why="Payloads lie on AWS's disks as they are while SNS passes them on.",
            fix="Set KmsMasterKeyId, and let the subscribed queues use the key.",
        )
    if is_fifo(name):
        yield report_info(
            "sns.dedup-window",
            what=f"The topic {name!r} knows a repeated message for 5 minutes.",
            why="One that is sent again after a longer outage arrives twice.",
            fix="Deduplicate by the id, for example with the inbox.",
        )


def _check_subscriptions(name: str, settings: Mapping[str, str], *, count: int) -> Iterator[Finding]:
    if not count and not int(settings.get("SubscriptionsConfirmed", 0)):
        yield report_critical(
            "sns.no-subscriptions",
            what=f"The topic {name!r} has no confirmed subscription.",
            why="SNS takes messages for it, and drops them.",
            fix="Subscribe a queue to it, and confirm.",
        )
    if pending := int(settings.get("SubscriptionsPending", 0)):
        yield report_warning(
            "sns.subscriptions-pending",
            what=f"{pending} subscriptions of {name!r} are not confirmed.",
            why="They get nothing, and messages of now will not come later.",
            fix="Confirm them, or delete them.",
        )
