"""librdkafka's consumer, in a thread of its own: it must be asked for news all the time, and some answers block."""

from __future__ import annotations

import logging
import time
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, Protocol

from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.receivers.kafka.deliveries import Delivery
from pillarbox.receivers.kafka.shares import Note, Share, mark_in
from pillarbox.transports.kafka.client_settings import ClientConfig
from pillarbox.transports.kafka.reach import Reach

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
except ModuleNotFoundError as error:
    raise MissingExtra("confluent-kafka", extra="kafka", needed_for="The kafka receiver") from error

__all__ = ["Client", "Hearing", "check_config"]

_log: Final = logging.getLogger(__name__)
_TURN: Final = 0.02
"""Seconds, as all of these. What is told to the thread waits at most so long."""
_SOON: Final = 0.002
"""The same while an answer to a commit is awaited, which is heard only when the client is polled anew."""
_REST: Final = 0.2
_SLICE: Final = 0.5
_PAUSE_AFTER: Final = 0.5
"""When nobody has asked for messages for so long, the partitions are paused: the client must be polled all the same."""
_SPARE: Final = 100
"""Messages that come by the way while nobody asks for them, until the partitions are paused."""
_AGAIN: Final = 0.2
_GOODBYE: Final = 5.0
_PASSING: Final = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._NO_OFFSET,
        KafkaError._ASSIGNMENT_LOST, KafkaError.REQUEST_TIMED_OUT, KafkaError._DESTROY,
    }
)  # fmt: skip
"""What is said of a commit while partitions change hands or the coordinator moves."""
_BEARABLE: Final = frozenset({KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED, KafkaError._TRANSPORT})


class Hearing(Protocol):
    """Who listens, in the loop."""

    def came(self, deliveries: Sequence[Delivery]) -> None:
        """These are to be handled."""

    def gone(self) -> None:
        """Partitions were taken away."""

    def ended(self, why: str) -> None:
        """The client is at its end."""


class _Want(NamedTuple):
    limit: int


class _Settled(NamedTuple):
    delivery: Delivery
    done: Future[None]


class _Asked(NamedTuple):
    done: Future[str | None]


class _Close(NamedTuple):
    pass


_Command = _Want | _Settled | _Asked | _Close


class Client:
    """One member of the group. Everything below the line happens in its thread."""

    def __init__(
        self, config: ClientConfig, *, topics: Sequence[str], seconds: float, reach: Reach, hearing: Hearing,
        loop: AbstractEventLoop,
    ) -> None:  # fmt: skip
        self._topics = list(topics)
        self._seconds = seconds
        self._reach = reach
        self._hearing = hearing
        self._loop = loop
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._shares: dict[tuple[str, int], Share] = {}
        self._held: list[Delivery] = []
        """What came, and is not handed out."""
        self._waiting: list[_Settled] = []
        """Who waits for a commit."""
        self._wanted = 0
        self._wanted_at = time.monotonic()
        self._is_paused: bool | None = False
        """None: some partitions are, and some are not."""
        self._commits = 0
        """How many are under way."""
        self._commit_at = 0.0
        self._trouble: str | None = None
        self._is_closing = False
        self._is_over = False
        """Nothing is committed any more."""
        self._consumer = _made({**config, "error_cb": self._heard, "on_commit": self._committed}, told=reach.told)
        self._thread = Thread(target=self._run, daemon=True, name="pillarbox-kafka")
        self._thread.start()

    def want(self, limit: int) -> None:
        """Bring so many, as soon as there are any."""
        self._commands.put(_Want(limit))

    def settle(self, delivery: Delivery) -> Future[None]:
        """It is done with. The answer comes when the cluster has it, or will not."""
        done: Future[None] = self._loop.create_future()
        self._commands.put(_Settled(delivery, done))
        return done

    def close(self) -> None:
        """Commit what is settled, and leave the group. `Hearing.ended` follows."""
        self._commands.put(_Close())

    def ask(self) -> Future[str | None]:
        """What is wrong with the topics; None if all is well. A cluster that says nothing is the client's end."""
        done: Future[str | None] = self._loop.create_future()
        self._commands.put(_Asked(done))
        return done

    # --- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not self._is_closing and self._trouble is None:
                self._obey()
                self._poll()
                self._hand_out()
                self._commit()
        except (KafkaException, RuntimeError) as error:
            self._trouble = self._reach.told(str(error))
        self._leave()

    def _obey(self) -> None:
        with suppress(Empty):
            is_busy = self._wanted or self._commits
            command = self._commands.get_nowait() if is_busy else self._commands.get(timeout=_REST)
            while True:
                self._obeyed(command)
                command = self._commands.get_nowait()

    def _obeyed(self, command: _Command) -> None:
        match command:
            case _Want(limit):
                self._wanted, self._wanted_at = limit, time.monotonic()
            case _Settled(delivery, _):
                delivery.share.settle(delivery.offset)
                self._waiting.append(command)
            case _Asked(done):
                self._look(done)
            case _Close():
                self._is_closing = True

    def _look(self, done: Future[str | None]) -> None:
        """Not for all the time at once: the client says only when it is polled that there is nobody to ask."""
        until = time.monotonic() + self._seconds
        while not self._is_over and self._trouble is None:
            try:
                self._tell(_resolve, [done], self._problem())
            except KafkaException as error:
                self._take_in([self._consumer.poll(0)])
                if time.monotonic() >= until:
                    self._reach.silent(error.args[0].str())
                    self._trouble = self._reach.down
            else:
                self._reach.answered()
                return

    def _problem(self) -> str | None:
        for topic in self._topics:
            known = self._consumer.list_topics(topic, min(_SLICE, self._seconds)).topics.get(topic)
            if known is not None and known.error is not None:
                said = self._reach.told(known.error.str())
                return f"does not let the topic {topic} be read ({said}): create it, or let the login read it"
        return None

    def _poll(self) -> None:
        """Hear news, and bring messages if they are wanted. Without being asked for news, the group gives us up."""
        room = self._wanted - len(self._held)
        if room > 0:
            self._pause(False)
            self._take_in([self._consumer.poll(_SOON if self._commits else _TURN)])
            if self._held and room > 1:
                self._take_in(self._consumer.consume(room - 1, 0))
            return
        if self._wanted or len(self._held) >= _SPARE or time.monotonic() - self._wanted_at > _PAUSE_AFTER:
            self._pause(True)
        if self._is_paused or self._commits:
            self._take_in([self._consumer.poll(_SOON if self._commits else 0)])

    def _pause(self, is_paused: bool) -> None:
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            change: Callable[[list[TopicPartition]], None] = (
                self._consumer.pause if is_paused else self._consumer.resume
            )
            change(self._consumer.assignment())

    def _take_in(self, messages: Sequence[Message | None]) -> None:
        for message in messages:
            if message is None:
                continue
            problem = message.error()
            if problem is not None:
                self._heard_of(problem)
                continue
            offset = message.offset() or 0
            share = self._shares.get((message.topic() or "", message.partition() or 0))
            if share is not None:
                self._held.append(Delivery(share, offset, message, share.take(offset)))

    def _hand_out(self) -> None:
        """What the cluster knows that we may have handed out. Anything else waits for the commit that tells it."""
        if not self._held or not self._wanted:
            return
        ready = [one for one in self._held if one.share.may_hand_out(one.offset)][: self._wanted]
        if ready:
            handed = {id(one) for one in ready}
            self._held = [one for one in self._held if id(one) not in handed]
            self._wanted, self._wanted_at = 0, time.monotonic()
            self._tell(self._hearing.came, ready)

    def _commit(self) -> None:
        self._answer()
        if not self._commits and time.monotonic() >= self._commit_at:
            self._commit_of(list(self._shares.values()))

    def _commit_of(self, shares: Sequence[Share]) -> None:
        notes = [(share, note) for share in shares if (note := share.note()) is not None]
        if not notes:
            return
        places = [_place(share, note) for share, note in notes]
        self._consumer.commit(offsets=places, asynchronous=True)
        self._commits += 1

    def _answer(self) -> None:
        """Tell those whose message is committed, or cannot be by us."""
        done = [one for one in self._waiting if one.delivery.share.is_safe(one.delivery.offset)]
        if done:
            self._waiting = [one for one in self._waiting if not one.delivery.share.is_safe(one.delivery.offset)]
            self._tell(_resolve, [one.done for one in done])

    def _leave(self) -> None:
        """Nothing is committed over a client in trouble: what it had may be another's by now."""
        with suppress(KafkaException, RuntimeError):
            if self._trouble is None:
                self._finish_commits()
            self._is_over = True
            self._consumer.close()
        self._is_over = True
        for share in self._shares.values():
            share.is_ours = False
        with suppress(Empty):
            while True:
                self._obeyed(self._commands.get_nowait())
        self._answer()
        self._tell(self._hearing.ended, self._trouble or "it was closed")

    def _finish_commits(self) -> None:
        self._pause(True)
        until = time.monotonic() + _GOODBYE
        while time.monotonic() < until and self._trouble is None:
            self._commit()
            if not self._commits and all(share.note() is None for share in self._shares.values()):
                return
            self._consumer.poll(_TURN)

    # --- what the client calls, while it is polled ---

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions or self._is_over:
            return
        try:
            known = consumer.committed(partitions, self._seconds)
        except KafkaException as error:
            self._trouble = self._reach.told(f"the group's place is not known: {error.args[0].str()}")
            return
        for place in known:
            share = Share(place.topic, place.partition, mark=mark_in(place.metadata))
            self._shares[place.topic, place.partition] = share
        self._is_paused = None

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """In good order: what is settled is committed, while they are still ours."""
        shares = [share for one in partitions if (share := self._shares.get((one.topic, one.partition))) is not None]
        if not self._is_over and self._trouble is None:
            self._commit_of(shares)
        self._lost(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:  # noqa: ARG002
        """They are another's already: nothing of them is committed."""
        for one in partitions:
            share = self._shares.pop((one.topic, one.partition), None)
            if share is not None:
                share.is_ours = False
        self._held = [one for one in self._held if one.share.is_ours]
        self._answer()
        self._tell(self._hearing.gone)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._commits = max(0, self._commits - 1)
        for place in partitions:
            problem = error or place.error
            share = self._shares.get((place.topic, place.partition))
            if problem is None:
                if share is not None:
                    share.agreed(Note(place.offset, mark_in(place.metadata)))
            elif problem.code() in _PASSING:
                self._commit_at = time.monotonic() + _AGAIN
            elif share is not None:
                self._trouble = self._reach.told(f"offsets cannot be committed: {problem.str()}")

    def _heard(self, problem: KafkaError) -> None:
        """Its word on its connections."""
        self._reach.heard(problem.code(), problem.str())
        if problem.code() == KafkaError._ALL_BROKERS_DOWN or problem.fatal():
            self._trouble = self._reach.down or self._reach.told(problem.str())

    def _heard_of(self, problem: KafkaError) -> None:
        """Its word on a topic."""
        if problem.code() == KafkaError._MAX_POLL_EXCEEDED:
            _log.warning("The kafka receiver was not asked for news in time, and loses its partitions for a while.")
        elif problem.code() not in _BEARABLE and not problem.retriable():
            self._trouble = self._reach.told(problem.str())

    def _tell(self, listener: Callable[..., None], *what: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(listener, *what)


def _place(share: Share, note: Note) -> TopicPartition:
    return TopicPartition(share.topic, share.partition, note.offset, note.metadata)


def _resolve(futures: Sequence[Future[Any]], answer: object = None) -> None:
    for future in futures:
        if not future.done():
            future.set_result(answer)


def check_config(config: ClientConfig, *, told: Callable[[str], str]) -> None:
    """`ConfigError` when the client does not take its settings. Connects to nothing."""
    _made({name: value for name, value in config.items() if name != "bootstrap.servers"}, told=told).close()


def _made(config: dict[str, Any], *, told: Callable[[str], str]) -> Consumer:
    try:
        return Consumer(config, logger=_log)
    except KafkaException as error:
        reason = told(error.args[0].str())
    except (TypeError, ValueError) as error:
        reason = told(str(error))
    raise ConfigError(f"The kafka client does not take its settings: {reason}.")
