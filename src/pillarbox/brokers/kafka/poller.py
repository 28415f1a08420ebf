"""librdkafka's consumer in a thread of its own: it must be polled all the time, and some of its calls block."""

from __future__ import annotations

import logging
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, Protocol

from pillarbox.brokers.kafka.connection import Reachability
from pillarbox.brokers.kafka.encoding import ConsumedRecord
from pillarbox.brokers.kafka.offsets import Commit, PartitionProgress, parse_mark
from pillarbox.brokers.kafka.settings import ClientConfig
from pillarbox.errors import ConfigError, MissingExtra

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
except ModuleNotFoundError as error:
    raise MissingExtra("confluent-kafka", extra="kafka", needed_for="The kafka receiver") from error

__all__ = ["ConsumerCallbacks", "ConsumerPoller", "check_consumer_config"]

_log: Final = logging.getLogger(__name__)
_POLL: Final = 0.02
"""Seconds, as all of these. A command to the thread waits at most so long."""
_POLL_COMMITTING: Final = 0.002
"""The same while a commit is in progress, because its answer arrives only within a poll."""
_IDLE: Final = 0.2
_METADATA_SLICE: Final = 0.5
_PAUSE_AFTER: Final = 0.5
"""Partitions are paused when nobody has asked for records for so long. The client must be polled all the same."""
_MAX_UNREQUESTED: Final = 100
"""Partitions are also paused when so many records came without a request."""
_COMMIT_RETRY: Final = 0.2
_CLOSE_TIMEOUT: Final = 5.0
"""For the last commits, and again for leaving the group."""
_RETRIABLE_COMMIT_ERRORS: Final = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._NO_OFFSET,
        KafkaError._ASSIGNMENT_LOST, KafkaError.REQUEST_TIMED_OUT, KafkaError._DESTROY,
    }
)  # fmt: skip
"""Answers to a commit while partitions are reassigned or the coordinator moves."""
_HARMLESS_ERRORS: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED, KafkaError._TRANSPORT})


class ConsumerCallbacks(Protocol):
    """Callbacks of a poller, called in the event loop."""

    def on_records(self, records: Sequence[ConsumedRecord]) -> None:
        """Take records that were fetched."""

    def on_revoked(self) -> None:
        """Drop records of partitions that are no longer assigned."""

    def on_closed(self, reason: str) -> None:
        """Note that the consumer has ended."""


class _Fetch(NamedTuple):
    limit: int
    size: int


class _Settle(NamedTuple):
    record: ConsumedRecord
    done: Future[None]


class _CheckTopics(NamedTuple):
    done: Future[str | None]


class _Close(NamedTuple):
    pass


_Command = _Fetch | _Settle | _CheckTopics | _Close


class ConsumerPoller:
    """One member of a consumer group. The public methods send commands to its thread; all else runs in it."""

    def __init__(
        self, config: ClientConfig, *, topics: Sequence[str], seconds: float, reachability: Reachability,
        callbacks: ConsumerCallbacks, loop: AbstractEventLoop,
    ) -> None:  # fmt: skip
        self._topics = list(topics)
        self._seconds = seconds
        self._reachability = reachability
        self._callbacks = callbacks
        self._loop = loop
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._partitions: dict[tuple[str, int], PartitionProgress] = {}
        self._fetched: list[ConsumedRecord] = []
        """Records that are not handed out yet."""
        self._settling: list[_Settle] = []
        """Callers that wait for a commit."""
        self._requested = 0
        self._requested_size = 0
        self._requested_at = time.monotonic()
        self._is_paused: bool | None = False
        """None: some partitions are paused and some are not."""
        self._commits_in_progress = 0
        self._next_commit_at = 0.0
        self._failure: str | None = None
        self._is_closing = False
        self._is_closed = False
        """Nothing is committed any more."""
        self._consumer = _build_consumer(
            {**config, "error_cb": self._on_client_error, "on_commit": self._on_commit}, sanitize=reachability.sanitize
        )
        self._thread = Thread(target=self._run, daemon=True, name="pillarbox-kafka")
        self._thread.start()

    def fetch(self, limit: int, *, size: int) -> None:
        """Fetch up to so many records and about so many bytes; `on_records` follows as soon as there are any."""
        self._commands.put(_Fetch(limit, size))

    def settle(self, record: ConsumedRecord) -> Future[None]:
        """Mark a record as handled. The future is done when that is committed, or never will be."""
        done: Future[None] = self._loop.create_future()
        self._commands.put(_Settle(record, done))
        return done

    def check_topics(self) -> Future[str | None]:
        """Return what is wrong with the topics; None if nothing is. A cluster that does not answer ends the poller."""
        done: Future[str | None] = self._loop.create_future()
        self._commands.put(_CheckTopics(done))
        return done

    def close(self) -> None:
        """Commit what is settled and leave the group; `on_closed` follows."""
        self._commands.put(_Close())

    # --- in the thread ---

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._is_closing and self._failure is None:
                self._run_commands()
                self._poll()
                self._hand_out()
                self._commit()
        except (KafkaException, RuntimeError) as error:
            self._failure = self._reachability.sanitize(str(error))
        self._leave()

    def _run_commands(self) -> None:
        with suppress(Empty):
            is_busy = self._requested or self._commits_in_progress
            command = self._commands.get_nowait() if is_busy else self._commands.get(timeout=_IDLE)
            while True:
                self._run_command(command)
                command = self._commands.get_nowait()

    def _run_command(self, command: _Command) -> None:
        match command:
            case _Fetch(limit, size):
                self._requested, self._requested_at = limit, time.monotonic()
                self._requested_size = size
            case _Settle(record, _):
                record.progress.settle(record.offset)
                self._settling.append(command)
            case _CheckTopics(done):
                self._answer_topic_check(done)
            case _Close():
                self._is_closing = True

    def _answer_topic_check(self, done: Future[str | None]) -> None:
        """Ask in slices of time: the client reports only within a poll that no broker can be reached."""
        deadline = time.monotonic() + self._seconds
        while not self._is_closed and self._failure is None:
            try:
                self._call_in_loop(_resolve, [done], self._find_unreadable_topic())
            except KafkaException as error:
                self._accept([self._consumer.poll(0)])
                if time.monotonic() >= deadline:
                    self._reachability.record_timeout(error.args[0].str())
                    self._failure = self._reachability.down
            else:
                self._reachability.record_answer()
                return

    def _find_unreadable_topic(self) -> str | None:
        for topic in self._topics:
            metadata = self._consumer.list_topics(topic, min(_METADATA_SLICE, self._seconds)).topics.get(topic)
            if metadata is not None and metadata.error is not None:
                reason = self._reachability.sanitize(metadata.error.str())
                return f"does not let the topic {topic} be read ({reason}): create it, or let the login read it"
        return None

    def _poll(self) -> None:
        """Run the client's callbacks, and fetch records if they are requested. Without polls the group drops us."""
        room = self._count_room()
        if room > 0:
            self._set_paused(False)
            self._accept([self._consumer.poll(_POLL_COMMITTING if self._commits_in_progress else _POLL)])
            if self._fetched and (room := min(room - 1, self._count_room())) > 0:
                self._accept(self._consumer.consume(room, 0))
            return
        is_unrequested = time.monotonic() - self._requested_at > _PAUSE_AFTER
        if self._requested or len(self._fetched) >= _MAX_UNREQUESTED or is_unrequested:
            self._set_paused(True)
        if self._is_paused or self._commits_in_progress:
            self._accept([self._consumer.poll(_POLL_COMMITTING if self._commits_in_progress else 0)])

    def _count_room(self) -> int:
        """Return how many records may be fetched, if they are as large as the largest one here."""
        count = self._requested - len(self._fetched)
        if not self._fetched:
            return count
        sizes = [record.size for record in self._fetched]
        bytes_left = self._requested_size - sum(sizes)
        return 0 if bytes_left <= 0 else min(count, max(1, bytes_left // max(1, *sizes)))

    def _set_paused(self, is_paused: bool) -> None:
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            change: Callable[[list[TopicPartition]], None] = (
                self._consumer.pause if is_paused else self._consumer.resume
            )
            change(self._consumer.assignment())

    def _accept(self, messages: Sequence[Message | None]) -> None:
        for message in messages:
            if message is None:
                continue
            error = message.error()
            if error is not None:
                self._on_topic_error(error)
                continue
            offset = message.offset() or 0
            progress = self._partitions.get((message.topic() or "", message.partition() or 0))
            if progress is not None:
                self._fetched.append(ConsumedRecord(progress, offset, message, progress.add(offset)))

    def _hand_out(self) -> None:
        """Hand out records below the committed mark. The others wait for the commit that raises it."""
        if not self._fetched or not self._requested:
            return
        ready = [one for one in self._fetched if one.progress.can_hand_out(one.offset)][: self._requested]
        if ready:
            handed_out = {id(one) for one in ready}
            self._fetched = [one for one in self._fetched if id(one) not in handed_out]
            self._requested, self._requested_at = 0, time.monotonic()
            self._call_in_loop(self._callbacks.on_records, ready)

    def _commit(self) -> None:
        self._answer_settled()
        if not self._commits_in_progress and time.monotonic() >= self._next_commit_at:
            self._commit_partitions(list(self._partitions.values()))

    def _commit_partitions(self, partitions: Sequence[PartitionProgress]) -> None:
        offsets = [
            TopicPartition(one.topic, one.partition, commit.offset, commit.metadata)
            for one in partitions
            if (commit := one.pending_commit()) is not None
        ]
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=True)
            self._commits_in_progress += 1

    def _answer_settled(self) -> None:
        """Resolve the futures of records that are committed, or that this consumer cannot commit."""
        final = [one for one in self._settling if one.record.progress.is_final(one.record.offset)]
        if final:
            self._settling = [one for one in self._settling if not one.record.progress.is_final(one.record.offset)]
            self._call_in_loop(_resolve, [one.done for one in final])

    def _leave(self) -> None:
        with suppress(KafkaException, RuntimeError):
            # A failed consumer commits nothing: its partitions may have another owner by now.
            if self._failure is None:
                self._finish_commits()
        self._is_closed = True
        self._close_consumer()
        for progress in list(self._partitions.values()):
            progress.is_assigned = False
        with suppress(Empty):
            while True:
                self._run_command(self._commands.get_nowait())
        self._answer_settled()
        self._call_in_loop(self._callbacks.on_closed, self._failure or "it was closed")

    def _close_consumer(self) -> None:
        """Leave the group. librdkafka's call has no timeout and has hung before; callers would wait for it for ever."""
        leaving = Thread(target=self._leave_group, daemon=True, name="pillarbox-kafka-close")
        leaving.start()
        leaving.join(_CLOSE_TIMEOUT)
        if leaving.is_alive():
            _log.warning(
                "The kafka client did not leave its group within %g s. Its thread is left behind.", _CLOSE_TIMEOUT
            )

    def _leave_group(self) -> None:
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def _finish_commits(self) -> None:
        self._set_paused(True)
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while time.monotonic() < deadline and self._failure is None:
            self._commit()
            if not self._commits_in_progress and all(one.pending_commit() is None for one in self._partitions.values()):
                return
            self._consumer.poll(_POLL)

    # --- callbacks of the client, called within a poll ---

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions or self._is_closed:
            return
        try:
            committed = consumer.committed(partitions, self._seconds)
        except KafkaException as error:
            self._failure = self._reachability.sanitize(f"the group's place is not known: {error.args[0].str()}")
            return
        for one in committed:
            progress = PartitionProgress(one.topic, one.partition, mark=parse_mark(one.metadata))
            self._partitions[one.topic, one.partition] = progress
        self._is_paused = None

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what is settled while the partitions are still ours."""
        revoked = [self._partitions.get((one.topic, one.partition)) for one in partitions]
        if not self._is_closed and self._failure is None:
            self._commit_partitions([progress for progress in revoked if progress is not None])
        self._on_lost(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:  # noqa: ARG002
        """Drop the partitions without a commit: they have another owner already."""
        for one in partitions:
            progress = self._partitions.pop((one.topic, one.partition), None)
            if progress is not None:
                progress.is_assigned = False
        self._fetched = [one for one in self._fetched if one.progress.is_assigned]
        self._answer_settled()
        self._call_in_loop(self._callbacks.on_revoked)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commits_in_progress = max(0, self._commits_in_progress - 1)
        for one in partitions:
            failure = error or one.error
            progress = self._partitions.get((one.topic, one.partition))
            if failure is None:
                if progress is not None:
                    progress.confirm(Commit(one.offset, parse_mark(one.metadata)))
            elif failure.code() in _RETRIABLE_COMMIT_ERRORS:
                self._next_commit_at = time.monotonic() + _COMMIT_RETRY
            elif progress is not None:
                self._failure = self._reachability.sanitize(f"offsets cannot be committed: {failure.str()}")

    def _on_client_error(self, error: KafkaError) -> None:
        self._reachability.record_error(error.code(), error.str())
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self._failure = self._reachability.down or self._reachability.sanitize(error.str())

    def _on_topic_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._MAX_POLL_EXCEEDED:
            _log.warning("The kafka receiver was not polled in time, and loses its partitions for a while.")
        elif error.code() not in _HARMLESS_ERRORS and not error.retriable():
            self._failure = self._reachability.sanitize(error.str())

    def _call_in_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)


def _resolve(futures: Sequence[Future[Any]], result: object = None) -> None:
    for future in futures:
        if not future.done():
            future.set_result(result)


def check_consumer_config(config: ClientConfig, *, sanitize: Callable[[str], str]) -> None:
    """Raise `ConfigError` if the client refuses its settings. Connects to nothing."""
    without_servers = {name: value for name, value in config.items() if name != "bootstrap.servers"}
    _build_consumer(without_servers, sanitize=sanitize).close()


def _build_consumer(config: dict[str, Any], *, sanitize: Callable[[str], str]) -> Consumer:
    try:
        return Consumer(config, logger=_log)
    except KafkaException as error:
        reason = sanitize(error.args[0].str())
    except (TypeError, ValueError) as error:
        reason = sanitize(str(error))
    raise ConfigError(f"The kafka client does not take its settings: {reason}.")
