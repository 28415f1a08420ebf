"""Sender: interrupted sends, suspects, and the rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.clock import FrozenClock
from pillarbox.contracts.store import Claim, Fence, Tries
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message, Waits
from pillarbox.relay.destination import DestinationState
from pillarbox.relay.ordering import LONE_STRIKES
from pillarbox.relay.sender import RateLimit, Sender
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample_relay
from tests.support.lanes.destination_bench import LEASE, SINK, build_state, claim_next, grant, owned, put

# --- interrupted sends ---


class _Fickle(MemoryTransport):
    """Breaks the first time, when connecting or when sending, while another message is acknowledged; then refuses."""

    def __init__(self, state: DestinationState, *, opens: bool) -> None:
        super().__init__()
        self._state = state
        self._opens = opens
        self._is_broken = False

    async def open(self) -> None:
        await super().open()
        if not self._opens:
            self._break(mid_send=False)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._break(mid_send=True)
        return [Outcome(False, "503 Service Unavailable")]

    def _break(self, *, mid_send: bool) -> None:
        if not self._is_broken:
            self._is_broken = True
            self._state.policy.acknowledged += 1
            raise TransportUnavailable("the connection broke", mid_send=mid_send)


class _Place:
    """A relay with one message in the store, which is given back and claimed again as often as need be."""

    def __init__(self) -> None:
        clock = FrozenClock()
        self.store = MemoryStore(clock=clock)
        put(self.store, None)
        self.state = build_state(self.store, clock)

    async def claim(self, *, strikes: int = 0) -> Sequence[Message]:
        if not self.state.epochs:
            await grant(self.state, 0)
        self.state.ordering.reopen()
        return await claim_next(self.state, strikes=strikes)

    async def settle(self) -> list[int]:
        """Record what became of it. Answers what spent an attempt."""
        settlement, _ = self.state.ordering.next_settlement(10)
        await self.store.settle(self.state.fence([0]), settlement)
        self.state.ordering.confirm_settlement(settlement)
        return [trouble.message_id for trouble in settlement.failures if trouble.spends]


@pytest.mark.parametrize(("opens", "spent"), [(False, []), (True, [1])], ids=["no connection", "sent"])
async def test_alone_it_is_weighed_from_the_last_time_it_was_sent(opens: bool, spent: list[int]) -> None:
    place = _Place()
    transport = _Fickle(place.state, opens=opens)
    sender = Sender(place.state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    failures: list[int] = []
    for _ in range(2):
        await place.claim(strikes=2)
        await sender._send_suspects()
        failures += await place.settle()
    assert failures == spent


async def test_with_others_a_send_that_broke_makes_earlier_witnesses_too_old() -> None:
    """What was acknowledged before the connection broke does not show that the destination works now."""
    place, transport = _Place(), MemoryTransport()
    policy = place.state.policy
    sender = Sender(place.state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await transport.open()
    (message,) = await place.claim()
    policy.note_interrupted([message], began=0)
    policy.acknowledged += 1
    transport.cut_next()
    sender.send_ready()
    await sender.finish(within=60)
    assert await place.settle() == []
    place.state.breaker.close()
    transport.refuse_next()
    await place.claim()
    sender.send_ready()
    await sender.finish(within=60)
    assert await place.settle() == []


class _SlowJournal(MemoryStore):
    """Answers questions about earlier tries when it is allowed to."""

    def __init__(self, *, clock: FrozenClock) -> None:
        super().__init__(clock=clock)
        self.may_answer = asyncio.Event()

    async def count_tries(self, messages: Sequence[Message]) -> Mapping[int, Tries]:
        await self.may_answer.wait()
        return await super().count_tries(messages)


async def test_what_was_acknowledged_before_a_send_is_no_witness_though_the_journal_answers_later() -> None:
    """Beside the acknowledgement another message was refused, and the journal is asked for the earlier tries of it."""
    clock = FrozenClock()
    store = _SlowJournal(clock=clock)
    put(store, None, None, None)
    state, transport = build_state(store, clock), MemoryTransport()
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await transport.open()
    await grant(state, 0)
    await claim_next(state, limit=3)
    tried, taken, later = state.ordering.next_batch(3)
    answers = [Outcome(False, "503 Service Unavailable"), Outcome(True)]
    asking = asyncio.create_task(sender._take_outcomes([replace(tried, waits=Waits.RETRY), taken], answers, began=0))
    await asyncio.sleep(0)
    transport.hang()
    sending = asyncio.create_task(sender._send([later]))
    await asyncio.sleep(0)
    store.may_answer.set()
    await asking
    transport.refuse_next()
    transport.come_back()
    await sending
    settlement, _ = state.ordering.next_settlement(10)
    assert {failure.message_id: failure.spends for failure in settlement.failures} == {tried.id: True, later.id: False}


@pytest.mark.parametrize(("missing", "struck"), [(False, 1), (True, 0)])
async def test_a_connection_that_breaks_over_a_missing_address_makes_nobody_suspect(missing: bool, struck: int) -> None:
    """A broker closes the connection, or the channel, over an exchange that is not there."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None, None)
    state = build_state(store, clock)
    await grant(state, 0)
    state.ordering.reopen()
    messages = await claim_next(state, limit=2)
    transport = MemoryTransport()
    await transport.open()
    refused = Outcome(False, "no such exchange", not_now=missing, missing=missing)

    async def send(messages: Sequence[Message]) -> Sequence[Outcome]:
        return [refused, Outcome(False, "the connection broke", lost=True)]

    transport.send = send  # type: ignore[method-assign]
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    sender.send_ready()
    await sender.finish(within=60)
    assert [state.ordering.count_strikes(one.id) for one in messages] == [0, struck]


class _Addressed(MemoryTransport):
    """Answers with these outcomes in turn, and has one address."""

    def __init__(self, *outcomes: Outcome, batch: int = 500) -> None:
        super().__init__()
        self.features = replace(self.features, addresses=True, runs=False, batch=batch)
        self._outcomes = list(outcomes)

    def get_address(self, message: Message) -> str:
        return "/a"

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [self._outcomes.pop(0) for _ in messages]


async def _send_addressed(*outcomes: Outcome, batch: int = 500, is_blocked: bool = False) -> DestinationState:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, *[None] * len(outcomes))
    state = build_state(store, clock)
    state.policy.has_addresses = True
    await grant(state, 0)
    state.ordering.reopen()
    await claim_next(state, limit=len(outcomes))
    transport = _Addressed(*outcomes, batch=batch)
    if is_blocked:
        message_id, now = UUID(int=99), clock.monotonic()
        state.addresses.refuse("/a", now, message_id=message_id, reason="full", dice=0.0, is_missing=True)
        clock.advance(timedelta(seconds=1))
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    sender.send_ready()
    await sender.finish(within=60)
    return state


@pytest.mark.parametrize("missing", [True, False])
async def test_an_address_that_is_missing_is_blocked_by_the_first_refusal(missing: bool) -> None:
    state = await _send_addressed(Outcome(False, "it takes nothing", not_now=True, missing=missing))
    assert state.addresses.is_blocked("/a") is missing


async def test_a_blocked_address_is_left_alone_for_as_long_as_it_asks() -> None:
    state = await _send_addressed(
        Outcome(False, "429", not_now=True, missing=True, retry_after=timedelta(hours=1)), batch=1
    )
    now = state.clock.monotonic()
    assert [state.addresses.may_send("/a", now + minutes * 60) for minutes in (59, 61)] == [False, True]


async def test_a_delivery_ends_the_row_of_refusals_of_an_address_that_is_not_blocked_yet() -> None:
    full = Outcome(False, "full", not_now=True)
    state = await _send_addressed(full, full, Outcome(True), full, full, batch=1)
    assert not state.addresses.is_blocked("/a")


@pytest.mark.parametrize("is_blocked", [True, False])
async def test_that_a_blocked_address_gives_no_answer_is_no_outage_of_the_others(is_blocked: bool) -> None:
    """Its probe was expected to fail. Silence of an address that worked may be that of the whole destination."""
    state = await _send_addressed(Outcome(False, "no answer", unanswered=True, not_now=True), is_blocked=is_blocked)
    assert state.breaker.is_closed is is_blocked


async def test_a_message_waits_for_as_long_as_its_own_answer_asks_though_its_address_is_probed_before() -> None:
    missing = Outcome(False, "no queue", not_now=True, missing=True)
    state = await _send_addressed(missing, replace(missing, retry_after=timedelta(hours=1)))
    settlement, _ = state.ordering.next_settlement(10)
    first, second = (failure.delay or timedelta(0) for failure in settlement.failures)
    assert first < timedelta(minutes=5)
    assert second >= timedelta(hours=1)


# --- outages ---


async def test_sends_that_were_under_way_when_the_breaker_opened_do_not_open_it_again() -> None:
    """Each would double the time for which the destination is not tried."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None, None, None)
    state = build_state(store, clock)
    await grant(state, 0)
    state.ordering.reopen()
    await claim_next(state, limit=3)
    transport = MemoryTransport(batch=1)
    await transport.open()
    transport.hang()
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    sender.send_ready()
    await asyncio.sleep(0)
    transport.go_down()
    await sender.finish(within=60)
    assert state.breaker.opened == 1


class _Answers(MemoryTransport):
    """Answers one batch as it is told."""

    def __init__(self, *answers: Outcome | TransportUnavailable) -> None:
        super().__init__()
        self._answers = answers

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        outcomes = []
        for answer in self._answers:
            if isinstance(answer, TransportUnavailable):
                raise answer
            outcomes.append(answer)
        return outcomes


async def _send_batch(*answers: Outcome | TransportUnavailable) -> DestinationState:
    """Send as many messages as there are answers; return the state of the destination after them."""
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, *(None for _ in answers))
    state = build_state(store, clock)
    await grant(state, 0)
    await claim_next(state, limit=len(answers))
    transport = _Answers(*answers)
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    sender.send_ready()
    await sender.finish(within=60)
    return state


REFUSED = Outcome(False, "503 Service Unavailable")
REJECTED = Outcome(False, "400 Bad Request", rejected=True)


@pytest.mark.parametrize(
    "answer",
    [TransportUnavailable("429", retry_after=timedelta(minutes=7)), replace(REFUSED, retry_after=timedelta(minutes=7))],
    ids=["no connection", "no witness"],
)
async def test_a_destination_that_is_down_is_left_alone_for_as_long_as_it_asks(
    answer: Outcome | TransportUnavailable,
) -> None:
    state = await _send_batch(*[answer] * 3)
    assert state.breaker.wait(state.clock.monotonic()) == 420


async def test_three_refusals_without_a_delivery_open_the_breaker() -> None:
    assert (await _send_batch(REFUSED, REFUSED)).breaker.is_closed
    assert not (await _send_batch(REFUSED, REFUSED, REFUSED)).breaker.is_closed
    assert not (await _send_batch(*[REJECTED] * 20)).breaker.is_closed


async def test_refusals_beside_a_delivery_do_not_open_the_breaker() -> None:
    assert (await _send_batch(Outcome(True), REFUSED)).breaker.is_closed
    assert (await _send_batch(Outcome(True), *[REJECTED] * 30)).breaker.is_closed


# --- silence, and the end of the lease ---


async def test_what_is_not_answered_in_time_is_not_delivered() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None, None)
    state = build_state(store, clock, send_timeout=timedelta(milliseconds=50))
    transport = MemoryTransport()
    await transport.open()
    transport.hang()
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await grant(state, 0)
    outcomes = await sender._call_transport(transport, await claim_next(state, limit=2))
    assert [(one.delivered, one.rejected, one.unanswered) for one in outcomes] == [(False, False, True)] * 2


async def test_nothing_is_sent_when_the_lease_is_over() -> None:
    clock = FrozenClock()
    store = MemoryStore(clock=clock)
    put(store, None)
    state = build_state(store, clock)
    transport = MemoryTransport()
    await transport.open()
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await grant(state, 0)
    await claim_next(state)
    clock.advance(LEASE)
    sender.send_ready()
    await sender.finish(within=60)
    assert transport.received == []


@pytest.mark.parametrize("has_witness", [False, True])
async def test_a_broken_connection_counts_against_a_suspect_only_if_the_destination_works(has_witness: bool) -> None:
    place = _Place()
    transport = MemoryTransport()
    sender = Sender(place.state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    (suspect,) = await place.claim(strikes=2)
    place.state.policy.note_interrupted([suspect], began=0)
    place.state.policy.acknowledged += has_witness
    transport.cut_next()
    await sender._send_suspects()
    assert place.state.ordering.has_strikes is has_witness


# --- alone ---


class _Deadly(MemoryTransport):
    """Notes the keys that come. With the deadly one its process dies."""

    def __init__(self, deadly: str) -> None:
        super().__init__()
        self._deadly = deadly
        self.keys: list[str | None] = []

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.keys += [message.key for message in messages]
        if self._deadly in self.keys:
            raise asyncio.CancelledError
        return await super().send(messages)


@pytest.mark.parametrize(("owner", "sent", "strikes"), [(1, "b", 0), (2, "cab", 1), (3, "ab", 1)])
async def test_each_owner_begins_with_another_one_and_only_a_death_after_an_answer_counts(
    owner: int, sent: str, strikes: int
) -> None:
    """Message b kills. The owner that begins with it has heard no answer, so its death proves nothing."""
    clock, transport = FrozenClock(), _Deadly("b")
    store = MemoryStore(clock=clock)
    put(store, "a", "b", "c")
    for _ in range(1, owner):
        await owned(build_state(store, clock), 0)
    state = build_state(store, clock)
    await grant(state, 0)
    await claim_next(state, strikes=LONE_STRIKES, limit=3)
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    sender.send_ready()
    await sender.finish(within=60)
    assert transport.keys == []  # for a lease it waits for others to be acknowledged
    clock.advance(LEASE)
    state.lease.extend(clock.monotonic())
    sender.send_ready()
    await sender.finish(within=60)
    relay = sample_relay(destination=SINK)
    await store.register(relay, lease=LEASE)
    _, recovered = await store.take(relay.relay_id, SINK, partitions=[0], lease=LEASE, claim_number=100)
    assert transport.keys == list(sent)
    of_b = [one.claim.strikes for one in recovered for message in one.messages if message.key == "b"]
    assert of_b == [LONE_STRIKES + strikes]


# --- lease ---


class _SlowToOpen(MemoryTransport):
    """Connecting takes as long as it is told."""

    def __init__(self, clock: FrozenClock, takes: timedelta) -> None:
        super().__init__()
        self._clock = clock
        self._takes = takes
        self.sent: list[int] = []

    async def open(self) -> None:
        await super().open()
        self._clock.advance(self._takes)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self.sent += [message.id for message in messages]
        return await super().send(messages)


async def _sent_alone(takes: timedelta) -> tuple[list[int], list[int]]:
    """What went out, and what was given back, of one message with two strikes."""
    clock = FrozenClock()
    store, transport = MemoryStore(clock=clock), _SlowToOpen(clock, takes)
    put(store, None)
    state = build_state(store, clock)
    await grant(state, 0)
    await claim_next(state, strikes=2)
    sender = Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)
    await sender._send_suspects()
    settlement, _ = state.ordering.next_settlement(10)
    return transport.sent, list(settlement.returned)


async def test_it_is_not_even_claimed_again_when_the_lease_is_over() -> None:
    state, sender, transport = await _ready(strikes=2)
    await sender._send_suspects()
    assert (transport.received, state.ordering.has_suspects) == ([], True)


async def test_what_was_claimed_is_not_sent_when_the_lease_is_over() -> None:
    """However long the process stood still between the two."""
    state, sender, transport = await _ready(strikes=0)
    sender.send_ready()
    await sender.finish(within=60)
    assert (transport.received, state.ordering.has_ready) == ([], True)


async def _ready(*, strikes: int) -> tuple[DestinationState, Sender, MemoryTransport]:
    """A message that is claimed and may go, and a lease that has ended since."""
    clock = FrozenClock()
    store, transport = MemoryStore(clock=clock), MemoryTransport()
    put(store, None)
    state = build_state(store, clock)
    await grant(state, 0)
    await claim_next(state, strikes=strikes)
    clock.advance(LEASE)
    await transport.open()
    return state, Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5), transport


async def test_it_is_sent_when_the_connection_came_in_time() -> None:
    assert await _sent_alone(timedelta(seconds=1)) == ([1], [])


async def test_it_goes_back_when_the_lease_ended_before_the_connection_was_there() -> None:
    assert await _sent_alone(LEASE) == ([], [1])


# --- groups ---


class _LosesLane(MemoryStore):
    """Another relay takes the second lane while a group is being claimed."""

    state: DestinationState | None = None

    async def claim(self, fence: Fence, claim: Claim, *, park: Mapping[int, UUID] = {}) -> Mapping[int, int]:
        revisions = await super().claim(fence, claim, park=park)
        if self.state is not None:
            state, self.state = self.state, None
            state.drop_lanes([1])
        return revisions


async def test_a_group_that_loses_a_lane_goes_back_and_leaves_no_claim_behind() -> None:
    clock = FrozenClock()
    store, transport = _LosesLane(clock=clock), MemoryTransport()
    put(store, "a")
    put(store, "b", partition=1)
    state = build_state(store, clock)
    await grant(state, 0, 1)
    await claim_next(state, strikes=2, limit=2)
    state.policy.acknowledged = 1
    store.state = state
    await Sender(state, transport=transport, open_transport=lambda: transport, lone_cap=5)._send_suspects()
    settlement, lanes = state.ordering.next_settlement(10)
    await store.settle(state.fence(lanes), settlement)
    assert (transport.received, list(settlement.returned), lanes) == ([], [1], {0})
    assert await store.claims(older_than=timedelta(0)) == []


# --- rate limit ---


def sent_in(rate: RateLimit, *, seconds: int, every: float = 0.01) -> int:
    """How many go in that time when there is always more to send."""
    sent = 0
    for step in range(int(seconds / every) + 1):
        allowed = rate.allow(step * every, 1_000)
        rate.spend(allowed)
        sent += allowed
    return sent


def test_without_a_limit_everything_goes() -> None:
    rate = RateLimit(None)
    rate.spend(1_000_000)
    assert rate.allow(0.0, 500) == 500
    assert rate.wait() == 0.0


@pytest.mark.parametrize(("per_second", "seconds", "most"), [(10.0, 10, 110), (0.5, 20, 11), (1_000.0, 3, 4_000)])
def test_no_more_than_a_burst_and_the_rate(per_second: float, seconds: int, most: int) -> None:
    sent = sent_in(RateLimit(per_second), seconds=seconds)
    assert most - 1 <= sent <= most


def test_a_pause_saves_up_one_second_and_no_more() -> None:
    rate = RateLimit(10.0)
    rate.spend(rate.allow(0.0, 100))
    assert rate.allow(3_600.0, 100) == 10


def test_it_says_how_long_to_wait_for_one_more() -> None:
    rate = RateLimit(4.0)
    assert rate.allow(0.0, 4) == 4
    rate.spend(4)
    assert rate.allow(0.0, 1) == 0
    assert rate.wait() == 0.25
    assert rate.allow(0.25, 1) == 1


def test_whoever_waited_as_long_as_told_may_go() -> None:
    """Whatever rounding does: a wait that is too short for the clock to move would be repeated for ever."""
    for seed in range(1_000):
        rate = RateLimit(0.7 + seed / 37)
        now = 9_000.0 + seed / 7
        rate.spend(rate.allow(now, 1_000))
        now += seed / 1_000
        rate.allow(now, 1)
        assert rate.allow(now + rate.wait(), 1) == 1
        assert rate.wait() == 0.0
