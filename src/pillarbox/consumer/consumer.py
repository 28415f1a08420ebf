"""Consumer: reads a receiver, handles each message once in effect, then acknowledges it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from pillarbox.arguments import check_argument
from pillarbox.brokers.factory import receiver_from_url
from pillarbox.brokers.held_bytes import BatchSize
from pillarbox.config import Config, find_receiver_url, read_store_section
from pillarbox.consumer.key_scheduler import KeyScheduler, PendingMessage
from pillarbox.consumer.processing import Processor
from pillarbox.consumer.settings import DEFAULT_SETTINGS, ConsumerSettings
from pillarbox.consumer.telemetry import CompositeConsumerTelemetry, ConsumerTelemetry, LoggingConsumerTelemetry
from pillarbox.consumer.unit_of_work import UnitOfWork, build_transactions
from pillarbox.contracts.receiver import IncomingMessage, Receiver
from pillarbox.database_errors import is_missing_table
from pillarbox.decoding import decode_incoming, to_cloudevent
from pillarbox.durations import format_duration, shorten
from pillarbox.errors import ConfigError, DecodeError, MissingExtra, SchemaMissing, TransportUnavailable
from pillarbox.events import DEFAULT_TYPES, Types
from pillarbox.handlers import Handlers
from pillarbox.inbox import Inbox
from pillarbox.redaction import expand_variables, redact_error, redact_line
from pillarbox.retry import Backoff
from pillarbox.tasks import cancel_all, check_cancelled

__all__ = ["Consumer"]

F = TypeVar("F", bound=Callable[..., object])
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 10.0
_FORGET_INTERVAL: Final = 3600.0
_KEY_PART: Final = 10
"""Of one key at most this part of the prefetch counts as active."""
_LEAST_ROOM: Final = 4
"""While anything runs, more is received only when this part of the prefetch is free: one by one is expensive."""


class Consumer:
    """Handles each message of a receiver once in effect, in order per key, until stopped.

    For every message, one transaction accepts it into the inbox, calls the handlers, and holds all that they write and
    publish. Then the message is acknowledged. Messages of different keys are handled at once.

        consumer = Consumer(
            "billing", receiver="amqp://localhost?queue=billing", database=async_sessionmaker(engine)
        )

        @consumer.on(OrderPlaced)
        async def bill(event: OrderPlaced, session: AsyncSession) -> None: ...

        await consumer.run()

    `receiver` is a URL or a `Receiver`. A handler takes the event and, optionally, the transaction and the whole
    CloudEvent.
    """

    def __init__(
        self,
        name: str,
        *,
        receiver: Receiver | str,
        database: object,
        schema: str | None = None,
        prefix: str = "pillarbox_",
        settings: ConsumerSettings = DEFAULT_SETTINGS,
        types: Types = DEFAULT_TYPES,
        telemetry: ConsumerTelemetry | None = None,
        seed: int | None = None,
    ) -> None:
        check_argument(settings, "settings", ConsumerSettings)
        self.name = name
        self.settings = settings
        self.handlers = Handlers(types=types, arguments=("event", "transaction", "CloudEvent"))
        self._receiver = _build_receiver(receiver, os.environ)
        self._receiver.pending_bytes = settings.pending_bytes
        self._telemetry = telemetry or LoggingConsumerTelemetry()
        self._dice = random.Random(seed)  # noqa: S311
        self._unit = UnitOfWork(
            Inbox(name, schema=schema, prefix=prefix), build_transactions(database), threads=settings.concurrency + 1
        )
        self._stop = asyncio.Event()
        self._room = asyncio.Event()
        self._scheduler = self._build_scheduler()
        self._processor = Processor(
            self._unit, self.handlers, name=name, settings=settings, telemetry=self._telemetry, dice=self._dice
        )
        self._running: dict[asyncio.Task[None], PendingMessage] = {}
        self._suspended: dict[PendingMessage, asyncio.TimerHandle] = {}
        self._broken: asyncio.Future[None] | None = None
        """Gets the error with which no message can be handled any more."""
        self._is_full = False
        """So much is set aside that nothing is received."""
        self._is_finishing = False
        self._is_receiving = False
        self.is_started = False
        """True once its database has the inbox, or does not answer and is waited for."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def from_config(
        cls,
        name: str,
        *,
        receiver: Receiver | str | None = None,
        database: object,
        path: str | os.PathLike[str] | None = None,
        settings: ConsumerSettings = DEFAULT_SETTINGS,
        types: Types = DEFAULT_TYPES,
        telemetry: ConsumerTelemetry | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Build a consumer whose inbox has the schema and the prefix of `[store]` in the configuration.

        Without `receiver` it receives from the URL of `[consumers.NAME]`. `path` is found as `Config.load` finds it.
        """
        config = Config.load(path, environ=environ)
        names = read_store_section(config).settings
        return cls(
            name,
            receiver=_read_receiver(config, name) if receiver is None else _build_receiver(receiver, environ),
            database=database,
            schema=names.schema,
            prefix=names.prefix,
            settings=settings,
            types=types,
            telemetry=telemetry,
        )

    def __str__(self) -> str:
        return f"consumer {self.name}"

    def on(self, what: type | str | None = None, *, topic: str | None = None) -> Callable[[F], F]:
        """Register a handler for a class, for a pattern of type names, for a pattern of topics, or for both."""
        return self.handlers.on(what, topic=topic)

    def observe(self, telemetry: ConsumerTelemetry) -> None:
        """Tell this telemetry too. Call it before the consumer runs."""
        self._telemetry = self._processor.telemetry = CompositeConsumerTelemetry(self._telemetry, telemetry)

    @property
    def is_running(self) -> bool:
        """True from when the receiver is open until the consumer is told to stop."""
        return self._is_receiving and not self._stop.is_set()

    @property
    def is_stopping(self) -> bool:
        """True once it was told to stop."""
        return self._stop.is_set()

    async def find_outages(self) -> Sequence[str]:
        """Ask the database and the broker; return a sentence for each that does not answer."""
        outages = []
        for name, ask in (("database", self._unit.probe), ("broker", self._receiver.ping)):
            try:
                await ask()
            except Exception as error:
                outages.append(f"the {name} cannot be reached: {redact_error(error)}")
        return outages

    def stop(self) -> None:
        """Finish gracefully: handlers that run may end, the rest goes back to the broker."""
        self._stop.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        self._task.add_done_callback(self._report_end)
        return self

    def _report_end(self, task: asyncio.Task[None]) -> None:
        """Tell at once that the consumer has ended with an error: who entered the block hears of it at its end."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._telemetry.on_ended(self.name, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    async def run(self) -> None:
        """Handle messages until stopped. A broker or a database that is away is waited for.

        Raises when the consumer cannot go on, such as when its login may not write to the inbox. What was not handled
        goes back to the broker.
        """
        if not self.handlers.all:
            raise ConfigError(f"The consumer {self.name} has no handler: register one with @consumer.on(OrderPlaced).")
        self._unit.check_handlers(self.handlers.all)
        self._warn_of_short_window()
        self._unit.open()
        self._scheduler = self._build_scheduler()
        self._is_finishing = self._processor.is_stopping = False
        broken = self._broken = asyncio.get_running_loop().create_future()
        services = [self._run_receiver(), self._run_redrives(), self._run_cleanup()]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(service) for service in services]
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({*tasks, stopped, broken}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (*tasks, broken):
                if ended.done():
                    ended.result()
        finally:
            await cancel_all([*tasks, stopped, broken])
            await self._finish()

    async def _check_inbox(self) -> None:
        """Raise `SchemaMissing` where the database has no inbox. What else is wrong shows itself with a message."""
        try:
            await self._unit.probe()
        except Exception as error:
            if is_missing_table(error):
                raise SchemaMissing(
                    f"The consumer {self.name} finds no inbox in its database ({redact_error(error)}); run `pillarbox "
                    "schema install` for it, or give the consumer the schema and the prefix of its tables."
                ) from None

    def _build_scheduler(self) -> KeyScheduler:
        return KeyScheduler(
            concurrency=self.settings.concurrency, key_limit=max(1, self.settings.prefetch // _KEY_PART)
        )

    def _warn_of_short_window(self) -> None:
        horizon = self._receiver.features.horizon
        if horizon is not None and horizon > self.settings.retention:
            self._telemetry.on_short_window(
                self.name, retention=format_duration(self.settings.retention), horizon=format_duration(horizon)
            )

    async def _finish(self) -> None:
        """Let what runs end, within the stop timeout; closing the receiver gives the rest back."""
        self._is_receiving = False
        self._is_finishing = self._processor.is_stopping = True
        if self._running:
            await asyncio.wait(self._running, timeout=self.settings.stop_timeout.total_seconds())
        await cancel_all(self._running)
        for timer in self._suspended.values():
            timer.cancel()
        self._suspended.clear()
        # Nothing is given back one by one: only the receiver knows in which order its broker must get messages back,
        # and what is given back while it still reads may come again at once.
        await self._receiver.close()
        self._unit.close()
        self._telemetry.on_turn(self.name, is_last=True)

    # --- loops ---

    async def _run_receiver(self) -> None:
        await self._retry(self._receiver.open)
        self._is_receiving = True
        self._telemetry.on_started(self.name)
        while True:
            check_cancelled()
            limit = self.settings.prefetch - self._scheduler.active
            is_little = limit < self.settings.prefetch // _LEAST_ROOM and not self._scheduler.is_idle
            self._note_full()
            if limit <= 0 or is_little or self._is_full:
                self._room.clear()
                await self._room.wait()
                continue
            received = await self._retry(lambda limit=limit: self._receiver.receive(limit=limit))  # type: ignore[misc]
            for message in received:
                self._scheduler.add(_decode(message))
            self._start_ready()

    def _note_full(self) -> None:
        """Note whether too much is set aside to receive more, and tell it when that begins."""
        scheduler, settings = self._scheduler, self.settings
        was_full = self._is_full
        self._is_full = scheduler.set_aside >= settings.set_aside or scheduler.size >= settings.pending_bytes
        if self._is_full and not was_full:
            self._telemetry.on_full(self.name, set_aside=scheduler.set_aside, size=scheduler.size)

    async def _retry(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Repeat a call to the broker until it answers."""
        backoff = Backoff(first=_FIRST_WAIT, longest=_LONGEST_WAIT, dice=self._dice)
        has_failed = False
        while True:
            check_cancelled()
            try:
                answer = await call()
            except TransportUnavailable as error:
                has_failed = True
                self._telemetry.on_broker_failed(self.name, error)
                await asyncio.sleep(backoff.next_wait())
            else:
                if has_failed:
                    self._telemetry.on_broker_answered(self.name)
                return answer

    async def _run_redrives(self) -> None:
        """Take failed messages that a person redrove from the inbox, as if the broker had delivered them."""
        await self._check_inbox()
        self.is_started = True
        size, may_have_more = BatchSize(), False
        while True:
            if not may_have_more:
                await asyncio.sleep(self.settings.poll_interval.total_seconds())
            self._telemetry.on_turn(self.name)
            may_have_more = False
            room = self.settings.prefetch - self._scheduler.active
            bytes_left = self.settings.pending_bytes - self._scheduler.size
            if room <= 0 or bytes_left <= 0:
                continue
            room = size.choose(room, bytes_left)
            pending = [*self._running.values(), *self._suspended, *self._scheduler.list_waiting()]
            known = {message.identity for message in pending}
            # Those that are pending already are still the first in the inbox: they must not take the place of others.
            taken = [message for message in pending if message.is_redriven]
            limit = room + len(taken)
            contents = await self._processor.take_redriven(limit=limit)
            self._telemetry.on_store_answered(self.name)
            may_have_more = len(contents) >= limit
            size.learn([len(content) for content in contents])
            for content in contents:
                with contextlib.suppress(DecodeError):
                    message = _decode(decode_incoming(content), is_redriven=True)
                    if message.identity not in known:
                        known.add(message.identity)
                        self._scheduler.add(message)
            self._start_ready()

    async def _run_cleanup(self) -> None:
        while True:
            try:
                await self._processor.forget_old()
            except Exception as error:
                # Old records harm nobody, and the consumer role may not delete any: the relay's janitor does.
                # A missing inbox is reported once, by the check at the start.
                if not is_missing_table(error):
                    self._telemetry.on_cleanup_failed(self.name, error)
            await asyncio.sleep(_FORGET_INTERVAL * (0.9 + self._dice.random() / 5))

    # --- one message ---

    def _start_ready(self) -> None:
        while (pending := self._scheduler.start_next()) is not None:
            task = asyncio.create_task(self._process(pending))
            self._running[task] = pending
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        pending = self._running.pop(task)
        if task.cancelled():
            if self._is_finishing:
                return
            # The handler cancelled its own task, and that came after it. The inbox knows what it did.
            self._suspend(pending, _FIRST_WAIT)
        elif (error := task.exception()) is not None:
            # The message keeps its place, so that `_finish` gives it back with the others.
            self._suspended[pending] = asyncio.get_running_loop().call_later(0, lambda: None)
            if self._broken is not None and not self._broken.done():
                self._broken.set_exception(error)
            return
        if not self._stop.is_set():
            self._start_ready()
            self._room.set()

    async def _process(self, pending: PendingMessage) -> None:
        """Handle a message and acknowledge it, or suspend it until its next attempt."""
        delay = await self._processor.process(pending)
        if delay is not None:
            self._suspend(pending, delay)
            return
        if not pending.is_redriven:
            # If this fails the broker delivers the message again, and the inbox finds the duplicate.
            with self._report_broker_errors():
                await self._receiver.acknowledge(pending.received)
        self._scheduler.finish(pending)

    @contextlib.contextmanager
    def _report_broker_errors(self) -> Iterator[None]:
        """Go on after an error of the receiver: the broker takes back what it did not hear of."""
        try:
            yield
        except TransportUnavailable:
            pass
        except Exception as error:
            self._telemetry.on_broker_failed(self.name, error)

    def _suspend(self, pending: PendingMessage, delay: float) -> None:
        self._scheduler.suspend(pending)
        self._suspended[pending] = asyncio.get_running_loop().call_later(delay, self._resume, pending)

    def _resume(self, pending: PendingMessage) -> None:
        del self._suspended[pending]
        self._scheduler.resume(pending)
        self._start_ready()


def _build_receiver(receiver: Receiver | str, environ: Mapping[str, str]) -> Receiver:
    if isinstance(receiver, str):
        return receiver_from_url(expand_variables(receiver, environ))
    if not hasattr(receiver, "receive"):
        raise ConfigError(
            f"receiver={shorten(receiver)} is not a receiver: pass a URL, such as amqp://localhost?queue=billing, or "
            "what receiver_from_url returns."
        )
    return receiver


def _read_receiver(config: Config, name: str) -> Receiver:
    url = find_receiver_url(config, name)
    try:
        return _build_receiver(str(url.value), config.environ)
    except MissingExtra:
        raise
    except ConfigError as error:
        where = url.origin.describe(("consumers", name, "receiver"))
        raise ConfigError(f"{where} cannot be used: {str(error).removesuffix('.')}.") from error


def _decode(received: IncomingMessage, *, is_redriven: bool = False) -> PendingMessage:
    try:
        return PendingMessage(received=received, event=to_cloudevent(received), is_redriven=is_redriven)
    except DecodeError as error:
        reason = str(error)
    except Exception as error:  # no message may stop the others, whatever reading it does
        reason = f"it cannot be read ({redact_error(error)})"
    return PendingMessage(received=received, event=None, decode_error=redact_line(reason), is_redriven=is_redriven)
