"""Sender: batches with runs of a key, and what their answers lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Settlement
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message, Waits
from pillarbox.relay.sender import Sender
from pillarbox.stores.memory import MemoryStore
from pillarbox.telemetry import Telemetry
from tests.support.lanes.destination_bench import build_state, claim_next, grant, put
from tests.support.lanes.lane_bench import ids

OK = Outcome(True)
REFUSED = Outcome(False, "refused")
REJECTED = Outcome(False, "rejected", rejected=True)
LOST = Outcome(False, "the connection broke", lost=True)
UNSENT = Outcome(False, "unsent", unsent=True)
FULL = Outcome(False, "the queue is full", not_now=True)
BROKEN = TransportUnavailable("the connection broke", mid_send=True)


class _Script:
    """Answers as it is told, and acknowledges everything else."""

    def __init__(self, *, runs: bool = True, slow: bool = False, one_key: bool = False, batch: int = 500) -> None:
        self.features = TransportFeatures(
            name="script", runs=runs, slow_runs=slow, one_key=one_key, batch=batch, addresses=True
        )
        self.sends: list[list[int]] = []
        self.next: list[Sequence[Outcome] | TransportUnavailable] = []
        self.on_send: Callable[[], object] = lambda: None

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    def get_address(self, message: Message) -> str | None:
        return message.topic

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.sends.append(ids(messages))
        self.on_send()
        answer = self.next.pop(0) if self.next else [OK] * len(messages)
        if isinstance(answer, TransportUnavailable):
            raise answer
        return answer


class _Wrapper:
    """Passes on everything but the addresses."""

    def __init__(self, script: _Script) -> None:
        self.features, self.send = script.features, script.send
        self.open, self.close, self.ping = script.open, script.close, script.ping


class _Telemetry(Telemetry):
    def __init__(self) -> None:
        self.broken: list[list[int]] = []
        self.tried: list[int] = []

    def on_run_broken(self, destination: str, messages: Sequence[Message]) -> None:
        self.broken.append(ids(messages))

    def on_failed(self, destination: str, message: Message, failure: object) -> None:
        self.tried.append(message.id)

    def on_tried(self, destination: str, tries: Sequence[tuple[Message, object]], *, why: str) -> None:
        self.tried += [message.id for message, _ in tries]


class _Bench:
    """A relay with messages of these keys in hand, of which an acknowledgement was heard before."""

    def __init__(self, *keys: str | None, transport: _Script | None = None, **options: object) -> None:
        self.clock = FrozenClock()
        self.store = MemoryStore(clock=self.clock)
        put(self.store, *keys)
        self.state = build_state(self.store, self.clock, **options)  # type: ignore[arg-type]
        self.state.telemetry = self.telemetry = _Telemetry()
        self.transport = transport or _Script()
        self.sender = Sender(
            self.state, transport=self.transport, open_transport=lambda: self.transport, lone_cap=5
        )  # fmt: skip
        self._keys = len(keys)

    async def claim(self) -> None:
        await grant(self.state, 0)
        await claim_next(self.state, limit=self._keys)

    async def send(self, *answers: Sequence[Outcome] | TransportUnavailable) -> list[list[int]]:
        """Send what is ready, and return what each send had."""
        self.transport.sends, self.transport.next = [], list(answers)
        self.sender.send_ready()
        await self.sender.finish(within=60)
        return self.transport.sends

    async def settle(self) -> Settlement:
        settlement, lanes = self.state.ordering.next_settlement(100)
        await self.state.settle(settlement, lanes)
        self.state.ordering.confirm_settlement(settlement)
        return settlement


async def claimed(*keys: str | None, transport: _Script | None = None, **options: object) -> _Bench:
    bench = _Bench(*keys, transport=transport, **options)
    await bench.claim()
    return bench


def waits(settlement: Settlement) -> list[tuple[int, Waits | None, int]]:
    return [(one.message_id, one.waits, one.attempts) for one in settlement.failures]


# --- what goes ---


async def test_a_transport_with_runs_gets_all_of_a_key_at_once() -> None:
    bench = await claimed("a", "a", "b", "a")
    assert await bench.send() == [[1, 2, 4, 3]]
    assert list((await bench.settle()).delivered) == [1, 2, 4, 3]


async def test_a_transport_without_runs_gets_one_of_a_key_at_a_time() -> None:
    bench = await claimed("a", "a", "b", transport=_Script(runs=False))
    assert await bench.send() == [[1, 3]]
    assert await bench.send() == [[2]]


async def test_with_many_keys_only_a_long_queue_is_sent_in_runs_that_are_slow() -> None:
    others = [f"key-{number}" for number in range(99)]
    short = await claimed(*others, *others[:5], *["hot"] * 16, transport=_Script(slow=True))
    assert [len(one) for one in await short.send()] == [100], "one of each key"
    long = await claimed(*others, *others[:5], *["hot"] * 17, transport=_Script(slow=True))
    assert [len(one) for one in await long.send()] == [116], "and all of the hot one"


async def test_what_is_being_sent_counts_among_the_keys_where_runs_are_slow() -> None:
    keys = [*(f"key-{number}" for number in range(99)), "a", "a", "b", "b"]
    slow = await claimed(*keys, transport=_Script(batch=99, slow=True))
    assert [len(one) for one in await slow.send()] == [99, 2], "no run of a or b beside the others"
    fast = await claimed(*keys, transport=_Script(batch=99))
    assert [len(one) for one in await fast.send()] == [99, 4]


async def test_with_many_keys_there_are_runs_only_to_a_broker_that_is_far_away() -> None:
    """The next of each key follow soon enough, unless a round trip takes long."""
    keys = [f"key-{number}" for number in range(100)]
    near = await claimed(*keys, *keys)
    assert [len(one) for one in await near.send()] == [100]
    assert [len(one) for one in await near.send()] == [100]
    far = await claimed(*keys, *keys, *keys)
    far.transport.on_send = lambda: far.clock.advance(timedelta(seconds=1))
    assert [len(one) for one in await far.send()] == [100]
    assert [len(one) for one in await far.send()] == [200]


async def test_a_transport_that_hides_its_addresses_gets_no_runs() -> None:
    bench = await claimed("a", "a")
    wrapped = _Wrapper(bench.transport)
    bench.sender = Sender(bench.state, transport=wrapped, open_transport=lambda: wrapped, lone_cap=5)
    assert await bench.send() == [[1]]


async def test_a_transport_for_one_key_gets_each_key_in_a_send_of_its_own() -> None:
    bench = await claimed("a", "b", "a", None, transport=_Script(one_key=True))
    assert await bench.send() == [[1, 3], [2], [4]]


async def test_a_run_is_no_longer_than_a_batch_and_the_rate() -> None:
    bench = await claimed("a", "a", "a", "a", transport=_Script(batch=3))
    assert await bench.send() == [[1, 2, 3]]
    bench = await claimed("a", "a", "a", "a", rate=2.0)
    assert await bench.send() == [[1, 2]]
    assert await bench.send() == []


async def test_to_a_blocked_address_goes_no_run() -> None:
    bench = await claimed("a", "a", "b", "b")
    addresses, address = bench.state.addresses, "t"
    for message_id in (7, 8, 9):
        addresses.refuse(address, bench.clock.monotonic(), message_id=UUID(int=message_id), reason="full", dice=0.5)
    bench.clock.advance(timedelta(seconds=5))
    assert await bench.send([FULL]) == [[1]]  # its probe; the others wait
    assert sorted(waits(await bench.settle())) == [
        (1, Waits.RETRY, 0), (2, Waits.PARKED, 0), (3, Waits.RETRY, 0), (4, Waits.PARKED, 0),
    ]  # fmt: skip


async def test_a_probe_is_no_run() -> None:
    bench = await claimed("a", "a")
    bench.state.open_breaker("it was down")
    bench.clock.advance(timedelta(minutes=2))
    bench.state.lease.extend(bench.clock.monotonic())
    assert bench.state.breaker.half_open(bench.clock.monotonic())
    bench.state.may_probe = True
    assert await bench.send() == [[1]]


# --- what comes back ---


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (REFUSED, (2, Waits.RETRY, 1)),
        (REJECTED, (2, None, 1)),
        (FULL, (2, Waits.RETRY, 0)),
    ],
    ids=["refused", "rejected", "not now"],
)
@pytest.mark.parametrize("later", [UNSENT, REFUSED, FULL], ids=["unsent", "refused too", "not now"])
async def test_only_the_first_that_is_not_acknowledged_was_tried(
    answer: Outcome, expected: tuple[int, Waits | None, int], later: Outcome
) -> None:
    bench = await claimed("a", "a", "a", "a", "b")
    await bench.send([OK, answer, later, later, OK])
    assert bench.telemetry.tried == [2]
    settlement = await bench.settle()
    assert list(settlement.delivered) == [1, 5]
    untried = [] if expected[1] is None else [(3, Waits.PARKED, 0), (4, Waits.PARKED, 0)]
    assert sorted(waits(settlement)) == [expected, *untried]
    assert bench.state.policy.acknowledged == 2


async def test_after_a_rejection_the_rest_goes_when_that_is_recorded_one_by_one() -> None:
    bench = await claimed("a", "a", "a", "a")
    await bench.send([OK, REJECTED, UNSENT, UNSENT])
    assert await bench.send() == []
    await bench.settle()
    assert await bench.send() == [[3]]
    assert await bench.send() == [[4]]


async def test_no_answer_in_time_is_one_try_of_the_first() -> None:
    bench = await claimed("a", "a", "a")
    await bench.send([Outcome(False, "no answer", unanswered=True)] * 3)
    assert bench.telemetry.tried == [1]


async def test_a_run_that_a_transport_ends_early_goes_on_at_once() -> None:
    bench = await claimed("a", "a", "a")
    assert await bench.send([OK, UNSENT, UNSENT]) == [[1, 2, 3]]
    assert await bench.send() == [[2, 3]]
    assert bench.telemetry.tried == []


async def test_what_has_no_key_and_is_yet_unsent_has_failed() -> None:
    bench = await claimed(None, None)
    await bench.send([OK, UNSENT])
    assert bench.telemetry.tried == [2]
    assert [one.message_id for one in (await bench.settle()).failures] == [2]


async def test_what_is_first_and_yet_unsent_has_failed() -> None:
    """A transport that never sends anything must not be asked for ever."""
    bench = await claimed("a", "a")
    await bench.send([UNSENT, UNSENT])
    assert bench.telemetry.tried == [1]
    assert await bench.send() == []


@pytest.mark.parametrize(
    "answer", [BROKEN, [LOST, LOST, LOST], [LOST, UNSENT, UNSENT]], ids=["raised", "lost", "lost and unsent"]
)
async def test_a_connection_that_breaks_under_a_run_strikes_all_of_it_and_returns_it(
    answer: Sequence[Outcome] | TransportUnavailable,
) -> None:
    bench = await claimed("a", "a", "a")
    await bench.send(answer)
    assert [bench.state.ordering.count_strikes(one) for one in (1, 2, 3)] == [1, 1, 1]
    assert list((await bench.settle()).returned) == [1, 2, 3]
    assert bench.telemetry.tried == []
    assert not bench.state.breaker.is_closed
    # Only the first was surely tried, so only for that one an older acknowledgement is a witness.
    bench.state.policy.acknowledged += 1
    first, second = (msgspec.structs.replace(_message(bench), id=number) for number in (1, 2))
    began = bench.state.policy.acknowledged
    assert bench.state.policy.has_witness(first, began=began)
    assert not bench.state.policy.has_witness(second, began=began)


def _message(bench: _Bench) -> Message:
    return next(iter(bench.store.data.messages()))


async def test_a_connection_that_breaks_in_the_middle_of_a_run_leaves_what_was_answered() -> None:
    bench = await claimed("a", "a", "a")
    await bench.send([OK, LOST, LOST])
    settlement = await bench.settle()
    assert (list(settlement.delivered), list(settlement.returned)) == ([1], [2, 3])
    assert bench.state.ordering.has_strikes
    assert bench.state.breaker.is_closed


async def test_what_is_lost_behind_a_refused_message_was_not_tried() -> None:
    bench = await claimed("a", "a", "a")
    await bench.send([OK, REFUSED, LOST])
    assert sorted(waits(await bench.settle())) == [(2, Waits.RETRY, 1), (3, Waits.PARKED, 0)]
    assert not bench.state.ordering.has_strikes
    assert [id_ for id_, _ in bench.state.policy._baselines] == [2]


# --- a transport that breaks its promise ---


@pytest.mark.parametrize("answer", [REFUSED, REJECTED, LOST, UNSENT], ids=["refused", "rejected", "lost", "unsent"])
async def test_what_is_acknowledged_past_a_failure_does_not_count_and_runs_end(answer: Outcome) -> None:
    bench = await claimed("a", "a", "a", "b", "b")
    await bench.send([OK, answer, OK, OK, OK])
    assert bench.telemetry.broken == [[3]]
    settlement = await bench.settle()
    assert list(settlement.delivered) == [1, 4, 5]
    assert 3 in bench.store.data.open.ids()
    fresh = await claimed("c", "c")
    bench.sender._state = fresh.state
    assert await bench.send() == [[1]]


# --- the lane is lost while a run is under way ---


async def test_a_run_whose_lane_is_lost_meanwhile_leaves_no_trace() -> None:
    bench = await claimed("a", "a", "a")
    original = bench.transport.send

    async def lose(messages: Sequence[Message]) -> Sequence[Outcome]:
        bench.state.drop_lanes([0])
        return await original(messages)

    bench.transport.send = lose  # type: ignore[method-assign]
    await bench.send([OK, REFUSED, UNSENT])
    assert not bench.state.ordering.has_outcomes
    assert await bench.send() == []


async def test_a_run_is_not_begun_when_the_lease_is_over() -> None:
    bench = await claimed("a", "a")
    bench.clock.advance(timedelta(seconds=11))
    assert await bench.send() == []
