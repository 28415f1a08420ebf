"""The consumer at NATS: a JetStream stream of the demo's own, read with a plain client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pillarbox.cloudevents import NATS, read
from pillarbox.demo.intakes import Taker, reaching, take
from pillarbox.demo.line import Line, broker_line, new_name
from pillarbox.errors import MissingExtra

try:
    import nats
    from nats.errors import Error as NatsError
    from nats.errors import TimeoutError as NothingCame
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig, DiscardPolicy, StreamConfig
except ModuleNotFoundError as error:
    raise MissingExtra("nats-py", extra="nats", needed_for="The demo over NATS") from error

__all__ = ["NatsIntake", "nats_line"]

_CONSUMER: Final = "demo"
_CONNECT_WITHIN: Final = 10
_WAIT: Final = 5.0
_BACK_AFTER: Final = 2.0
"""Seconds after which a message that a killed consumer had in its hands is given out again."""


def nats_line(url: str) -> Line:
    """To a stream and subjects of one new name."""
    name = new_name()
    return broker_line("nats", url, name=name, options={"stream": name, "subject": f"{name}.{{topic}}"})


class NatsIntake:
    """A stream on disk that refuses what it cannot keep, and a durable consumer."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def prepare(self) -> None:
        name = self._line.name
        # Only one message is out at a time: what a killed consumer had would else come back after later ones.
        consumer = ConsumerConfig(durable_name=_CONSUMER, ack_wait=_BACK_AFTER, max_ack_pending=1)
        async with self._jetstream() as jetstream:
            stream = StreamConfig(name=name, subjects=[f"{name}.>"], discard=DiscardPolicy.NEW)
            await jetstream.add_stream(stream)
            await jetstream.add_consumer(name, consumer)

    async def remove(self) -> None:
        async with self._jetstream() as jetstream:
            await jetstream.delete_stream(self._line.name)

    async def is_ready(self) -> bool:
        """Always: the stream keeps what comes."""
        return True

    async def serve(self, taker: Taker) -> None:
        async with self._jetstream() as jetstream:
            arrivals = await jetstream.pull_subscribe_bind(_CONSUMER, stream=self._line.name)
            while True:
                try:
                    (arrival,) = await arrivals.fetch(1, timeout=_WAIT)
                except NothingCame:
                    continue
                take(taker, read(arrival.headers or {}, arrival.data, binding=NATS))
                await arrival.ack()

    @asynccontextmanager
    async def _jetstream(self) -> AsyncIterator[JetStreamContext]:
        with reaching(self._line, NatsError):
            client = await nats.connect(
                self._line.at, connect_timeout=_CONNECT_WITHIN, allow_reconnect=False, max_reconnect_attempts=1,
                reconnect_time_wait=0, error_cb=_quiet,
            )  # fmt: skip
            try:
                yield client.jetstream()
            finally:
                await client.close()


async def _quiet(_error: Exception) -> None:
    """What is wrong is raised too."""
