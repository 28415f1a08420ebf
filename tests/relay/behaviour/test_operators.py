"""What people do to messages while a relay delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from pillarbox.contracts.store import Claim, Fence, RelayInfo, Selection, Store
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, State, Waits
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.retry import RetryPolicy
from pillarbox.telemetry import Telemetry
from tests.support.mariadb_server import connected
from tests.support.relay_behaviour.locks import count_waits
from tests.support.relay_behaviour.scene import DELIVERED, LEASE, Scene, Script, as_told, until
from tests.support.relay_behaviour.wire import Wire

REJECTED = Outcome(delivered=False, error="never as told", rejected=True)
REFUSED = Outcome(delivered=False, error="not now")


async def ids_of(scene: Scene, *numbers: int) -> list[int]:
    by_number = {int(message.payload): message.id for message in await scene.find()}
    return [by_number[number] for number in numbers]


async def test_messages_redriven_behind_one_that_waits_do_not_starve_other_keys(scene: Scene) -> None:
    """Thirty due messages of one key stand behind its head, more than a read takes; another key's retry must go."""
    many = range(1, 31)
    sink = Script(lambda message: REJECTED if message.key == "a" and message.id % 15 else DELIVERED)
    await scene.put(*[(number, "a") for number in many])
    later = RetryPolicy(schedule=[timedelta(minutes=5)], jitter=0)
    async with scene.relay(sink, batch=5, retry=later):
        await until(scene.is_drained)
        sink.answer = lambda message: REFUSED if message.key == "a" else DELIVERED
        await scene.store.redrive(Selection(states=[State.FAILED]), by="anna", limit=100)
        await until(lambda: waits_alone(scene, sink))
        await scene.put((100, "b"), delay=timedelta(milliseconds=500))
        await until(lambda: 100 in sink.numbers("b"))


async def waits_alone(scene: Scene, sink: Script) -> bool:
    """Whether the head of the redriven ones was tried with a witness, and waits for minutes."""
    await scene.put((len(sink.taken) + 1_000, "witness"))
    return any(message.attempts for message in await scene.find(State.PENDING))


async def test_a_waiting_message_that_is_discarded_does_not_stop_the_next_one(scene: Scene) -> None:
    """Three wait for later times that a person chose; the second is discarded before its time."""
    sink = Script()
    await scene.put((1, "a"), (2, "a"), (3, "a"))
    now = await scene.store.now()
    for number, seconds in ((1, 1), (2, 60), (3, 2)):
        which = Selection(ids=await ids_of(scene, number))
        await scene.store.defer(which, until=now + timedelta(seconds=seconds), by="anna", limit=1)
    async with scene.relay(sink):
        await until(lambda: sink.numbers() == [1])
        await scene.store.discard(Selection(ids=await ids_of(scene, 2)), by="anna", reason="wrong", limit=1)
        await until(lambda: sink.numbers() == [1, 3])
        await until(scene.is_drained)


async def test_what_is_deferred_while_the_destination_is_paused_blocks_its_key_when_it_goes_on(scene: Scene) -> None:
    sink, ears = Script(), Ears()
    destination = Destination(lambda: sink, DestinationSettings(name="sink"))
    async with Relay(scene.open_store(), [destination], settings=scene.quick(), telemetry=ears):
        await scene.put((0, "a"))
        await until(lambda: sink.numbers() == [0])
        await scene.store.pause("sink", by="anna", reason="to look at message 1")
        await until(lambda: ears.paused_for)
        await scene.put((1, "a"), (2, "a"), (3, "b"))
        which, soon = await ids_of(scene, 1), await scene.store.now() + timedelta(seconds=2)
        await scene.store.defer(Selection(ids=which), until=soon, by="anna", limit=1)
        await scene.store.resume("sink", by="anna")
        await until(lambda: sink.numbers("b") == [3])
        await until(scene.is_drained)
    assert sink.numbers("a") == [0, 1, 2]


class Gate(Wire):
    """Stops claims on their way to the store."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_open = asyncio.Event()
        self.stopped = 0

    def _over_the_line(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        passed = super()._over_the_line(name, call)

        async def called(*args: Any, **options: Any) -> Any:
            if name == "claim" and not self.is_open.is_set():
                self.stopped += 1
                await self.is_open.wait()
            return await passed(*args, **options)

        return called


@pytest.mark.parametrize("action", ["discard", "defer"])
async def test_what_an_operator_changes_before_its_claim_is_not_sent(scene: Scene, action: str) -> None:
    """The relay has read it. It is paused, changed and resumed so quickly that the relay sees nothing of the pause."""
    sink, gate = Script(), Gate(scene.open_store())
    destination = Destination(lambda: sink, DestinationSettings(name="sink"))
    settings = scene.quick(watch_interval=timedelta(minutes=1))
    await scene.put((1, "a"), (2, "a"), (3, "b"))
    async with Relay(gate.store, [destination], settings=settings):
        await until(lambda: gate.stopped)
        which = Selection(ids=await ids_of(scene, 1))
        await scene.store.pause("sink", by="anna", reason="to look at message 1")
        if action == "discard":
            assert (await scene.store.discard(which, by="anna", reason="wrong", limit=1)).count == 1
        else:
            later = await scene.store.now() + timedelta(hours=1)
            assert (await scene.store.defer(which, until=later, by="anna", limit=1)).count == 1
        assert await scene.store.resume("sink", by="anna")
        gate.is_open.set()
        await until(lambda: sink.numbers("b") == [3])
        if action == "discard":
            await until(lambda: sink.numbers("a") == [2])
            await until(scene.is_drained)
    assert 1 not in sink.numbers()
    assert sink.numbers("a") == ([2] if action == "discard" else [])


async def test_an_operators_change_waits_for_a_claim_that_is_not_committed(scene: Scene) -> None:
    """And then leaves its message alone: "discarded" is said of no message that a relay sends."""
    if scene.url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    await scene.put((1, "a"))
    (message,) = await scene.find()
    relay_id = await register(scene)
    (lane,), _ = await scene.store.take(relay_id, "sink", partitions=[message.partition], lease=LEASE, claim_number=1)
    with claiming(scene, relay_id, message) as commit:
        discard = asyncio.create_task(scene.store.discard(Selection(), by="anna", reason="wrong", limit=1))
        await until(lambda: discard.done() or count_waits(scene))
        commit()
        assert (await discard).count == 0
    assert [one.state for one in await scene.find()] == [State.SENDING]
    assert await scene.store.claim(Fence(relay_id, "sink", {message.partition: lane.epoch}), Claim(2, [])) != {
        message.partition: lane.revision
    }


async def register(scene: Scene) -> UUID:
    relay = RelayInfo(
        relay_id=uuid4(), service="s", host="h", pid=1, version="v", destinations=["sink"], reachable=["sink"]
    )
    await scene.store.register(relay, lease=LEASE)
    return relay.relay_id


@contextmanager
def claiming(scene: Scene, relay_id: UUID, message: Message) -> Iterator[Callable[[], None]]:
    """Write a claim as a relay does, and commit it when told."""
    lane, claim = scene.names.table("lane", quote=""), scene.names.table("claim", quote="")
    is_mysql = scene.url.startswith("mysql")
    with closing(connected(scene.url) if is_mysql else psycopg.connect(scene.url)) as connection:
        lock = "lock in share mode" if is_mysql else "for share"
        ids = f"[{message.id}]" if is_mysql else f"{{{message.id}}}"
        at = "0" if is_mysql else "now()"
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"select * from {lane} {lock}")
            cursor.execute(
                f"insert into {claim} (relay_id, number, message_ids, claimed_at) "
                f"values ('{relay_id}', 1, '{ids}', {at})"
            )
            yield connection.commit


class Ears(Telemetry):
    """Hears of pauses."""

    def __init__(self) -> None:
        self.paused_for: list[str] = []

    def on_paused(self, destination: str, *, reason: str) -> None:
        self.paused_for.append(reason)


async def test_a_delivered_message_that_is_replayed_arrives_again(scene: Scene) -> None:
    sink = Script()
    async with scene.relay(sink):
        await scene.put((1, "a"), (2, "a"))
        await until(scene.is_drained)
        await scene.store.replay(Selection(ids=await ids_of(scene, 1)), by="anna", limit=1)
        await until(lambda: sink.numbers() == [1, 2, 1])
    assert len({message.message_id for message in sink.taken}) == 2


async def test_what_is_in_a_relays_hands_is_not_discarded_under_it(scene: Scene) -> None:
    sink = Script()
    sink.gate.clear()
    await scene.put((1, "a"))
    async with scene.relay(sink):
        await until(lambda: sink.under_way)
        moved = await scene.store.discard(Selection(key="a"), by="anna", reason="wrong", limit=9)
        assert moved.count == 0
        sink.gate.set()
        await until(scene.is_drained)
    assert [message.state for message in await scene.find()] == [State.DELIVERED]


async def test_a_held_message_that_is_redriven_goes_before_those_behind_it(scene: Scene) -> None:
    sink = Script(as_told({1: REJECTED}))
    async with scene.relay(sink, after_failure="hold"):
        await scene.put((1, "a"), (2, "a"), (3, "a"))
        await until(lambda: is_held(scene))
        sink.answer = lambda _: DELIVERED
        await scene.store.redrive(Selection(states=[State.FAILED]), by="anna", limit=1)
        await until(scene.is_drained)
    assert sink.numbers() == [1, 2, 3]


async def is_held(scene: Scene) -> bool:
    return [message.waits for message in await scene.find(State.FAILED)] == [Waits.HELD]
