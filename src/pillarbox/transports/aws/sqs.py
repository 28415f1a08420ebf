"""Messages to queues of Amazon SQS."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from pillarbox.protocols import Finding, TransportFeatures
from pillarbox.transports.aws.client import AwsClient
from pillarbox.transports.aws.entries import Packer
from pillarbox.transports.aws.inspecting import Inspection
from pillarbox.transports.aws.inspecting_queues import inspected
from pillarbox.transports.aws.names import fixed, place
from pillarbox.transports.aws.queues import Queues
from pillarbox.transports.aws.settings import LONGEST_QUEUE, SqsSettings, sqs_settings
from pillarbox.transports.aws.transport import AwsTransport
from pillarbox.transports.aws.verdicts import Words
from pillarbox.transports.urls import TransportUrl

__all__ = ["SqsTransport", "sqs_transport"]

_MOST: Final = 1_048_576
"""Bytes of a message, and of all messages of a call."""
_PAYLOAD: Final = 770_000
"""Fits also as base64, with headers and attributes."""


class SqsTransport(AwsTransport):
    """Sends messages as CloudEvents to queues.

    Delivered means that SQS has said so of this very message: it is kept in several places. A login in the options is
    read when this is made.
    """

    def __init__(self, settings: SqsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name="sqs", batch=100, max_payload=_PAYLOAD)
        self.settings = settings
        client = AwsClient("sqs", settings, environ=environ)
        option, template = settings.template
        self._queues = Queues(client, declare=settings.declare)
        where = place(template, option=option, transport="sqs", most=LONGEST_QUEUE)
        super().__init__(
            settings,
            client,
            self._queues,
            pack=Packer(place=where, text="MessageBody", mode=settings.mode, most=_MOST),
            one=fixed(template, most=LONGEST_QUEUE),
            words=Words(
                where=settings.shown, what="queue", action="sqs:SendMessage and sqs:GetQueueUrl", hide=client.hide
            ),
        )

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        _, template = self.settings.template
        async with self._client.opened():
            return await inspected(self._queues, Inspection(template, LONGEST_QUEUE, topics, self._words))


def sqs_transport(url: TransportUrl) -> SqsTransport:
    """For `sqs:`."""
    return SqsTransport(sqs_settings(url))
