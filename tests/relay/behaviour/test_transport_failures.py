"""A transport that is wrong in itself, or a destination that breaks in an odd way, hurts one message or nobody."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import MessageRejected, TransportError, TransportUnavailable
from pillarbox.message import Message, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.telemetry import Telemetry
from tests.support.relay_behaviour.scene import DELIVERED, Scene, Script, as_told, quick_retry, until

BAD = b"13"


class Faulty(Script):
    """Does something else with a batch, when it should; and whatever it is told when it opens."""

    def __init__(
        self,
        fault: Callable[[Sequence[Message]], Exception | None] = lambda _: None,
        *,
        opening: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        super().__init__()
        self.fault = fault
        self.opening = opening
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        if (error := self.opening()) is not None:
            raise error

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if (error := self.fault(messages)) is not None:
            self.sends += 1
            raise error
        return await super().send(messages)


def with_bad(error: Exception) -> Callable[[Sequence[Message]], Exception | None]:
    return lambda messages: error if any(message.payload == BAD for message in messages) else None


async def others_until_failed(scene: Scene) -> None:
    """Traffic, so that there is a witness, until one message has failed."""
    number = 100
    while not await scene.find(State.FAILED):
        number += 1
        await scene.put((number, f"key-{number % 5}"))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TransportError("odd"), MessageRejected("never")], ids=str)
async def test_an_error_of_a_batch_is_found_to_be_one_messages_and_costs_its_neighbours_nothing(
    scene: Scene, error: Exception
) -> None:
    sink = Faulty(with_bad(error))
    await scene.put(*[(number, f"key-{number}") for number in range(20)])
    async with asyncio.timeout(60), scene.relay(sink):
        await others_until_failed(scene)
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert failed.payload == BAD
    assert str(error) in (failed.last_error or "")
    tried = {line.message_id for line in await scene.store.journal(limit=1_000) if line.message_id is not None}
    assert tried == {failed.message_id}, "its neighbours were sent again, in halves, and failed no try"
    assert {message.attempts for message in await scene.find(State.DELIVERED)} == {0}


async def test_the_traceback_of_a_bug_is_in_the_journal(scene: Scene) -> None:
    sink = Faulty(with_bad(RuntimeError("a bug")))
    await scene.put((13, "a"))
    async with asyncio.timeout(60), scene.relay(sink):
        await others_until_failed(scene)
    (failed,) = await scene.find(State.FAILED)
    details = [line.detail or "" for line in await scene.store.journal(message_id=failed.message_id)]
    assert all("Traceback" in detail and "RuntimeError: a bug" in detail for detail in details)


async def test_a_transport_that_answers_for_too_few_is_not_believed(scene: Scene) -> None:
    class Forgetful(Script):
        async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
            return await super().send(messages[:-1] if len(messages) > 1 else messages)

    sink = Forgetful()
    await scene.put(*[(number, f"key-{number % 5}") for number in range(20)])
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert {message.state for message in await scene.find()} == {State.DELIVERED}
    assert set(sink.numbers()) == set(range(20))
    assert all(ids == sorted(ids) for ids in sink.by_key().values())


ODD_TEXTS = ["nul \x00 inside", "half \udc80 a letter", "x" * 2_000_000]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=["nul", "surrogate", "long"])
async def test_an_error_in_any_words_can_be_recorded(scene: Scene, text: str) -> None:
    sink = Script(as_told({3: Outcome(delivered=False, error=text, detail=text, rejected=True)}))
    await scene.put((1, "a"), (3, "a"), (4, "a"), (5, "b"))
    async with scene.relay(sink):
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert failed.last_error is not None
    assert failed.last_error[:4] == text[:4]
    assert len(failed.last_error) <= 2_000
    assert sorted(sink.numbers()) == [1, 4, 5]


# --- opening ---


def two(scene: Scene, first: Script, second: Script) -> Relay:
    """A relay with two destinations, `sink` and `other`."""
    return Relay(
        scene.open_store(),
        [
            Destination(lambda: first, DestinationSettings(name="sink", retry=quick_retry())),
            Destination(lambda: second, DestinationSettings(name="other", retry=quick_retry())),
        ],
        settings=scene.quick(),
    )


@pytest.mark.parametrize("error", [TransportUnavailable("nobody there"), TransportError("odd"), RuntimeError("a bug")])
async def test_a_destination_that_cannot_be_opened_at_the_start_is_served_once_it_can(
    scene: Scene, error: Exception
) -> None:
    is_away = True
    sink, other = Faulty(opening=lambda: error if is_away else None), Script()
    async with two(scene, sink, other):
        await scene.put((1, "a"))
        await scene.put((2, "a"), topic="other")
        await until(lambda: other.numbers() == [2])
        await until(lambda: sink.opened >= 2)
        is_away = False
        await until(lambda: sink.numbers() == [1])
        await until(scene.is_drained)
    assert {message.attempts for message in await scene.find()} == {0}


@pytest.mark.parametrize("call", ["open", "ping"])
async def test_a_destination_that_hangs_costs_the_others_nothing(scene: Scene, call: str) -> None:
    """The lease is a second; the destination says nothing for five."""

    class Hanging(Script):
        async def open(self) -> None:
            await asyncio.sleep(1000 if call == "open" else 0)

        async def ping(self) -> None:
            await asyncio.sleep(1000)

    sink, other = Hanging(), Script()
    sink.is_down = True
    relay = two(scene, sink, other)
    async with relay:
        await scene.put((1, "a"))
        await scene.put((2, "a"), topic="other")
        await until(lambda: other.numbers() == [2])
        life = relay.relay_id
        await asyncio.sleep(3)
        await scene.put((3, "a"), topic="other")
        await until(lambda: other.numbers() == [2, 3])
        assert relay.relay_id == life


# --- outages ---


class Ears(Telemetry):
    """Hears of outages."""

    def __init__(self) -> None:
        self.outages = 0

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self.outages += 1


@pytest.mark.usefixtures("short_outages")
async def test_a_destination_that_refuses_everything_is_left_alone_and_probed_with_one_message(scene: Scene) -> None:
    sink, ears = Script(lambda _: Outcome(delivered=False, error="503")), Ears()
    await scene.put(*[(number, None) for number in range(30)])
    destination = Destination(lambda: sink, DestinationSettings(name="sink", retry=quick_retry()))
    async with Relay(scene.open_store(), [destination], settings=scene.quick(), telemetry=ears):
        await until(lambda: ears.outages >= 4)
        assert sink.sends <= ears.outages + 1, "each refusal is followed by a rest"
        assert len(sink.under_way) <= 30 + ears.outages, "after the first batch, one message at a time"
        sink.answer = lambda _: DELIVERED
        await until(scene.is_drained)
    assert {message.attempts for message in await scene.find(State.DELIVERED)} == {0}


# --- broken connections ---


def broken() -> TransportUnavailable:
    return TransportUnavailable("connection reset", mid_send=True)


@pytest.mark.usefixtures("short_outages")
async def test_an_outage_that_breaks_every_connection_costs_nothing(scene: Scene) -> None:
    """As behind a load balancer: somebody answers, and then the connection breaks. No message is to blame."""
    is_down = True
    sink = Faulty(lambda _: broken() if is_down else None)
    await scene.put((1, "a"), (2, "a"))
    async with scene.relay(sink, settings=scene.quick(lone_cap=1)):
        await until(lambda: sink.sends >= 10)
        assert not await scene.find(State.FAILED)
        is_down = False
        await until(scene.is_drained)
    assert sink.numbers() == [1, 2]
    assert {(message.state, message.attempts) for message in await scene.find()} == {(State.DELIVERED, 0)}


async def test_a_message_that_breaks_every_connection_fails_and_the_others_go_on(scene: Scene) -> None:
    sink = Faulty(with_bad(broken()))
    await scene.put(*[(number, f"key-{number}") for number in range(20)])
    async with asyncio.timeout(100), scene.relay(sink, settings=scene.quick(lone_cap=2)):
        await others_until_failed(scene)
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert (failed.payload, failed.attempts) == (BAD, 0)
    assert "died" in (failed.last_error or "")
    assert {message.attempts for message in await scene.find(State.DELIVERED)} == {0}


@pytest.mark.usefixtures("short_outages")
async def test_two_connections_that_break_under_a_full_window_cost_a_few_sends(scene: Scene) -> None:
    """Nobody is to blame, so nobody is sent alone: neither a send nor a connection for each message."""
    count = 400
    breaks: Counter[int] = Counter()

    def break_twice(messages: Sequence[Message]) -> Exception | None:
        if len(messages) == 1 or all(breaks[message.id] == 2 for message in messages):
            return None
        breaks.update(message.id for message in messages)
        return broken()

    sink = Faulty(break_twice)
    await scene.put(*[(number, f"key-{number}") for number in range(count)])
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sum(strikes >= 2 for strikes in breaks.values()) > 0.9 * count
    assert sorted(set(sink.numbers())) == list(range(count))
    assert {(message.state, message.attempts) for message in await scene.find()} == {(State.DELIVERED, 0)}
    assert sink.sends < count / 4
    assert sink.opened < count / 10


@pytest.mark.usefixtures("short_outages")
async def test_a_lone_message_whose_own_connection_cannot_be_made_is_not_stuck(scene: Scene) -> None:
    shared = Faulty(with_bad(broken()))
    alone: list[Faulty] = []

    def connect() -> Script:
        if not shared.opened:
            return shared
        place = len(alone)
        alone.append(Faulty(opening=lambda: RuntimeError("a bug") if place < 2 else None))
        return alone[-1]

    await scene.put((13, "a"), (14, "a"))
    settings = DestinationSettings(name="sink", send_timeout=timedelta(seconds=5), retry=quick_retry(None))
    async with Relay(scene.open_store(), [Destination(connect, settings)], settings=scene.quick()):
        await until(scene.is_drained)
    assert [number for transport in alone for number in transport.numbers()] == [13]
    assert shared.numbers() == [14]


async def test_two_destinations_do_not_wait_for_each_other(scene: Scene) -> None:
    sink, other = Script(), Script(lambda _: DELIVERED)
    sink.gate.clear()
    async with two(scene, sink, other):
        await scene.put((1, "a"))
        await scene.put((2, "a"), topic="other")
        await until(lambda: other.numbers() == [2])
        assert sink.taken == []
        sink.gate.set()
        await until(scene.is_drained)


async def test_relays_that_die_while_the_destination_hangs_fail_no_message(scene: Scene) -> None:
    """Six deaths with the message in hand, where three are enough for a message that kills relays."""
    sink = Script()
    sink.gate.clear()
    settings = scene.quick(lease=timedelta(milliseconds=400), lone_cap=1)
    await scene.put((1, "a"), (2, "a"))
    for _ in range(6):
        sink.under_way = []
        dying = asyncio.create_task(scene.relay(sink, settings=settings).run())
        await until(lambda: sink.under_way)
        dying.cancel()  # it leaves its lanes and claims behind, as a process that is killed
        await asyncio.gather(dying, return_exceptions=True)
    sink.gate.set()
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sink.by_key()["a"] == [message.id for message in await scene.find() if message.key == "a"]
    assert {(message.state, message.attempts) for message in await scene.find()} == {(State.DELIVERED, 0)}
