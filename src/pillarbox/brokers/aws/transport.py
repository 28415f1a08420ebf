"""SQS and SNS transports: messages to queues and to topics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from pillarbox.brokers.aws.checks import TargetChecks, check_queues, check_topics
from pillarbox.brokers.aws.connection import AwsClient, SnsTopics, SqsQueues, ping
from pillarbox.brokers.aws.encoding import Encoder, compile_target, find_fixed_target
from pillarbox.brokers.aws.errors import ServiceDescription
from pillarbox.brokers.aws.sender import BatchSender
from pillarbox.brokers.aws.settings import (
    MAX_QUEUE_NAME,
    MAX_TOPIC_NAME,
    SnsSettings,
    SqsSettings,
    sns_settings,
    sqs_settings,
)
from pillarbox.brokers.settings import TransportUrl
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.message import Message

__all__ = ["SnsTransport", "SqsTransport", "sns_transport", "sqs_transport"]

_BATCH: Final = 100
_SQS_MAX_BYTES: Final = 1_048_576
_SQS_MAX_PAYLOAD: Final = 770_000
"""Fits in a message also as base64, with headers and attributes."""
_SNS_MAX_BYTES: Final = 262_144
_SNS_MAX_PAYLOAD: Final = 185_000
"""Fits in a message also as base64, with headers and attributes."""


class SqsTransport:
    """Sends messages as CloudEvents to queues.

    Delivered means that SQS has confirmed this very message: it is stored on several servers. A login in the options
    is read by the constructor.
    """

    def __init__(self, settings: SqsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name="sqs", batch=_BATCH, max_payload=_SQS_MAX_PAYLOAD)
        self.settings = settings
        self._client = AwsClient("sqs", settings, environ=environ)
        self._queues = SqsQueues(self._client, declare=settings.declare)
        self._service = ServiceDescription(
            where=settings.display_url,
            target="queue",
            action="sqs:SendMessage and sqs:GetQueueUrl",
            hide=self._client.hide,
        )
        option, template = settings.template
        self._fixed_queue = find_fixed_target(template, max_length=MAX_QUEUE_NAME)
        self._sender = BatchSender(
            self._queues,
            encoder=Encoder(
                target=compile_target(template, option=option, transport="sqs", max_length=MAX_QUEUE_NAME),
                text_field="MessageBody",
                mode=settings.mode,
                max_bytes=_SQS_MAX_BYTES,
            ),
            service=self._service,
        )

    def __repr__(self) -> str:
        return f"SqsTransport({self.settings!r})"

    async def open(self) -> None:
        await self._client.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._client.close()

    async def ping(self) -> None:
        """Ask for the queue if there is only one; else list queues, and accept that this is denied."""
        await ping(self._queues, self._fixed_queue, self._service)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await self._sender.send(messages)

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        _, template = self.settings.template
        async with self._client.keep_open():
            return await check_queues(
                self._queues, TargetChecks("sqs", self._service, template, MAX_QUEUE_NAME, topics)
            )


class SnsTransport:
    """Sends messages as CloudEvents to topics.

    Delivered means that SNS has confirmed this very message. SNS then tries for a time to pass it on to every
    subscription, and drops what it cannot pass on unless the subscription has a dead-letter queue. A login in the
    options is read by the constructor.
    """

    def __init__(self, settings: SnsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name="sns", batch=_BATCH, max_payload=_SNS_MAX_PAYLOAD)
        self.settings = settings
        self._client = AwsClient("sns", settings, environ=environ)
        self._topics = SnsTopics(self._client, declare=settings.declare)
        self._service = ServiceDescription(
            where=settings.display_url,
            target="topic",
            action="sns:Publish and sns:ListTopics",
            hide=self._client.hide,
        )
        option, template = settings.template
        self._fixed_topic = find_fixed_target(template, max_length=MAX_TOPIC_NAME)
        self._sender = BatchSender(
            self._topics,
            encoder=Encoder(
                target=compile_target(template, option=option, transport="sns", max_length=MAX_TOPIC_NAME),
                text_field="Message",
                mode=settings.mode,
                max_bytes=_SNS_MAX_BYTES,
            ),
            service=self._service,
        )

    def __repr__(self) -> str:
        return f"SnsTransport({self.settings!r})"

    async def open(self) -> None:
        await self._client.open()
        try:
            await self.ping()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._client.close()

    async def ping(self) -> None:
        """Ask for the topic if there is only one; else list topics, and accept that this is denied."""
        await ping(self._topics, self._fixed_topic, self._service)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return await self._sender.send(messages)

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        _, template = self.settings.template
        async with self._client.keep_open():
            return await check_topics(
                self._topics, TargetChecks("sns", self._service, template, MAX_TOPIC_NAME, topics)
            )


def sqs_transport(url: TransportUrl) -> SqsTransport:
    """Build the transport for an `sqs:` URL."""
    return SqsTransport(sqs_settings(url))


def sns_transport(url: TransportUrl) -> SnsTransport:
    """Build the transport for an `sns:` URL."""
    return SnsTransport(sns_settings(url))
