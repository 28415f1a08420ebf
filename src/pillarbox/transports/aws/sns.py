"""Messages to topics of Amazon SNS."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from pillarbox.protocols import Finding, TransportFeatures
from pillarbox.transports.aws.client import AwsClient
from pillarbox.transports.aws.entries import Packer
from pillarbox.transports.aws.inspecting import Inspection
from pillarbox.transports.aws.inspecting_topics import inspected
from pillarbox.transports.aws.names import fixed, place
from pillarbox.transports.aws.settings import LONGEST_TOPIC, SnsSettings, sns_settings
from pillarbox.transports.aws.topics import Topics
from pillarbox.transports.aws.transport import AwsTransport
from pillarbox.transports.aws.verdicts import Words
from pillarbox.transports.urls import TransportUrl

__all__ = ["SnsTransport", "sns_transport"]

_MOST: Final = 262_144
"""Bytes of a message, and of all messages of a call."""
_PAYLOAD: Final = 185_000
"""Fits also as base64, with headers and attributes."""


class SnsTransport(AwsTransport):
    """Sends messages as CloudEvents to topics.

    Delivered means that SNS has said so of this very message. It then tries for a time to pass it on to every
    subscription; what it cannot pass on is dropped, unless the subscription has a dead-letter queue. A login in the
    options is read when this is made.
    """

    def __init__(self, settings: SnsSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name="sns", batch=100, max_payload=_PAYLOAD)
        self.settings = settings
        client = AwsClient("sns", settings, environ=environ)
        option, template = settings.template
        self._topics = Topics(client, declare=settings.declare)
        where = place(template, option=option, transport="sns", most=LONGEST_TOPIC)
        super().__init__(
            settings,
            client,
            self._topics,
            pack=Packer(place=where, text="Message", mode=settings.mode, most=_MOST),
            one=fixed(template, most=LONGEST_TOPIC),
            words=Words(where=settings.shown, what="topic", action="sns:Publish and sns:ListTopics", hide=client.hide),
        )

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        _, template = self.settings.template
        async with self._client.opened():
            return await inspected(self._topics, Inspection(template, LONGEST_TOPIC, topics, self._words))


def sns_transport(url: TransportUrl) -> SnsTransport:
    """For `sns:`."""
    return SnsTransport(sns_settings(url))
