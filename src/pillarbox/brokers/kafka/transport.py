"""Kafka transport: each message is one record, delivered when all in-sync replicas have it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from pillarbox.brokers.checks import expand_topics
from pillarbox.brokers.errors import not_open_error
from pillarbox.brokers.kafka.checks import ClusterAdmin, check_topic, report_unknown_topics
from pillarbox.brokers.kafka.connection import ProducerConnection
from pillarbox.brokers.kafka.encoding import TOPIC_RULES, EncodedMessage, encode
from pillarbox.brokers.kafka.errors import DELIVERED, UNSENT, DeliveryReport, DeliveryStatus, to_outcomes
from pillarbox.brokers.kafka.settings import (
    ClientConfig,
    KafkaSettings,
    build_connection_config,
    build_producer_config,
    build_run_producer_config,
    kafka_settings,
    read_secrets,
)
from pillarbox.brokers.send_batch import ENCODE_ERRORS, describe_encode_error, find_runs
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.templates import compile_template, describe_address
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import hide_secrets, redact_line

__all__ = ["KafkaTransport", "kafka_transport"]

_SINGLE: Final[ClientConfig] = {"batch.num.messages": 1}
"""One message per request, so that the answer to a request is the answer for its message."""


class KafkaTransport:
    """Sends messages as CloudEvents to a Kafka cluster.

    Delivered means that the cluster answered without an error, after all in-sync replicas had the record. Secrets are
    read by the constructor.
    """

    def __init__(self, settings: KafkaSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(
            name="kafka",
            max_payload=settings.max_message_bytes,
            addresses="{" in settings.topic,
            ping_is_witness=True,
            runs=True,
            slow_runs=True,
        )
        self.settings = settings
        self._address = compile_template(settings.topic, option="topic", transport="kafka", rules=TOPIC_RULES)
        self._secrets = read_secrets(settings, environ=environ)
        self._seconds = settings.timeout.total_seconds()
        config = build_producer_config(settings, environ=environ)
        self._connection = self._build_connection(config)
        self._single_connection = self._build_connection(config | _SINGLE)
        self._run_connection = self._build_connection(
            build_run_producer_config(settings, environ=environ), gapless=True
        )
        self._admin = ClusterAdmin(
            build_connection_config(settings, environ=environ),
            where=settings.display_url,
            seconds=self._seconds,
            sanitize=lambda text: self._hide(redact_line(text)).rstrip("."),
        )
        self._topics = _Topics(
            check=self._connection.check_topic, create=self._create_topics if settings.declare else None
        )
        self._is_open = False

    def __repr__(self) -> str:
        return f"KafkaTransport({self.settings!r})"

    async def open(self) -> None:
        await self._connection.ping()
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        for connection in (self._connection, self._single_connection, self._run_connection):
            connection.drop("the transport was closed")
        self._admin.close()

    async def ping(self) -> None:
        self._check_open()
        await self._connection.ping()

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, topic=self._address)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._check_open()
        if not messages:
            return []
        encoded, reports = self._encode(messages)
        unusable = await self._topics.find_unusable({one.topic for one in encoded.values()})
        if unusable:
            reports |= {index: unusable[one.topic] for index, one in encoded.items() if one.topic in unusable}
            encoded = {index: one for index, one in encoded.items() if index not in reports}
        found = find_runs(messages)
        if not found and not reports:
            return self._to_outcomes(await self._produce(list(encoded.values())))
        runs = [run for run in self._cut_runs(found, reports) if len(run) > 1]
        in_runs = {index for run in runs for index in run}
        singles = [index for index in encoded if index not in in_runs and index not in reports]
        reports |= await self._produce_all(encoded, singles=singles, runs=runs)
        return self._to_outcomes([reports[index] for index in range(len(messages))])

    def _to_outcomes(self, reports: Sequence[DeliveryReport]) -> Sequence[Outcome]:
        return to_outcomes(
            reports,
            where=self.settings.display_url,
            timeout=self._seconds,
            down=self._connection.down or self._run_connection.down,
        )

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
        self._check_open()
        if not topics:
            return []
        names = dict.fromkeys(expand_topics(self.settings.topic, topics))
        if not names:
            return [report_unknown_topics(self.settings.topic)]
        findings: list[Finding] = []
        for name in names:
            description = await self._admin.describe_topic(name)
            findings += check_topic(description, max_message_bytes=self.settings.max_message_bytes)
        return findings

    def _encode(self, messages: Sequence[Message]) -> tuple[dict[int, EncodedMessage], dict[int, DeliveryReport]]:
        """Return what to send and what is rejected already, by index."""
        encoded: dict[int, EncodedMessage] = {}
        rejected: dict[int, DeliveryReport] = {}
        topic, mode = self._address, self.settings.mode
        for index, message in enumerate(messages):
            try:
                encoded[index] = encode(message, topic=topic, mode=mode)
            except ENCODE_ERRORS as error:
                rejected[index] = DeliveryReport(DeliveryStatus.REJECTED, describe_encode_error(error))
        return encoded, rejected

    def _cut_runs(self, runs: Sequence[Sequence[int]], reports: dict[int, DeliveryReport]) -> Iterator[Sequence[int]]:
        """Yield the runs up to the first message that has its report already; the later ones are unsent."""
        for run in runs:
            end = next((position for position, index in enumerate(run) if index in reports), len(run))
            reports |= dict.fromkeys(run[end + 1 :], UNSENT)
            yield run[:end]

    async def _produce_all(
        self, encoded: Mapping[int, EncodedMessage], *, singles: Sequence[int], runs: Sequence[Sequence[int]]
    ) -> dict[int, DeliveryReport]:
        """Send single messages and the runs of each topic beside each other, so that none waits for another.

        Raises `TransportUnavailable` if none of them could be sent.
        """
        by_topic: dict[str, list[Sequence[int]]] = {}
        for run in runs:
            by_topic.setdefault(encoded[run[0]].topic, []).append(run)
        parts = [self._produce_runs(encoded, of_topic) for of_topic in by_topic.values()]
        if singles:
            parts.append(self._produce_singles(encoded, singles))
        if len(parts) <= 1:
            return await parts[0] if parts else {}
        results = await asyncio.gather(*parts, return_exceptions=True)
        reports: dict[int, DeliveryReport] = {}
        failed: list[BaseException] = []
        for result in results:
            if isinstance(result, BaseException):
                failed.append(result)
            else:
                reports |= result
        if unforeseen := [error for error in failed if not isinstance(error, TransportUnavailable)]:
            raise unforeseen[0]
        if failed and not reports:
            raise failed[0]
        if failed:
            lost = DeliveryReport(DeliveryStatus.LOST, str(failed[0]))
            for one in (*runs, *([index] for index in singles)):
                reports |= {index: UNSENT for index in one[1:] if index not in reports}
                reports.setdefault(one[0], lost)
        return reports

    async def _produce_singles(
        self, encoded: Mapping[int, EncodedMessage], singles: Sequence[int]
    ) -> dict[int, DeliveryReport]:
        return dict(zip(singles, await self._produce([encoded[index] for index in singles]), strict=True))

    async def _produce_runs(
        self, encoded: Mapping[int, EncodedMessage], runs: Sequence[Sequence[int]]
    ) -> dict[int, DeliveryReport]:
        """Send runs to one topic. Where a run changes its topic, the rest follows after the acknowledgements."""
        reports: dict[int, DeliveryReport] = {}
        while runs:
            parts = [_take_first_topic(encoded, run) for run in runs]
            sent = await self._run_connection.send_runs([[encoded[index] for index in part] for part in parts])
            rests: list[Sequence[int]] = []
            for run, part, answers in zip(runs, parts, sent, strict=True):
                taken = await self._finish_run([encoded[index] for index in part], answers)
                reports |= zip(part, taken, strict=True)
                rest = run[len(part) :]
                if taken[-1] is DELIVERED:
                    rests += [rest] if rest else []
                else:
                    reports |= dict.fromkeys(rest, UNSENT)
            runs = rests
        return reports

    async def _finish_run(
        self, run: Sequence[EncodedMessage], reports: Sequence[DeliveryReport]
    ) -> Sequence[DeliveryReport]:
        """Return the reports of a run up to its first failure. After a refused request it goes on one by one."""
        end = next((position for position, report in enumerate(reports) if report is not DELIVERED), None)
        if end is None:
            return reports
        taken = list(reports[: end + 1])
        if taken[-1].status in (DeliveryStatus.MISSING, DeliveryStatus.OUTAGE):
            self._topics.mark_doubtful(run[0].topic)
        if taken[-1].status is DeliveryStatus.SUSPECT:
            taken.pop()
            for message in run[end:]:
                taken += await self._produce_singly([message])
                if taken[-1] is not DELIVERED:
                    break
        return [*taken, *[UNSENT] * (len(run) - len(taken))]

    async def _produce(self, messages: Sequence[EncodedMessage]) -> list[DeliveryReport]:
        reports = await self._connection.send(messages)
        undelivered = [index for index, report in enumerate(reports) if report is not DELIVERED]
        suspects = [index for index in undelivered if reports[index].status is DeliveryStatus.SUSPECT]
        if suspects:
            singles = await self._produce_singly([messages[index] for index in suspects])
            for index, report in zip(suspects, singles, strict=True):
                reports[index] = report
        for index in undelivered:
            if reports[index].status in (DeliveryStatus.MISSING, DeliveryStatus.OUTAGE):
                self._topics.mark_doubtful(messages[index].topic)
        return reports

    async def _produce_singly(self, messages: Sequence[EncodedMessage]) -> list[DeliveryReport]:
        """Send each message in a request of its own: a refused request also holds messages without fault."""
        try:
            return await self._single_connection.send(messages)
        except TransportUnavailable as error:
            return [DeliveryReport(DeliveryStatus.LOST, str(error))] * len(messages)

    async def _create_topics(self, topics: Sequence[str]) -> None:
        await self._admin.create_topics(
            topics, partitions=self.settings.partitions, replication=self.settings.replication
        )

    def _build_connection(self, config: ClientConfig, *, gapless: bool = False) -> ProducerConnection:
        return ProducerConnection(
            config, where=self.settings.display_url, seconds=self._seconds, hide=self._hide, gapless=gapless
        )

    def _check_open(self) -> None:
        if not self._is_open:
            raise not_open_error("kafka transport")

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self._secrets)


def _take_first_topic(encoded: Mapping[int, EncodedMessage], run: Sequence[int]) -> Sequence[int]:
    topic = encoded[run[0]].topic
    end = next((position for position, index in enumerate(run) if encoded[index].topic != topic), len(run))
    return run[:end]


class _Topics:
    """Topics that were created, and topics that could not be used at the last send.

    A doubtful topic is checked before the next send to it: producing to a missing topic would take seconds to fail.
    """

    def __init__(
        self,
        *,
        check: Callable[[str], Awaitable[DeliveryReport]],
        create: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._check = check
        self._create = create
        self._created: set[str] = set()
        self._doubtful: set[str] = set()

    async def find_unusable(self, topics: Iterable[str]) -> Mapping[str, DeliveryReport]:
        """Create topics if that is wanted; return those that cannot be used now, with the reason."""
        if self._create is not None and (missing := set(topics) - self._created):
            await self._create(sorted(missing))
            self._created |= missing
        if not self._doubtful:
            return {}
        reports = {topic: await self._check(topic) for topic in self._doubtful.intersection(topics)}
        unusable = {
            topic: report
            for topic, report in reports.items()
            if report.status in (DeliveryStatus.MISSING, DeliveryStatus.OUTAGE)
        }
        self._doubtful -= reports.keys() - unusable.keys()
        return unusable

    def mark_doubtful(self, topic: str) -> None:
        """Remember that the cluster refused a message because of its topic."""
        self._doubtful.add(topic)
        self._created.discard(topic)


def kafka_transport(url: TransportUrl) -> KafkaTransport:
    """Build the transport for a `kafka:` URL."""
    return KafkaTransport(kafka_settings(url))
