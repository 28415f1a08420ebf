"""The one place that produces: a client of librdkafka from its making to its end, and the sends under way in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, Final

from pillarbox.errors import ConfigError, MissingExtra, TransportUnavailable
from pillarbox.transports.kafka.answers import Batch
from pillarbox.transports.kafka.client_settings import ClientConfig
from pillarbox.transports.kafka.fetching import Fetching
from pillarbox.transports.kafka.reach import Reach
from pillarbox.transports.kafka.records import Record
from pillarbox.transports.kafka.verdicts import DELIVERED, Answer, Verdict, answer_of

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ModuleNotFoundError as error:
    raise MissingExtra("confluent-kafka", extra="kafka", needed_for="The kafka transport") from error

__all__ = ["Producing", "check_config"]

_log: Final = logging.getLogger(__name__)
_FULL: Final = 0.001
"""Seconds until a client that is full is tried again."""


class Producing:
    """One client. `on_fatal` is called when it says that it is broken for good."""

    def __init__(self, config: ClientConfig, *, reach: Reach, on_fatal: Callable[[str], None]) -> None:
        self._reach = reach
        self._on_fatal = on_fatal
        self._batches: set[Batch] = set()
        self._is_over = False
        self._producer = _made({**config, "error_cb": self._heard, "logger": _log}, told=reach.told)
        self._fetching = Fetching(self._poll, awaited=self._awaited)

    @property
    def is_idle(self) -> bool:
        """No send is under way in it."""
        return not self._batches

    def end(self, reason: str) -> None:
        """Take back all that is in it: nothing of it is sent any more. Sends under way are told the reason."""
        self._is_over = True
        self._fetching.stop()
        for batch in self._batches:
            batch.end(Answer(Verdict.LOST, reason))
        holder = [self._producer]
        del self._producer, self._fetching
        # Its threads may be in the middle of a name lookup, and their end is waited for.
        Thread(target=_ended, args=(holder,), daemon=True).start()

    async def ask(self, topic: str, *, seconds: float) -> Answer:
        """What the cluster says about a topic; `TransportUnavailable`, for the reason alone, when it says nothing."""
        producer = self._producer
        try:
            found = await asyncio.to_thread(producer.list_topics, topic, seconds)
        except KafkaException as error:
            self._poll()
            self._reach.silent(error.args[0].str())
            raise TransportUnavailable(self._reach.down or "") from error
        self._reach.answered()
        problem = found.topics[topic].error if topic in found.topics else None
        return DELIVERED if problem is None else answer_of(problem.code(), topic=topic, said=problem.str())

    async def send(self, records: Sequence[Record], *, seconds: float) -> list[Answer]:
        """One answer per record, in time."""
        batch = Batch(records, done=asyncio.get_running_loop().create_future())
        self._batches.add(batch)
        try:
            async with asyncio.timeout(seconds):
                await self._hand_over(batch)
                await batch.done
        except TimeoutError:
            pass
        finally:
            self._batches.discard(batch)
            batch.end()
        return batch.answers

    async def _hand_over(self, batch: Batch) -> None:
        """Give all of it to the client. A full one is waited for: that is back-pressure, not a failure."""
        start = self._produced(batch, 0)
        while start < len(batch.records) and not batch.done.done():
            await asyncio.sleep(_FULL)
            start = start if self._is_over else self._produced(batch, start)

    def _produced(self, batch: Batch, start: int) -> int:
        """Hand over what the client has room for, and answer where it stopped."""
        produce: Callable[..., None] = self._producer.produce
        answered = batch.answered
        self._fetching.hurry()
        for index in range(start, len(batch.records)):
            record = batch.records[index]
            try:
                produce(
                    record.topic, record.value, record.key, headers=record.headers, on_delivery=partial(answered, index)
                )
            except BufferError:
                return index
            except KafkaException as error:
                batch.refused(index, error.args[0])
        return len(batch.records)

    def _awaited(self) -> int:
        return sum(batch.left for batch in self._batches)

    def _poll(self) -> int:
        """Have the client say what it has to say: answers, and trouble."""
        try:
            return 0 if self._is_over else self._producer.poll(0)
        except KafkaException as error:  # it is broken for good
            self._on_fatal(self._reach.told(error.args[0].str()))
            return 1

    def _heard(self, error: KafkaError) -> None:
        """Its word on its connections."""
        if not self._is_over:
            self._reach.heard(error.code(), error.str())


def check_config(config: ClientConfig, *, told: Callable[[str], str]) -> None:
    """`ConfigError` when the client does not take its settings. Connects to nothing."""
    _made({name: value for name, value in config.items() if name != "bootstrap.servers"}, told=told)


def _made(config: Mapping[str, Any], *, told: Callable[[str], str]) -> Producer:
    try:
        return Producer(dict(config))
    except KafkaException as error:
        reason = told(error.args[0].str())
    except (TypeError, ValueError) as error:
        reason = told(str(error))
    raise ConfigError(f"The kafka client does not take its settings: {reason}.")


def _ended(holder: list[Producer]) -> None:
    """In a thread. What the client has still to say is said to nobody, so that it frees its memory."""
    producer = holder.pop()
    with suppress(KafkaException):
        producer.purge()
        producer.poll(0)
