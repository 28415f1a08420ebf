"""Kafka receiver: the partitions of a consumer group, committed when their messages are handled."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from pillarbox.brokers.errors import connection_broken_error, unreachable_error
from pillarbox.brokers.held_bytes import HeldBytes, count_bytes
from pillarbox.brokers.kafka.connection import WHAT_TO_CHECK, Reachability
from pillarbox.brokers.kafka.encoding import ConsumedRecord, decode
from pillarbox.brokers.kafka.poller import ConsumerPoller, check_consumer_config
from pillarbox.brokers.kafka.settings import (
    ClientConfig,
    KafkaReceiverSettings,
    build_consumer_config,
    build_fetch_config,
    kafka_receiver_settings,
    read_secrets,
)
from pillarbox.brokers.reconnecting import ReconnectingConnection
from pillarbox.brokers.settings import TransportUrl
from pillarbox.contracts.receiver import IncomingMessage, ReceiverFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import hide_secrets

__all__ = ["KafkaReceiver", "kafka_receiver"]

_CLOSE_TIMEOUT: Final = 10.0


class KafkaReceiver:
    """Reads topics as a member of a consumer group. Secrets are read by the constructor.

    When a partition is revoked, its messages that wait here are dropped. Handlers may finish; the inbox then recognises
    the messages when the next owner of the partition gets them. A cluster that cannot be reached ends the membership;
    the next `receive` or `ping` begins another.
    """

    def __init__(self, settings: KafkaReceiverSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = ReceiverFeatures(name="kafka")
        self.settings = settings
        self._config = build_consumer_config(settings, environ=environ)
        self._secrets = read_secrets(settings.cluster, environ=environ)
        self._held = HeldBytes()
        self._connection = ReconnectingConnection(self._start_session, owner="kafka receiver")
        check_consumer_config(self._config, sanitize=self._hide)

    def __repr__(self) -> str:
        return f"KafkaReceiver({self.settings!r})"

    @property
    def pending_bytes(self) -> int:
        return self._held.limit

    @pending_bytes.setter
    def pending_bytes(self, limit: int) -> None:
        self._held.limit = limit

    async def open(self) -> None:
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()
        self._held.clear()

    async def ping(self) -> None:
        """Ask the cluster for the topics."""
        session = await self._connection.get()
        await session.check_topics()

    async def receive(self, *, limit: int) -> Sequence[IncomingMessage]:
        session = await self._connection.get()
        received = [decode(record, token=(session, record)) for record in await session.receive(limit)]
        for one in received:
            self._held.add(one.token[1], count_bytes(one.headers, one.body))
        return received

    async def acknowledge(self, received: IncomingMessage) -> None:
        session, record = received.token
        self._held.remove(record)
        if self._connection.is_current(session):
            await session.acknowledge(record)

    async def give_back(self, received: IncomingMessage) -> None:
        session, record = received.token
        self._held.remove(record)
        if self._connection.is_current(session):
            await session.give_back(record)

    async def _start_session(self) -> ConsumerSession:
        return await ConsumerSession.start(
            {**build_fetch_config(self._held.limit), **self._config},
            topics=self.settings.topics,
            where=self.settings.display_url,
            seconds=self.settings.timeout.total_seconds(),
            hide=self._hide,
            held=self._held,
        )

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self._secrets)


class ConsumerSession:
    """One membership in the group, seen from the event loop. Its records can be acknowledged by it alone."""

    def __init__(self, *, where: str, hide: Callable[[str], str], held: HeldBytes) -> None:
        self.reason: str | None = None
        """The reason why it has ended; None while it lasts."""
        self._where = where
        self._reachability = Reachability(hide=hide)
        self._poller: ConsumerPoller
        self._waiting: deque[ConsumedRecord] = deque()
        self._handed_out: set[ConsumedRecord] = set()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._changed = asyncio.Event()
        self._held = held
        held.on_room = self._changed.set
        self._poller_closed = asyncio.Event()

    @classmethod
    async def start(
        cls, config: ClientConfig, *, topics: Sequence[str], where: str, seconds: float, hide: Callable[[str], str],
        held: HeldBytes,
    ) -> Self:  # fmt: skip
        """Join the group; raise `TransportUnavailable` if the cluster or a topic cannot be reached."""
        session = cls(where=where, hide=hide, held=held)
        session._poller = ConsumerPoller(
            config,
            topics=topics,
            seconds=seconds,
            reachability=session._reachability,
            callbacks=session,
            loop=asyncio.get_running_loop(),
        )
        try:
            await session.check_topics()
        except BaseException:
            await session.close()
            raise
        return session

    async def check_topics(self) -> None:
        """Raise `TransportUnavailable` if a topic cannot be read. A cluster that does not answer ends the session."""
        problem: str | None = await self._wait_for(self._poller.check_topics())
        if self.reason is not None:
            raise unreachable_error(self._where, self._reachability.down or "it was closed", check=WHAT_TO_CHECK)
        if problem is not None:
            raise TransportUnavailable(f"{self._where} {problem}.")

    async def receive(self, limit: int) -> list[ConsumedRecord]:
        """Return at least one record, in each partition's order; raise `TransportUnavailable` when the session ends."""
        while True:
            if self.reason is not None:
                raise TransportUnavailable(self.reason)
            self._drop_revoked()
            assigned = self._waiting
            if assigned:
                taken = [assigned.popleft() for _ in range(min(limit, len(assigned)))]
                self._handed_out.update(taken)
                return taken
            self._changed.clear()
            if not self._held.is_full:
                self._poller.fetch(limit, size=self._held.room)
            await self._changed.wait()

    def _drop_revoked(self) -> None:
        """Drop waiting records of partitions that belong to another consumer now."""
        revoked = [record for record in self._waiting if not record.progress.is_assigned]
        if revoked:
            self._waiting = deque(record for record in self._waiting if record.progress.is_assigned)
            for record in revoked:
                self._held.remove(record)

    async def acknowledge(self, record: ConsumedRecord) -> None:
        """Settle a record and wait until that is committed.

        Returns at once if an earlier record has to be settled first. If the partition was revoked, nothing is
        committed and the record is delivered again.
        """
        if self.reason is None and record in self._handed_out:
            self._handed_out.discard(record)
            await self._wait_for(self._poller.settle(record))

    async def give_back(self, record: ConsumedRecord) -> None:
        """Deliver a record again, here or to the partition's next owner. Kafka itself takes nothing back."""
        if self.reason is None and record in self._handed_out:
            self._handed_out.discard(record)
            again = ConsumedRecord(record.progress, record.offset, record.message, True)
            self._waiting.appendleft(again)
            self._held.add(again, again.size)
            self._changed.set()

    async def close(self) -> None:
        """Commit what is settled and leave the group."""
        self._end("it was closed")
        self._poller.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._poller_closed.wait()

    async def _wait_for(self, answer: asyncio.Future[Any]) -> Any:
        """Return the poller's answer; None when the session ends before."""
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        return await answer

    def _end(self, why: str) -> None:
        if self.reason is None:
            self.reason = str(connection_broken_error(self._where, why))
        for record in self._waiting:
            self._held.remove(record)
        self._waiting.clear()
        self._changed.set()
        for answer in tuple(self._unanswered):
            if not answer.done():
                answer.set_result(None)

    # --- callbacks of the poller ---

    def on_records(self, records: Sequence[ConsumedRecord]) -> None:
        if self.reason is None:
            self._waiting.extend(records)
            for record in records:
                self._held.add(record, record.size)
            self._changed.set()

    def on_revoked(self) -> None:
        self._handed_out = {record for record in self._handed_out if record.progress.is_assigned}
        # A caller of `receive` that waited for these records has to request others.
        self._changed.set()

    def on_closed(self, reason: str) -> None:
        self._poller_closed.set()
        self._end(reason)


def kafka_receiver(url: TransportUrl) -> KafkaReceiver:
    """Build the receiver for a `kafka:` URL."""
    return KafkaReceiver(kafka_receiver_settings(url))
