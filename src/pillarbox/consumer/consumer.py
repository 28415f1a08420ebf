"""The consumer: reads a receiver, handles each message once in effect, then acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pillarbox.consumer.line import Line, Piece
from pillarbox.consumer.processing import Processing
from pillarbox.consumer.settings import DEFAULT_SETTINGS, ConsumerSettings
from pillarbox.consumer.telemetry import ConsumerTelemetry, LoggingConsumerTelemetry
from pillarbox.consumer.transactions import transactions_of
from pillarbox.consumer.unit import Unit
from pillarbox.durations import duration_text
from pillarbox.errors import ConfigError, DecodeError, TransportUnavailable
from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.handlers import Handlers
from pillarbox.inbox import Inbox
from pillarbox.protocols import Received, Receiver
from pillarbox.receiving import event_of, received_from

__all__ = ["Consumer"]

F = TypeVar("F", bound=Callable[..., object])
_SHORTEST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 10.0
_CLEANING: Final = 3600.0
_PARTS: Final = 4
"""While anything runs, more is asked for only when there is room for that part of the prefetch: one by one is dear."""


class Consumer:
    """Handles each message of a receiver once in effect, in order per key, until stopped.

    For every message: one transaction that accepts it into the inbox, calls the handlers, and holds all that they
    write and publish; then the broker is told. Messages of different keys are handled at once.

        consumer = Consumer("billing", receiver=receiver, database=async_sessionmaker(engine))

        @consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, session: AsyncSession) -> None: ...

        await consumer.run()

    A handler takes the event, and if it wants them the transaction and the whole CloudEvent.
    """

    def __init__(
        self,
        name: str,
        *,
        receiver: Receiver,
        database: object,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        settings: ConsumerSettings = DEFAULT_SETTINGS,
        types: Types = DEFAULT_TYPES,
        telemetry: ConsumerTelemetry | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.handlers = Handlers(types=types, offers=("event", "transaction", "CloudEvent"))
        self._receiver = receiver
        self._telemetry = telemetry or LoggingConsumerTelemetry()
        self._dice = random.Random(seed)  # noqa: S311
        self._unit = Unit(
            Inbox(name, schema=schema, prefix=prefix), transactions_of(database), threads=settings.concurrency + 1
        )
        self._stop = asyncio.Event()
        self._room = asyncio.Event()
        self._line = Line(concurrency=settings.concurrency)
        self._processing = Processing(
            self._unit, self.handlers, name=name, settings=settings, telemetry=self._telemetry, dice=self._dice
        )
        self._running: dict[asyncio.Task[None], Piece] = {}
        self._delayed: dict[Piece, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None

    def on(self, what: type | str | None = None, *, topic: str | None = None) -> Callable[[F], F]:
        """Register a handler for a class, for a pattern of type names, for a pattern of topics, or for both."""
        return self.handlers.on(what, topic=topic)

    # --- from outside ---

    def stop(self) -> None:
        """Finish gracefully: handlers that run may end, the rest goes back to the broker."""
        self._stop.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    async def run(self) -> None:
        """Handle messages until stopped. A broker or a database that is away is waited for."""
        if not self.handlers.all:
            raise ConfigError(f"The consumer {self.name} has no handler: register one with @consumer.on(OrderPlaced).")
        self._unit.check(self.handlers.all)
        self._warn_of_a_short_window()
        self._unit.open()
        services = [self._receiving(), self._redriving(), self._forgetting()]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(service) for service in services]
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            everything: list[asyncio.Task[Any]] = [*tasks, stopped]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await self._finish()

    def _warn_of_a_short_window(self) -> None:
        horizon = self._receiver.features.horizon
        if horizon is not None and horizon > self.settings.retention:
            self._telemetry.window_short(
                self.name, retention=duration_text(self.settings.retention), horizon=duration_text(horizon)
            )

    async def _finish(self) -> None:
        """Let what runs end, within the stop timeout; give the rest back."""
        if self._running:
            await asyncio.wait(self._running, timeout=self.settings.stop_timeout.total_seconds())
        late = list(self._running.items())
        for task, _ in late:
            task.cancel()
        await asyncio.gather(*(task for task, _ in late), return_exceptions=True)
        delayed, self._delayed = self._delayed, {}
        for timer in delayed.values():
            timer.cancel()
        # The latest first: brokers put what is given back before what has not come yet.
        for piece in reversed([*(piece for _, piece in late), *delayed, *self._line.left()]):
            if not piece.redriven:
                with contextlib.suppress(TransportUnavailable):
                    await self._receiver.give_back(piece.received)
        await self._receiver.close()
        self._unit.close()

    # --- what runs all the time ---

    async def _receiving(self) -> None:
        await self._patiently(self._receiver.open)
        few = self.settings.prefetch // _PARTS
        while True:
            limit = self.settings.prefetch - self._line.in_hand
            if limit <= 0 or (limit < few and not self._line.is_idle):
                self._room.clear()
                await self._room.wait()
                continue
            received = await self._patiently(lambda limit=limit: self._receiver.receive(limit=limit))  # type: ignore[misc]
            for one in received:
                self._line.put(_piece(one))
            self._start_ready()

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the broker answers, however long it is away."""
        wait = _SHORTEST_WAIT
        while True:
            try:
                return await ask()
            except TransportUnavailable as error:
                self._telemetry.broker_failed(self.name, error)
            await asyncio.sleep(wait * (0.5 + self._dice.random() / 2))
            wait = min(2 * wait, _LONGEST_WAIT)

    async def _redriving(self) -> None:
        """Failed messages that a person wants handled again come from the inbox, as if the broker had sent them."""
        while True:
            await asyncio.sleep(self.settings.poll_interval.total_seconds())
            room = self.settings.prefetch - self._line.in_hand
            if room <= 0:
                continue
            in_hand = self._in_hand()
            for content in await self._processing.redriven(limit=room):
                with contextlib.suppress(DecodeError):
                    piece = _piece(received_from(content), redriven=True)
                    if piece.identity not in in_hand:
                        self._line.put(piece)
            self._start_ready()

    def _in_hand(self) -> set[tuple[str, str]]:
        pieces = [*self._running.values(), *self._delayed, *self._line.waiting()]
        return {piece.identity for piece in pieces}

    async def _forgetting(self) -> None:
        while True:
            await self._processing.forget()
            await asyncio.sleep(_CLEANING * (0.9 + self._dice.random() / 5))

    # --- one message ---

    def _start_ready(self) -> None:
        while (piece := self._line.take()) is not None:
            task = asyncio.create_task(self._process(piece))
            self._running[task] = piece
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled():
            task.result()
        if not self._stop.is_set():
            self._start_ready()
            self._room.set()

    async def _process(self, piece: Piece) -> None:
        """Handle it and acknowledge, or put it off. A delay of 0 means alone, as soon as nothing else runs."""
        delay = await self._processing.process(piece)
        if delay is not None:
            self._line.put_off()
            self._delayed[piece] = asyncio.get_running_loop().call_later(delay, self._again, piece)
            return
        if not piece.redriven:
            with contextlib.suppress(TransportUnavailable):
                await self._receiver.acknowledge(piece.received)
        self._line.done(piece)

    def _again(self, piece: Piece) -> None:
        del self._delayed[piece]
        self._line.again(piece)
        self._start_ready()


def _piece(received: Received, *, redriven: bool = False) -> Piece:
    try:
        return Piece(received=received, event=event_of(received), redriven=redriven)
    except DecodeError as error:
        return Piece(received=received, event=None, trouble=str(error), redriven=redriven)
