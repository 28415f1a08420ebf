"""Connection of the transport to a cluster: a producer that is made when needed and dropped when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, Final, Protocol

import msgspec

from pillarbox.brokers.errors import unreachable_error
from pillarbox.brokers.kafka.encoding import EncodedMessage
from pillarbox.brokers.kafka.errors import (
    DELIVERED,
    TIMED_OUT,
    UNSENT,
    DeliveryReport,
    DeliveryStatus,
    ErrorCode,
    build_report,
)
from pillarbox.brokers.kafka.settings import ClientConfig
from pillarbox.brokers.send_batch import SendBatch
from pillarbox.errors import ConfigError, MissingExtra, TransportUnavailable
from pillarbox.redaction import redact_line

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ModuleNotFoundError as error:
    raise MissingExtra("confluent-kafka", extra="kafka", needed_for="The kafka transport") from error

__all__ = ["WHAT_TO_CHECK", "PendingSend", "ProducerConnection", "Reachability"]

WHAT_TO_CHECK: Final = "that it runs, the URL's hosts and ports, and the login"
"""Advice when no broker can be reached. A refused login closes the connection, so it looks the same."""

_log: Final = logging.getLogger(__name__)
_run_log: Final = logging.getLogger(f"{__name__}.runs")
# The client calls it an emergency when a producer ends for the sake of its guarantee. Here it is replaced.
_run_log.addFilter(lambda record: record.levelno < logging.CRITICAL)
_PING_TOPIC: Final = "__pillarbox_ping"
"""Requested when any answer will do. It is never created."""
_FULL_QUEUE_PAUSE: Final = 0.001
"""Seconds until a producer whose queue is full is tried again."""


class ProducerConnection:
    """Connection over one producer at a time. Raises `ConfigError` at once when the client refuses its settings.

    With `gapless` a producer that could not deliver a message is replaced, so that it sends nothing later.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        where: str,
        seconds: float,
        hide: Callable[[str], str],
        gapless: bool = False,
    ) -> None:
        self._config = config
        self._is_gapless = gapless
        self._where = where
        self._seconds = seconds
        self._reachability = Reachability(hide=hide)
        self._producer: _AsyncProducer | None = None
        without_servers = {name: value for name, value in config.items() if name != "bootstrap.servers"}
        _build_producer(without_servers, sanitize=self._reachability.sanitize)

    @property
    def down(self) -> str | None:
        """The reason why no broker can be reached; None as far as is known."""
        return self._reachability.down

    def drop(self, reason: str) -> None:
        """Give up the producer and all messages in it; the next call makes another producer."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.end(reason)

    async def ping(self) -> None:
        """Ask the cluster for an answer; raise `TransportUnavailable` if there is none."""
        await self.check_topic(_PING_TOPIC)

    async def check_topic(self, topic: str) -> DeliveryReport:
        """Ask whether a topic can be written to; raise `TransportUnavailable` if there is no answer."""
        try:
            return await self._get_producer().check_topic(topic, seconds=self._seconds)
        except TransportUnavailable as error:
            raise unreachable_error(self._where, str(error), check=WHAT_TO_CHECK) from error

    async def _await_cluster(self) -> None:
        """Send nothing while the cluster is known to be down, nor before a new producer has met it.

        A producer that is given messages before it has a connection looks for one only after half a second.
        """
        if self.down is not None or self._producer is None:
            await self.ping()

    async def send_runs(self, runs: Sequence[Sequence[EncodedMessage]]) -> list[list[DeliveryReport]]:
        """Send runs, each to one topic, and return their reports. A cluster has the beginning of a run, or all of it.

        The first messages go first, and the others when those are there, each run to the partition of its first. A
        cluster refuses records of a producer that follow on a gap, but only in a partition where it has some of that
        producer already.
        """
        started_at = asyncio.get_running_loop().time()
        await self._await_cluster()
        producer = self._get_producer()
        heads = PendingSend([run[0] for run in runs], of_runs=True)
        reports = [[report] for report in await self._send(producer, heads, seconds=self._seconds)]
        begun = [index for index, (report,) in enumerate(reports) if report is DELIVERED]
        rest = [
            msgspec.structs.replace(message, partition=heads.partitions[index])
            for index in begun
            for message in runs[index][1:]
        ]
        answers: Iterator[DeliveryReport] = iter(())
        if rest:
            elapsed = asyncio.get_running_loop().time() - started_at
            send = PendingSend(rest, of_runs=True)
            # The same producer, whatever became of it: another one has no records in the partition.
            answers = iter(await self._send(producer, send, seconds=max(self._seconds - elapsed, 0.0)))
        for index, (run, known) in enumerate(zip(runs, reports, strict=True)):
            known += [next(answers) if index in begun else UNSENT for _ in run[1:]]
        return reports

    async def send(self, messages: Sequence[EncodedMessage]) -> list[DeliveryReport]:
        """Send messages and return one report for each. Sends nothing while the cluster is known to be down.

        A cancelled send takes back its messages, unless other sends have messages in the same producer.
        """
        await self._await_cluster()
        return await self._send(self._get_producer(), PendingSend(messages), seconds=self._seconds)

    async def _send(self, producer: _AsyncProducer, send: PendingSend, *, seconds: float) -> list[DeliveryReport]:
        try:
            reports = await producer.send(send, seconds=seconds)
        except asyncio.CancelledError:
            if producer is self._producer and producer.is_idle:
                self.drop("the send was cancelled")
            raise
        is_delivered = reports.count(DELIVERED) == len(reports)
        if is_delivered or not any(report.status is DeliveryStatus.TIMED_OUT for report in reports):
            self._reachability.record_answer()
        elif (self._is_gapless or self.down is not None) and producer is self._producer:
            # The relay sends these messages again. The producer must not send them as well when brokers come back.
            self.drop(self.down or "messages of it were not answered in time")
        return reports

    def _get_producer(self) -> _AsyncProducer:
        if self._producer is None:
            self._producer = _AsyncProducer(
                self._config,
                reachability=self._reachability,
                on_fatal=self._replace if self._is_gapless else self.drop,
                log=_run_log if self._is_gapless else _log,
            )
        return self._producer

    def _replace(self, reason: str) -> None:
        """Use another producer from now on. The reports of this one are awaited: they tell what was refused."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.retire(reason)


class Reachability:
    """Knowledge about whether any broker can be reached.

    The client reconnects for ever by itself, and reports only through its error callback that it does not succeed.
    """

    def __init__(self, *, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._last_error: str | None = None
        self.down: str | None = None
        """The reason why no broker can be reached; None as far as is known."""

    def record_error(self, code: int, text: str) -> None:
        """Record an error of one connection, or that the last connection has failed."""
        reason = self.sanitize(text)
        if code == ErrorCode._ALL_BROKERS_DOWN:
            # The last error of a connection is more specific than "all brokers are down".
            self.down = self._last_error or reason
        else:
            self._last_error = reason
            if self.down is not None:
                self.down = reason

    def record_timeout(self, text: str) -> None:
        """Record that no broker answered in time."""
        self.down = self._last_error or self.sanitize(text)

    def record_answer(self) -> None:
        """Record that a broker answered."""
        self.down = self._last_error = None

    def sanitize(self, text: str) -> str:
        """Return the client's text on one line and without secrets."""
        return self._hide(redact_line(text)).rstrip(".")


class _AsyncProducer:
    """librdkafka's producer in the event loop. `on_fatal` is called when it reports a fatal error."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        reachability: Reachability,
        on_fatal: Callable[[str], None],
        log: logging.Logger = _log,
    ) -> None:
        self._reachability = reachability
        self._on_fatal = on_fatal
        self._sends: set[PendingSend] = set()
        self._is_ended = False
        self._retired: str | None = None
        """The reason why it takes no more messages and ends after its last send."""
        self._producer = _build_producer(
            {**config, "error_cb": self._on_error, "logger": log}, sanitize=reachability.sanitize
        )
        self._poller = _ReportPoller(self._poll, count_awaited=self._count_awaited)

    @property
    def is_idle(self) -> bool:
        """True if no send is in progress."""
        return not self._sends

    def end(self, reason: str) -> None:
        """Take back all messages: none is sent from now on. Sends in progress end with the reason."""
        self._is_ended = True
        self._poller.stop()
        for send in self._sends:
            send.end(DeliveryReport(DeliveryStatus.LOST, reason))
        holder = [self._producer]
        del self._producer, self._poller
        # Freeing the producer waits for its threads, which may be in the middle of a name lookup.
        Thread(target=_free_producer, args=(holder,), daemon=True).start()

    def retire(self, reason: str) -> None:
        """Take no more messages, and end when the sends in progress have their reports."""
        self._retired = reason
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._retired is not None and not self._sends and not self._is_ended:
            self.end(self._retired)

    async def check_topic(self, topic: str, *, seconds: float) -> DeliveryReport:
        """Ask whether a topic can be written to; raise `TransportUnavailable` with the bare reason."""
        producer = self._producer
        try:
            metadata = await asyncio.to_thread(producer.list_topics, topic, seconds)
        except KafkaException as error:
            self._poll()
            self._reachability.record_timeout(error.args[0].str())
            raise TransportUnavailable(self._reachability.down or "") from error
        self._reachability.record_answer()
        refusal = metadata.topics[topic].error if topic in metadata.topics else None
        return DELIVERED if refusal is None else build_report(refusal.code(), topic=topic, text=refusal.str())

    async def send(self, send: PendingSend, *, seconds: float) -> list[DeliveryReport]:
        """Produce messages and return one report for each when all are there or the time is up."""
        if self._is_ended or self._retired is not None:
            send.end(DeliveryReport(DeliveryStatus.LOST, self._retired or "the producer has ended"))
            return send.reports
        self._sends.add(send)
        try:
            async with asyncio.timeout(seconds):
                await self._produce_all(send)
                await send.done
        except TimeoutError:
            pass
        finally:
            self._sends.discard(send)
            send.end()
            self._end_if_retired()
        return send.reports

    async def _produce_all(self, send: PendingSend) -> None:
        """Give all messages to the client. A full queue is back-pressure and not a failure, so wait for room."""
        start = self._produce(send, 0)
        while start < len(send.messages) and not send.done.done():
            await asyncio.sleep(_FULL_QUEUE_PAUSE)
            start = start if self._is_ended else self._produce(send, start)

    def _produce(self, send: PendingSend, start: int) -> int:
        """Give the client as many messages as it has room for; return the index of the first one left."""
        produce: Callable[..., None] = self._producer.produce
        resolve = send.resolve
        self._poller.poll_soon()
        for index in range(start, len(send.messages)):
            message = send.messages[index]
            if send.is_stopped(message):
                send.leave(index)
                continue
            try:
                produce(
                    message.topic,
                    message.value,
                    message.key,
                    message.partition,
                    headers=message.headers,
                    on_delivery=partial(resolve, index),
                )
            except BufferError:
                return index
            except KafkaException as error:
                send.refuse(index, error.args[0])
        return len(send.messages)

    def _count_awaited(self) -> int:
        return sum(send.unanswered for send in self._sends)

    def _poll(self) -> int:
        """Run the client's callbacks for reports and errors; return how many there were."""
        try:
            return 0 if self._is_ended else self._producer.poll(0)
        except KafkaException as error:  # the producer has failed for good
            self._on_fatal(self._reachability.sanitize(error.args[0].str()))
            return 1

    def _on_error(self, error: KafkaError) -> None:
        if not self._is_ended:
            self._reachability.record_error(error.code(), error.str())


class ClientError(Protocol):
    """The part of `KafkaError` that is read here."""

    def code(self) -> int: ...

    def str(self) -> str: ...

    def fatal(self) -> bool: ...


class WrittenMessage(Protocol):
    """The part of the client's `Message` that is read here."""

    def partition(self) -> int: ...


class PendingSend:
    """Delivery reports of one send, as they come in."""

    __slots__ = ("_answer", "_batch", "_of_runs", "_stopped", "messages", "partitions")

    def __init__(self, messages: Sequence[EncodedMessage], *, of_runs: bool = False) -> None:
        """With `of_runs`, partitions are noted, and a message that the client refuses stops its run."""
        self.messages = messages
        self.partitions: dict[int, int] = {}
        """Where messages were written, by index, if they were delivered."""
        self._of_runs = of_runs
        self._stopped: set[tuple[str, str | None]] = set()
        self._batch: SendBatch[DeliveryReport] = SendBatch([None] * len(messages))
        self._answer = self._batch.answer

    @property
    def done(self) -> asyncio.Future[None]:
        """Resolved with the last report, or when no more are awaited."""
        return self._batch.done

    @property
    def unanswered(self) -> int:
        """Number of reports that are awaited."""
        return self._batch.unanswered

    @property
    def reports(self) -> list[DeliveryReport]:
        """One report per message, once the send is done."""
        return self._batch.answers  # type: ignore[return-value]

    def resolve(self, index: int, error: ClientError | None, message: WrittenMessage | None = None) -> None:
        """Record the client's report for one message. A report after the end is ignored."""
        if message is not None and error is None and self._of_runs:
            self.partitions[index] = message.partition()
        self._answer(index, DELIVERED if error is None else self._build_report(index, error))

    def is_stopped(self, message: EncodedMessage) -> bool:
        """Return True if the client did not accept an earlier message of the same run."""
        return bool(self._stopped) and (message.topic, message.key) in self._stopped

    def leave(self, index: int) -> None:
        """Record that a message was not given to the client."""
        self._answer(index, UNSENT)

    def refuse(self, index: int, error: ClientError) -> None:
        """Record that the client did not accept a message: its error is about this message alone."""
        report = self._build_report(index, error)
        if report.status is DeliveryStatus.SUSPECT:
            report = DeliveryReport(DeliveryStatus.REJECTED, report.reason)
        if self._of_runs:
            self._stopped.add((self.messages[index].topic, self.messages[index].key))
        self._answer(index, report)

    def end(self, report: DeliveryReport = TIMED_OUT) -> None:
        """Stop waiting, and use this report for every message without one."""
        if self._batch.unanswered:
            self._batch.answer_rest(report)

    def _build_report(self, index: int, error: ClientError) -> DeliveryReport:
        topic = self.messages[index].topic
        return build_report(error.code(), topic=topic, text=error.str(), fatal=error.fatal())


_BUSY: Final = 0.001
"""Seconds, as all of these. So long after something was sent or came, every turn of the loop polls."""
_QUIET_SHARE: Final = 0.25
_LONGEST_PAUSE: Final = 0.005
_IDLE_PAUSE: Final = 1.0
_FEW: Final = 16
"""With more reports than these awaited, polls are rarer, so that reports and what follows from them are bundled."""


class _ReportPoller:
    """Calls `poll` repeatedly in the event loop: often while reports are awaited, seldom otherwise.

    Not in a thread: the client takes and drops the interpreter's lock for each report, so a thread waits for a busy
    loop once per message. A thread reached 3,000 messages a second, this poller 170,000.
    """

    def __init__(self, poll: Callable[[], int], *, count_awaited: Callable[[], int]) -> None:
        self._poll = poll
        self._count_awaited = count_awaited
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self._next: asyncio.Handle = self._loop.call_soon(self._poll_and_schedule)
        self._is_idle = False

    def poll_soon(self) -> None:
        """Poll at once: something was sent, and its report may come soon."""
        self._active_at = self._loop.time()
        if self._is_idle:
            self._is_idle = False
            self._next.cancel()
            self._next = self._loop.call_soon(self._poll_and_schedule)

    def stop(self) -> None:
        self._next.cancel()

    def _poll_and_schedule(self) -> None:
        # The next turn is scheduled first, because a callback within the poll may stop this poller.
        now = self._loop.time()
        self._next = self._loop.call_later(self._choose_pause(now), self._poll_and_schedule)
        if self._poll():
            self._active_at = now

    def _choose_pause(self, now: float) -> float:
        """Return the time until the next poll. It grows with the silence, so a report is at most a quarter late."""
        awaited = self._count_awaited()
        self._is_idle = not awaited
        if not awaited:
            return _IDLE_PAUSE
        quiet = now - self._active_at
        if quiet < _BUSY:
            return 0.0 if awaited <= _FEW else _BUSY
        return min(max(quiet * _QUIET_SHARE, _BUSY), _LONGEST_PAUSE)


def _build_producer(config: Mapping[str, Any], *, sanitize: Callable[[str], str]) -> Producer:
    try:
        return Producer(dict(config))
    except KafkaException as error:
        reason = sanitize(error.args[0].str())
    except (TypeError, ValueError) as error:
        reason = sanitize(str(error))
    raise ConfigError(f"The kafka client does not take its settings: {reason}.")


def _free_producer(holder: list[Producer]) -> None:
    """Purge and free a producer, in a thread. Its last callbacks are run because they hold its memory."""
    producer = holder.pop()
    with suppress(KafkaException):
        producer.purge()
        producer.poll(0)
