"""Functions as a destination: which are called, with what, and how their ending is told."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import pytest

from pillarbox.brokers.handlers import Handlers, HandlersTransport
from pillarbox.context import current
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError, MessageRejected, StoreUnavailable, TransportUnavailable, UnknownType
from pillarbox.events import Types
from pillarbox.message import Message
from pillarbox.testing.samples import sample

types = Types()


@types.event("orders.placed")
@dataclass
class OrderPlaced:
    order_id: int


@types.event("orders.placed.late")
@dataclass
class OrderPlacedLate:
    order_id: int


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(types=types)


@pytest.fixture
async def transport(handlers: Handlers) -> AsyncIterator[HandlersTransport]:
    transport = HandlersTransport(handlers)
    await transport.open()
    yield transport
    await transport.close()


async def sent(transport: HandlersTransport, message: Message | None = None) -> Outcome:
    (outcome,) = await transport.send([sample() if message is None else message])
    return outcome


# --- which are called ------------------------------------------------------------------------------


async def test_a_class_a_type_pattern_and_a_topic_pattern(handlers: Handlers, transport: HandlersTransport) -> None:
    called: list[str] = []

    def noting(name: str) -> Callable[[object], None]:
        return lambda _event: called.append(name)

    handlers.on(OrderPlaced)(noting("class"))
    handlers.on("orders.*")(noting("type"))
    handlers.on(topic="eu.*")(noting("topic"))
    handlers.on("orders.*", topic="us.*")(noting("both"))
    handlers.on("ORDERS.*")(noting("letter case"))

    async def calls(type_: str, topic: str) -> list[str]:
        called.clear()
        await sent(transport, sample(type=type_, topic=topic))
        return called

    assert await calls("orders.placed", "eu.orders") == ["class", "type", "topic"]
    assert await calls("orders.placed.late", "us.orders") == ["type", "both"]
    assert await calls("mail.sent", "eu.mail") == ["topic"]
    assert await calls("ordersXplaced", "x") == []


async def test_a_handler_gets_the_decoded_event(handlers: Handlers, transport: HandlersTransport) -> None:
    got: list[object] = []
    handlers.on(OrderPlaced)(got.append)
    await sent(transport, sample(payload=b'{"order_id": 7}'))
    assert got == [OrderPlaced(7)]


async def test_of_an_unregistered_type_it_gets_plain_data(handlers: Handlers, transport: HandlersTransport) -> None:
    got: list[object] = []
    handlers.on("mail.*")(got.append)
    await sent(transport, sample(type="mail.sent", payload=b'{"to": "x"}'))
    await sent(transport, sample(type="mail.sent", payload=b"\xff", content_type="image/png"))
    assert got == [{"to": "x"}, b"\xff"]


async def test_a_second_parameter_gets_the_message(handlers: Handlers, transport: HandlersTransport) -> None:
    got: list[tuple[object, object]] = []

    @handlers.on(OrderPlaced)
    def both(event: OrderPlaced, message: Message) -> None:
        got.append((event, message))

    @handlers.on(OrderPlaced)
    async def awaited(event: OrderPlaced, message: Message, own: int = 1) -> None:
        got.append((event, message))

    message = sample()
    await sent(transport, message)
    assert got == [(OrderPlaced(1), message)] * 2


async def test_methods_partials_and_objects_are_functions_too(handlers: Handlers, transport: HandlersTransport) -> None:
    got: list[str] = []

    class Mailer:
        async def on_placed(self, event: OrderPlaced) -> None:
            got.append("method")

        async def __call__(self, event: OrderPlaced, message: Message) -> None:
            got.append("object")

    async def configured(name: str, event: OrderPlaced) -> None:
        got.append(name)

    handlers.on(OrderPlaced)(Mailer().on_placed)
    handlers.on(OrderPlaced)(Mailer())
    handlers.on(OrderPlaced)(functools.partial(configured, "partial"))
    handlers.on(OrderPlaced)(lambda event: configured("lambda", event))
    assert await sent(transport) == Outcome(delivered=True)
    assert got == ["method", "object", "partial", "lambda"]


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b, c: None, lambda *a: None, lambda a, *, b: None], ids=["0", "3", "*", "kw"]
)
def test_a_function_that_cannot_be_called_so_is_refused(handlers: Handlers, function: Callable[..., None]) -> None:
    with pytest.raises(ConfigError, match="must take the event"):
        handlers.on("x")(function)


def test_a_handler_for_nothing_is_refused(handlers: Handlers) -> None:
    with pytest.raises(ConfigError, match="what it is for"):
        handlers.on()


def test_a_class_that_is_not_registered_is_refused(handlers: Handlers) -> None:
    with pytest.raises(UnknownType):
        handlers.on(int)


# --- how they are called ---------------------------------------------------------------------------


async def test_a_function_that_is_not_async_does_not_block_the_loop(
    handlers: Handlers, transport: HandlersTransport
) -> None:
    """It waits for something that only the loop can do."""
    loop_went_on = threading.Event()
    where: list[bool] = []
    loop, began = asyncio.get_running_loop(), asyncio.Event()

    @handlers.on(OrderPlaced)
    def blocking(event: OrderPlaced) -> None:
        where.append(threading.current_thread() is threading.main_thread())
        loop.call_soon_threadsafe(began.set)
        assert loop_went_on.wait(timeout=30)

    sending = asyncio.create_task(sent(transport))
    await began.wait()
    loop_went_on.set()
    assert await sending == Outcome(delivered=True)
    assert where == [False]


async def test_what_handlers_publish_is_caused_by_the_message(handlers: Handlers, transport: HandlersTransport) -> None:
    seen: list[tuple[str | None, str | None]] = []

    @handlers.on(OrderPlaced)
    def in_thread(event: OrderPlaced) -> None:
        seen.append((current().correlation_id, current().causation_id))

    @handlers.on(OrderPlaced)
    async def in_loop(event: OrderPlaced) -> None:
        seen.append((current().correlation_id, current().causation_id))

    message = sample(correlation_id="request-1")
    await sent(transport, message)
    assert seen == [("request-1", str(message.message_id))] * 2
    assert current().correlation_id is None


# --- how it ends -----------------------------------------------------------------------------------


async def test_all_handlers_run_and_one_failure_is_a_failure(handlers: Handlers, transport: HandlersTransport) -> None:
    ran: list[str] = []

    @handlers.on(OrderPlaced)
    async def first(event: OrderPlaced) -> None:
        ran.append("first")
        raise ValueError("no mail server")

    @handlers.on(OrderPlaced)
    def second(event: OrderPlaced) -> None:
        ran.append("second")

    outcome = await sent(transport)
    assert ran == ["first", "second"]
    assert (outcome.delivered, outcome.rejected) == (False, False)
    assert outcome.error is not None
    assert outcome.error.endswith("first raised ValueError: no mail server")
    assert outcome.detail is not None
    assert 'raise ValueError("no mail server")' in outcome.detail


async def test_a_failure_is_told_on_one_line_and_without_secrets(
    handlers: Handlers, transport: HandlersTransport
) -> None:
    @handlers.on(OrderPlaced)
    def failing(event: OrderPlaced) -> None:
        text = "smtp://shop:hunter2@mail failed\r\npassword=hunter2 {'api_key': 'hunter2'} Bearer hunter2hunter2\x1b[2J"
        raise ValueError(text + "x" * 100_000)

    outcome = await sent(transport)
    assert outcome.error is not None
    assert outcome.detail is not None
    assert outcome.error.isprintable()
    assert len(outcome.error) <= 300
    assert len(outcome.detail) <= 8_000
    assert "hunter2" not in outcome.error
    assert "\x1b" not in outcome.detail


async def test_the_trace_holds_no_secret(handlers: Handlers, transport: HandlersTransport) -> None:
    @handlers.on(OrderPlaced)
    def failing(event: OrderPlaced) -> None:
        url = "postgresql://shop:" + "hunter2" + "@db/shop"
        raise ValueError(f"cannot reach {url}")

    outcome = await sent(transport)
    assert outcome.detail is not None
    assert "cannot reach postgresql://shop:***@db/shop" in outcome.detail


async def test_a_handler_can_reject(handlers: Handlers, transport: HandlersTransport) -> None:
    @handlers.on(OrderPlaced)
    def rejecting(event: OrderPlaced) -> None:
        raise MessageRejected("the order was never there")

    outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, True)
    assert "never there" in (outcome.error or "")


async def test_whoever_may_still_succeed_is_asked_again(handlers: Handlers, transport: HandlersTransport) -> None:
    @handlers.on(OrderPlaced)
    def rejecting(event: OrderPlaced) -> None:
        raise MessageRejected("never")

    @handlers.on(OrderPlaced)
    def failing(event: OrderPlaced) -> None:
        raise ValueError("not now")

    outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, False)


async def test_a_handler_can_say_that_something_is_away(handlers: Handlers, transport: HandlersTransport) -> None:
    @handlers.on(OrderPlaced)
    async def away(event: OrderPlaced) -> None:
        raise TransportUnavailable("The mail server is away.")

    with pytest.raises(TransportUnavailable, match="mail server"):
        await sent(transport)


def _wrap(code: int) -> Exception:
    """Return an error of the shop that was raised from one of SQLite."""
    cause = sqlite3.OperationalError("no")
    cause.sqlite_errorcode = code
    error = RuntimeError("cannot write the bill")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [StoreUnavailable("the database is away"), _wrap(sqlite3.SQLITE_CANTOPEN)])
async def test_a_database_that_is_away_is_an_outage_as_in_a_consumer(
    handlers: Handlers, transport: HandlersTransport, error: Exception
) -> None:
    @handlers.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None:
        raise error

    with pytest.raises(TransportUnavailable, match="bill raised"):
        await sent(transport)


async def test_a_conflict_is_tried_again_and_is_nobodys_fault(handlers: Handlers, transport: HandlersTransport) -> None:
    @handlers.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None:
        raise _wrap(sqlite3.SQLITE_BUSY)

    @handlers.on(OrderPlaced)
    def mail(event: OrderPlaced) -> None:
        raise MessageRejected("never")

    outcome = await sent(transport)
    assert (outcome.not_now, outcome.rejected, outcome.missing) == (True, False, False)
    assert "bill raised RuntimeError" in (outcome.error or "")


async def test_a_failure_beside_a_conflict_is_a_failure(handlers: Handlers, transport: HandlersTransport) -> None:
    @handlers.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None:
        raise _wrap(sqlite3.SQLITE_BUSY)

    @handlers.on(OrderPlaced)
    def mail(event: OrderPlaced) -> None:
        raise KeyError("total")

    outcome = await sent(transport)
    assert (outcome.not_now, outcome.rejected, outcome.error and "KeyError" in outcome.error) == (False, False, True)


class _Abort(BaseException):
    """Like a timeout of gevent, or an outcome of pytest."""


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(1),
        asyncio.CancelledError(),
        StopIteration(),
        _Abort(),
        BaseExceptionGroup("two", [_Abort()]),
        _Mute(),
    ],
)
async def test_a_handler_cannot_end_the_relay(
    handlers: Handlers, transport: HandlersTransport, error: BaseException, is_async: bool
) -> None:
    def plain(event: OrderPlaced) -> None:
        raise error

    async def awaited(event: OrderPlaced) -> None:
        raise error

    handlers.on(OrderPlaced)(awaited if is_async else plain)
    outcome = await asyncio.wait_for(sent(transport), timeout=30)
    assert (outcome.delivered, outcome.rejected) == (False, False)


async def test_a_handler_in_a_thread_cannot_interrupt_the_relay(
    handlers: Handlers, transport: HandlersTransport
) -> None:
    @handlers.on(OrderPlaced)
    def bill(event: OrderPlaced) -> None:
        raise KeyboardInterrupt

    outcome = await sent(transport)
    assert (outcome.delivered, (outcome.error or "").endswith("bill raised KeyboardInterrupt")) == (False, True)


async def test_what_cannot_be_decoded_is_rejected(handlers: Handlers, transport: HandlersTransport) -> None:
    called: list[object] = []
    handlers.on("*")(called.append)
    outcome = await sent(transport, sample(payload=b'{"order_id": "seven"}'))
    assert (outcome.delivered, outcome.rejected, called) == (False, True, [])
    assert "OrderPlaced" in (outcome.error or "")


async def test_a_message_that_nobody_wants(handlers: Handlers, transport: HandlersTransport) -> None:
    outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, True)
    assert "orders.placed" in (outcome.error or "")
    lenient = HandlersTransport(handlers, unhandled="ignore")
    await lenient.open()
    assert await sent(lenient) == Outcome(delivered=True)
    await lenient.close()


# --- runs of a key ---------------------------------------------------------------------------------


def test_no_key_waits_for_the_handlers_of_another(handlers: Handlers) -> None:
    features = HandlersTransport(handlers).features
    assert (features.runs, features.one_key) == (True, True)


def numbered(*numbers: int, key: str | None = "k") -> list[Message]:
    return [sample(key=key, payload=b'{"order_id": %d}' % number) for number in numbers]


def told(outcomes: Sequence[Outcome]) -> list[str]:
    return ["delivered" if one.delivered else "unsent" if one.unsent else "failed" for one in outcomes]


async def test_a_run_stops_at_the_first_failure_and_other_keys_go_on(
    handlers: Handlers, transport: HandlersTransport
) -> None:
    called: list[int] = []

    @handlers.on(OrderPlaced)
    async def fail_second(event: OrderPlaced) -> None:
        called.append(event.order_id)
        if event.order_id == 2:
            raise ValueError("no")

    messages = [*numbered(1, 2, 3), *numbered(4, 5, key="other"), *numbered(2, 6, key=None)]
    outcomes = await transport.send(messages)
    assert told(outcomes) == ["delivered", "failed", "unsent", "delivered", "delivered", "failed", "delivered"]
    assert called == [1, 2, 4, 5, 2, 6]


async def test_an_outage_in_the_middle_of_a_run_is_left_for_the_next_send(
    handlers: Handlers, transport: HandlersTransport
) -> None:
    """What was handled before it is answered for, and is not handled again."""

    @handlers.on(OrderPlaced)
    async def fail_second(event: OrderPlaced) -> None:
        if event.order_id == 2:
            raise TransportUnavailable("the mail server is away")

    messages = numbered(1, 2, 3)
    assert told(await transport.send(messages)) == ["delivered", "unsent", "unsent"]
    with pytest.raises(TransportUnavailable, match="mail server"):
        await transport.send(messages[1:])


async def test_a_run_of_slow_handlers_is_one_message(
    handlers: Handlers, transport: HandlersTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that dies, or loses its lanes, has begun no more of them than a moment allows."""
    now = 0.0
    monkeypatch.setattr("pillarbox.brokers.handlers.monotonic", lambda: now)

    @handlers.on(OrderPlaced)
    async def take_long(event: OrderPlaced) -> None:
        nonlocal now
        now += 0.005 if event.order_id < 3 else 10.0

    outcomes = await transport.send([*numbered(1, 2, 3, 4), *numbered(5, 6, key="other")])
    assert told(outcomes) == ["delivered"] * 3 + ["unsent", "delivered", "unsent"]
