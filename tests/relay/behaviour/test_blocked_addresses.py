"""An address that takes nothing costs its messages no attempt, and the other addresses nothing at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from pillarbox.contracts.store import FailedOutcome, Selection
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.telemetry import Telemetry
from tests.relay.behaviour.test_refused_writes import run_sql
from tests.support.relay_behaviour.scene import DELIVERED, Scene, Script, quick_retry, until

FULL = Outcome(delivered=False, error="the queue is full", not_now=True)
MISSING = Outcome(delivered=False, error="no queue is bound", not_now=True, missing=True)


class Topics(Script):
    """A broker with an address for each topic, some of which answer otherwise. Counts what it was sent."""

    def __init__(self, answers: dict[str, Outcome], *, batch: int = 50) -> None:
        super().__init__(lambda message: self.answers.get(message.topic, DELIVERED), batch=batch)
        self.features = msgspec.structs.replace(self.features, addresses=True)
        self.answers = answers
        self.tries: Counter[int] = Counter()

    def get_address(self, message: Message) -> str | None:
        return f"topic {message.topic!r}"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.tries.update(message.id for message in messages)
        return await super().send(messages)

    def count(self, topic: str) -> int:
        """How many of a topic were acknowledged."""
        return len({message.id for message in self.taken if message.topic == topic})


class Ears(Telemetry):
    """Hears what operators are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_outage(self, destination: str, *, reason: str, is_reachable: bool) -> None:
        self.told.append(f"{destination} is down")

    def on_recovered(self, destination: str) -> None:
        self.told.append(f"{destination} is up")

    def on_address_blocked(self, destination: str, address: str, *, reason: str, is_missing: bool) -> None:
        self.told.append(f"{address} of {destination} is {'missing' if is_missing else 'blocked'}: {reason}")

    def on_address_unblocked(self, destination: str, address: str) -> None:
        self.told.append(f"{address} of {destination} is free")


def listening(scene: Scene, sink: Script, ears: Telemetry, **options: object) -> Relay:
    options = {"retry": quick_retry(), **options}
    settings = DestinationSettings(name="sink", **options)  # type: ignore[arg-type]
    return Relay(scene.open_store(), [Destination(lambda: sink, settings)], settings=scene.quick(), telemetry=ears)


@pytest.mark.parametrize("answer", [FULL, MISSING], ids=["full", "missing"])
async def test_a_blocked_address_fails_nothing_and_stops_nobody(scene: Scene, answer: Outcome) -> None:
    """Far more messages are blocked than fit into the window, and they come first."""
    sink = Topics({"sink.blocked": answer})
    await scene.put(*[(number, f"a-{number % 100}") for number in range(300)], topic="sink.blocked")
    await scene.put(*[(number, f"b-{number % 10}") for number in range(300, 400)], topic="sink.free")
    async with scene.relay(sink, window=10, batch=10):
        await until(lambda: sink.count("sink.free") == 100)
        assert sink.count("sink.blocked") == 0
        assert not await scene.find(State.FAILED)
        sink.answers.clear()
        await until(scene.is_drained)
    assert {(m.state, m.attempts) for m in await scene.find()} == {(State.DELIVERED, 0)}
    assert all(ids == sorted(ids) for ids in sink.by_key().values())


async def test_a_blocked_address_is_probed_and_not_stormed(scene: Scene) -> None:
    """Counted where messages arrive: a few before it was blocked, and then one at a time."""
    sink = Topics({"sink.blocked": FULL}, batch=5)
    await scene.put(*[(number, None) for number in range(200)], topic="sink.blocked")
    async with scene.relay(sink, window=5, batch=5):
        await until(lambda: len(sink.tries) >= 3)
        before = sum(sink.tries.values())
        await asyncio.sleep(4)
        assert sum(sink.tries.values()) - before <= 12
        await scene.put((1000, None), topic="sink.free")
        await until(lambda: sink.count("sink.free") == 1)
        sink.answers.clear()
        await until(scene.is_drained)


async def test_a_key_that_waits_for_its_address_keeps_its_order_over_all_addresses(scene: Scene) -> None:
    sink = Topics({"sink.blocked": FULL})
    await scene.put((1, "a"), topic="sink.free")
    await scene.put((2, "a"), topic="sink.blocked")
    await scene.put((3, "a"), topic="sink.free")
    await scene.put((4, "b"), topic="sink.free")
    async with scene.relay(sink):
        await until(lambda: 4 in sink.numbers() and sum(sink.tries.values()) >= 5)
        assert 3 not in sink.numbers()
        sink.answers.clear()
        await until(scene.is_drained)
    assert sink.numbers("a") == [1, 2, 3]


async def test_operators_are_told_once_that_an_address_is_missing_and_once_that_it_is_there(scene: Scene) -> None:
    sink, ears = Topics({"sink.later": MISSING}), Ears()
    await scene.put((1, "a"), (2, "b"), topic="sink.later")
    async with listening(scene, sink, ears):
        await until(lambda: max(sink.tries.values(), default=0) >= 3)
        sink.answers.clear()
        await until(scene.is_drained)
    address = "topic 'sink.later' of sink"
    assert ears.told == [f"{address} is missing: no queue is bound", f"{address} is free"]


async def test_missing_topology_is_rejected_at_once_if_that_is_wanted(scene: Scene) -> None:
    sink = Topics({"sink.never": MISSING, "sink.full": FULL})
    await scene.put((1, "a"), topic="sink.never")
    await scene.put((2, "b"), topic="sink.full")
    async with scene.relay(sink, missing_topology="reject"):
        await until(lambda: scene.find(State.FAILED))
        sink.answers["sink.full"] = DELIVERED
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert (failed.payload, failed.last_error, failed.attempts) == (b"1", "no queue is bound", 1)


async def test_a_refusal_with_a_time_concerns_its_message_alone_while_others_get_through(scene: Scene) -> None:
    """As an endpoint does that throttles one tenant: one URL, and so one address."""
    later = Outcome(delivered=False, error="429", not_now=True, retry_after=timedelta(seconds=2))
    throttled, refused_at = {1, 2, 3}, dict[int, list[float]]()
    loop = asyncio.get_running_loop()

    def answer(message: Message) -> Outcome:
        if int(message.payload) not in throttled:
            return DELIVERED
        refused_at.setdefault(message.id, []).append(loop.time())
        return later

    sink = Script(answer, batch=1)
    await scene.put(*[(number, f"key-{number}") for number in range(60)])
    async with scene.relay(sink):
        await until(lambda: len(set(sink.numbers())) == 57)
        number = 100
        while not all(len(times) >= 2 for times in refused_at.values()):
            number += 1
            await scene.put((number, "other"))
            await asyncio.sleep(0.05)
        throttled.clear()
        await until(scene.is_drained)
    assert {(m.state, m.attempts) for m in await scene.find()} == {(State.DELIVERED, 0)}
    assert all(second - first >= 1.9 for first, second, *_ in refused_at.values())


# --- a message that fails alone ---

REFUSED = Outcome(delivered=False, error="500 Internal Server Error", detail="the whole answer")


@pytest.mark.usefixtures("short_outages")
async def test_every_try_of_a_message_that_fails_alone_is_recorded(scene: Scene) -> None:
    sink = Topics({"sink": REFUSED})
    await scene.put((1, "a"))
    async with scene.relay(sink):
        await until(lambda: sum(sink.tries.values()) >= 3)
    (message,) = await scene.find()
    assert (message.state, message.attempts, message.last_error) == (State.PENDING, 0, "500 Internal Server Error")
    lines = await scene.store.journal(message_id=message.message_id)
    assert [(line.action, line.error, line.detail) for line in lines] == [
        ("tried", "500 Internal Server Error", "the whole answer")
    ] * sum(sink.tries.values())


@pytest.mark.usefixtures("short_outages")
async def test_a_ping_is_a_witness_against_a_message_that_fails_alone(scene: Scene) -> None:
    sink = Topics({"sink": REFUSED})
    sink.features = msgspec.structs.replace(sink.features, ping_is_witness=True)
    await scene.put((1, "a"), (2, "a"))
    sink.answer = lambda message: REFUSED if message.payload == b"1" else DELIVERED
    async with scene.relay(sink):
        await until(scene.is_drained)
    (failed,) = await scene.find(State.FAILED)
    assert (failed.payload, failed.attempts) == (b"1", 3)
    assert sink.numbers() == [2]


@pytest.mark.usefixtures("short_outages")
async def test_without_a_witness_it_is_given_up_after_so_long_if_that_is_wanted(scene: Scene) -> None:
    sink = Topics({"sink": REFUSED})
    await scene.put((1, "a"))
    async with scene.relay(sink, give_up_after=timedelta(seconds=1)):
        await until(lambda: scene.find(State.FAILED))
    (failed,) = await scene.find()
    assert (failed.attempts, failed.last_error) == (0, "given up after 1s: 500 Internal Server Error")
    assert sum(sink.tries.values()) >= 2


async def test_a_takeover_does_not_begin_the_time_anew(scene: Scene) -> None:
    sink = Topics({"sink": REFUSED})
    await scene.put((1, "a"))
    async with scene.relay(sink, give_up_after=timedelta(hours=1)):
        await until(scene.store.journal)
    # Two hours pass: to the next relay the last one might have been dead for so long.
    ago = "interval '2 hours'" if scene.url.startswith("postgresql") else "7200000000"
    await run_sql(scene, f"update pillarbox_journal set at = at - {ago}")
    async with scene.relay(sink, give_up_after=timedelta(hours=1)):
        await until(lambda: scene.find(State.FAILED))
    (failed,) = await scene.find()
    assert failed.last_error == "given up after 1h: 500 Internal Server Error"


# --- probes ---


class Rests(Ears):
    """Hears for how long a destination is left alone, and messages that failed alone."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.pauses: list[float] = []

    def on_tried(self, destination: str, tries: Sequence[tuple[Message, FailedOutcome]], *, why: str) -> None:
        self.pauses += [(failure.delay or timedelta(0)).total_seconds() for _, failure in tries]

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize("kind", ["deferred", "redriven", "retried"])
async def test_the_rests_grow_whatever_kind_of_message_waits(scene: Scene, kind: str) -> None:
    """One message that fails alone and is not fresh: it waits longer and longer, and the destination is not down."""
    sink, rests = Script(lambda _: REFUSED), Rests()
    await scene.put((1, "a"), delay=timedelta(milliseconds=10) if kind == "deferred" else None)
    if kind == "redriven":
        async with scene.relay(Script(lambda _: Outcome(delivered=False, error="no", rejected=True))):
            await until(lambda: scene.find(State.FAILED))
        await scene.store.redrive(Selection(states=[State.FAILED]), by="anna", limit=10)
    async with listening(scene, sink, rests):
        await until(lambda: len(rests.pauses) >= 4)
    assert all(pause >= 0.5 * 2**place for place, pause in enumerate(rests.pauses[:4]))
    assert (rests.told, rests.seconds) == ([], [])


@pytest.mark.usefixtures("short_outages")
async def test_a_message_that_always_fails_does_not_keep_the_others_from_being_the_probe(scene: Scene) -> None:
    """Every other one must have its turn, whatever was read first."""
    bad = set(range(6))
    sink = Topics({}, batch=1)
    sink.answer = lambda message: REFUSED if int(message.payload) in bad else DELIVERED
    await scene.put(*[(number, f"key-{number}") for number in range(6)])
    async with scene.relay(sink, retry=quick_retry(attempts=None)):
        await until(lambda: len(sink.tries) == 6 and min(sink.tries.values()) >= 3)
        bad &= {0}
        await until(lambda: sorted(set(sink.numbers())) == [1, 2, 3, 4, 5])
        bad.clear()
        await until(scene.is_drained)


@pytest.mark.usefixtures("short_outages")
async def test_several_messages_that_fail_one_after_the_other_are_an_outage(scene: Scene) -> None:
    sink, rests = Script(lambda _: REFUSED), Rests()
    await scene.put((1, "a"), (2, "b"), (3, "c"))
    async with listening(scene, sink, rests):
        await until(lambda: len(rests.seconds) >= 5)
        assert rests.told == ["sink is down"]
        sink.answer = lambda _: DELIVERED
        await until(scene.is_drained)
    assert rests.told == ["sink is down", "sink is up"]


@pytest.mark.usefixtures("short_outages")
async def test_a_single_message_that_fails_is_not_reported_as_an_outage(scene: Scene) -> None:
    sink, rests = Script(lambda message: REFUSED if message.payload == b"0" else DELIVERED), Rests()
    await scene.put((0, "bad"))
    async with listening(scene, sink, rests, retry=quick_retry(attempts=None)):
        for number in range(1, 30):
            await scene.put((number, "good"))
            await until(lambda: len(set(sink.numbers())) == number)  # noqa: B023
    assert rests.told == []


@pytest.mark.usefixtures("short_outages")
async def test_a_destination_that_rejects_everything_is_probed_and_goes_on_by_itself(scene: Scene) -> None:
    sink, rests = Script(lambda _: Outcome(delivered=False, error="422", rejected=True)), Rests()
    await scene.put(*[(number, None) for number in range(40)])
    async with listening(scene, sink, rests):
        await until(lambda: len(rests.seconds) >= 3)
        assert len(await scene.find(State.FAILED)) == 19
        assert not await scene.store.pauses()
        sink.answer = lambda _: DELIVERED
        await until(scene.is_drained)
    assert len(await scene.find(State.DELIVERED)) == 21
    assert rests.told == ["sink is down", "sink is up"]
