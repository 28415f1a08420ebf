"""Kafka: each message is one record, taken when all in-sync replicas have it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Finding, Outcome, TransportFeatures
from pillarbox.transports.kafka.admin import Admin
from pillarbox.transports.kafka.client_settings import ClientConfig, client_secrets, connection_config, producer_config
from pillarbox.transports.kafka.facts import addressed, findings_of, unaddressed
from pillarbox.transports.kafka.link import Link
from pillarbox.transports.kafka.records import Record, record_of
from pillarbox.transports.kafka.settings import KafkaSettings, kafka_settings
from pillarbox.transports.kafka.topics import Topics
from pillarbox.transports.kafka.verdicts import DELIVERED, Answer, Verdict, outcomes_of
from pillarbox.transports.redaction import one_line
from pillarbox.transports.secret import hidden
from pillarbox.transports.templates import address
from pillarbox.transports.urls import TransportUrl

__all__ = ["KafkaTransport", "kafka_transport"]

_ALONE: Final[ClientConfig] = {"batch.num.messages": 1}
"""One message per request, so that what is said about a request is said about the message."""


class KafkaTransport:
    """Sends messages as CloudEvents to a Kafka cluster.

    Delivered means that the cluster answered without an error, after all in-sync replicas had the record. Secrets are
    read when this is made.
    """

    def __init__(self, settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        # No ordered window: a key's messages may go to several topics, and no producer orders those among each other.
        self.features = TransportFeatures(name="kafka", max_payload=settings.max_message_bytes)
        self.settings = settings
        self._topic = address(settings.topic, option="topic", transport="kafka")
        self._secrets = client_secrets(settings, environ=environ)
        config, seconds = producer_config(settings, environ=environ), settings.timeout.total_seconds()
        self._link = Link(config, where=settings.shown, seconds=seconds, hide=self._hide)
        self._alone = Link(config | _ALONE, where=settings.shown, seconds=seconds, hide=self._hide)
        self._admin = Admin(
            connection_config(settings, environ=environ), where=settings.shown, seconds=seconds, told=self._told
        )
        self._topics = Topics(ask=self._link.ask, create=self._create if settings.declare else None)
        self._is_open = False

    def __repr__(self) -> str:
        return f"KafkaTransport({self.settings!r})"

    async def open(self) -> None:
        await self._link.ask()
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        for link in (self._link, self._alone):
            link.drop("the transport was closed")
        self._admin.close()

    async def ping(self) -> None:
        self._check_open()
        await self._link.ask()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._check_open()
        if not messages:
            return []
        records, answers = self._records(messages)
        unusable = await self._topics.unusable({record.topic for record in records.values()})
        if unusable:
            answers |= {i: unusable[record.topic] for i, record in records.items() if record.topic in unusable}
            records = {i: record for i, record in records.items() if i not in answers}
        if records:
            answers |= zip(records, await self._sent(list(records.values())), strict=True)
        return outcomes_of(
            [answers[index] for index in range(len(messages))],
            where=self.settings.shown,
            within=self.settings.timeout.total_seconds(),
            down=self._link.down,
        )

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        self._check_open()
        names = dict.fromkeys(addressed(self.settings.topic, topic) for topic in topics)
        found = [finding for name in names if name is not None for finding in await self._inspected(name)]
        return found + ([unaddressed(self.settings.topic)] if None in names else [])

    def _records(self, messages: Sequence[Message]) -> tuple[dict[int, Record], dict[int, Answer]]:
        """What to send, and what is rejected already, by place."""
        records: dict[int, Record] = {}
        answers: dict[int, Answer] = {}
        topic, mode = self._topic, self.settings.mode
        for index, message in enumerate(messages):
            try:
                records[index] = record_of(message, topic=topic, mode=mode)
            except MessageRejected as error:
                answers[index] = Answer(Verdict.REJECTED, str(error))
        return records, answers

    async def _sent(self, records: Sequence[Record]) -> list[Answer]:
        answers = await self._link.send(records)
        troubled = [index for index, answer in enumerate(answers) if answer is not DELIVERED]
        suspects = [index for index in troubled if answers[index].verdict is Verdict.SUSPECT]
        if suspects:
            alone = await self._sent_alone([records[index] for index in suspects])
            for index, answer in zip(suspects, alone, strict=True):
                answers[index] = answer
        for index in troubled:
            if answers[index].verdict is Verdict.OUTAGE:
                self._topics.doubt(records[index].topic)
        return answers

    async def _sent_alone(self, records: Sequence[Record]) -> list[Answer]:
        """A request is refused as a whole; the innocent ones in it must not be."""
        try:
            return await self._alone.send(records)
        except TransportUnavailable as error:
            return [Answer(Verdict.LOST, str(error))] * len(records)

    async def _inspected(self, topic: str) -> Sequence[Finding]:
        return findings_of(await self._admin.look(topic), max_message_bytes=self.settings.max_message_bytes)

    async def _create(self, topics: Sequence[str]) -> None:
        await self._admin.create(topics, partitions=self.settings.partitions, replication=self.settings.replication)

    def _check_open(self) -> None:
        if not self._is_open:
            raise TransportUnavailable("The kafka transport is not open; call open() first.")

    def _hide(self, text: str) -> str:
        return hidden(text, self._secrets)

    def _told(self, text: str) -> str:
        return self._hide(one_line(text)).rstrip(".")


def kafka_transport(url: TransportUrl) -> KafkaTransport:
    """For `kafka:`."""
    return KafkaTransport(kafka_settings(url))
