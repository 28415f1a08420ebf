"""Drives ordering cores at random over one table: every store call and every send takes a while and may go wrong.

Each activity of a relay is a generator that stands still where the real one awaits. The world lets a random one go
on, breaks connections, kills relays, moves lanes, and checks the order at the moment a message is sent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Iterable
from datetime import timedelta
from itertools import count

from pillarbox.contracts.store import Claim, Cursor, DueMark, FailedOutcome, Settlement
from pillarbox.errors import Fenced
from pillarbox.message import Message, State, Waits
from pillarbox.relay.ordering import LONE_STRIKES, LaneOrdering, ReadDecision
from tests.support.lanes.lane_table import LANES, Epochs, Table

__all__ = ["World"]

Steps = Generator[None, None, None]
_LONE_CAP = 3
_STORMY = 10_000
"""Steps after which nothing more goes wrong."""
_PATIENCE = 40_000
"""Steps after that in which everything must be closed."""


class Relay:
    """One relay: an ordering, and the calls that reader, sender and settler make around it."""

    def __init__(self, name: str, world: World) -> None:
        dice = world.dice
        self.name = name
        self.world = world
        self.table = world.table
        self.ordering = LaneOrdering(
            window=dice.choice([3, 10, 40]), key_share=dice.choice([1, 2, 5]), skips_keys=dice.random() < 0.7
        )
        self.has_runs = world.has_runs
        self.epochs: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.cursor: Cursor | None = None
        self.due_mark: DueMark | None = None
        self.is_zombie = False
        """Its lease ran out: it sends nothing more, but answers and settles of before may still come."""
        self.busy: dict[str, Steps] = {}
        """What it is doing, by kind: of each kind one at a time."""
        self.sends: list[Steps] = []
        self.claims: list[Steps] = []
        self._numbers = count(1)

    # --- what it can begin ---

    def begin(self) -> None:
        """Start something, if that kind of thing is not under way."""
        kind = self.world.dice.choice(["read", "read", "settle", "settle", "send", "send", "lone", "hand over"])
        if kind == "send":
            self._send()
        elif kind not in self.busy:
            self.busy[kind] = {
                "read": self._read, "settle": self._settle, "lone": self._send_suspects, "hand over": self._hand_over,
            }[kind]()  # fmt: skip

    def go_on(self) -> None:
        """One step of something that is under way."""
        dice = self.world.dice
        what = dice.choice([*self.busy.items(), *enumerate(self.sends), *(("claim", c) for c in self.claims[:1])])
        try:
            next(what[1])
        except StopIteration:
            self._ended(what[1])

    @property
    def is_waiting(self) -> bool:
        return bool(self.busy or self.sends or self.claims)

    def _ended(self, steps: Steps) -> None:
        self.busy = {kind: other for kind, other in self.busy.items() if other is not steps}
        self.sends = [other for other in self.sends if other is not steps]
        self.claims = [other for other in self.claims if other is not steps]

    # --- reading ---

    def _read(self) -> Steps:
        if not self.ordering.is_open or self.ordering.room <= 0 or self.is_zombie:
            return
        kinds = [self._read_fresh, self._read_due, self._read_keys, self._read_left, self._sweep]
        yield from self.world.dice.choice(kinds)()

    def _read_fresh(self) -> Steps:
        partitions, restart = self.ordering.begin_read()
        if not partitions:
            self.ordering.abort_read(restart)
            return
        cursor = None if self.cursor is None else self._skipping(self.cursor.restart(self._netted(restart)))
        yield
        if self.world.fails():
            self.ordering.abort_read(restart)
            self.cursor = None
            return
        reading = self.table.read(partitions, cursor, self.world.dice.choice([1, 5, 20]))
        yield
        self.world.seen["late"] += sum(m.id <= (cursor or Cursor()).low.get(m.partition, 0) for m in reading.messages)
        self.cursor = reading.cursor
        self._claim(self.ordering.accept_read(reading, partitions))

    def _netted(self, restart: set[int]) -> set[int]:
        """The lanes to read from their start: now and then one more."""
        if self.world.dice.random() < 0.95 or not self.ordering.partitions:
            return restart
        netted = {self.world.dice.choice(self.ordering.partitions)}
        self.ordering.load_hot_keys(netted)
        return restart | netted

    def _skipping(self, cursor: Cursor) -> Cursor:
        """A store may leave them out, or not."""
        self.world.seen["crowded"] += bool(self.ordering.hot_keys)
        return cursor.skip_keys(self.ordering.hot_keys if self.world.dice.random() < 0.8 else [])

    def _read_left(self) -> Steps:
        for left in self.ordering.next_remainders(3) if self.cursor is not None else ():
            yield
            if self.world.fails():
                self.ordering.abort_remainder(left)
                continue
            above = Cursor({left.partition: left.after})
            reading = self.table.read([left.partition], above, self.world.dice.choice([1, 5, 20]))
            yield
            self.world.seen["left"] += 1
            self._claim(self.ordering.accept_remainder(left, reading))

    def _read_due(self) -> Steps:
        self.ordering.begin_due_read()
        yield
        found = self.table.find_due(self.ordering.partitions, after=self.due_mark, limit=self.world.dice.choice([1, 5]))
        yield
        ids, seen = self.ordering.choose_due(found)
        self.due_mark = found[seen - 1].mark if seen else None
        yield
        due = self.table.read_due(ids)
        yield
        self._claim(self.ordering.accept(due))

    def _read_keys(self) -> Steps:
        wanted = self.ordering.next_key_reads(3)
        yield
        if self.world.fails():
            for read in wanted:
                self.ordering.abort_key_read(read)
            return
        found = [self.table.read_key(read.partition, read.key, limit=self.ordering.key_share) for read in wanted]
        reached = self.world.dice.choice([len(wanted), len(wanted) // 2])
        yield
        for read, messages in zip(wanted[:reached], found, strict=False):
            self._claim(self.ordering.accept_key(read, messages))
        for read in wanted[reached:]:
            self.ordering.abort_key_read(read)

    def _sweep(self) -> Steps:
        yield
        blocked = self.table.blocked_keys(self.ordering.partitions)
        yield
        for key in blocked:
            self.ordering.block(key.partition, key.key, front=key.front)

    def _claim(self, offer: ReadDecision) -> None:
        struck: dict[int, list[Message]] = {0: []}
        for message in offer.take:
            struck.setdefault(self.ordering.count_strikes(message.id), []).append(message)
        for strikes, messages in struck.items():
            self.claims.append(self._record(ReadDecision(messages, [] if strikes else offer.park), strikes))

    def _record(self, offer: ReadDecision, strikes: int) -> Steps:
        while (offer := ReadDecision(self._ours(offer.take), self._ours(offer.park))) != ReadDecision([], []):
            number, park = next(self._numbers), [message.id for message in offer.park]
            fence = self._fence({message.partition for message in (*offer.take, *offer.park)})
            claim = Claim(number, [message.id for message in offer.take], strikes)
            yield
            try:
                self.table.claim(self.name, fence, claim, park=park)
            except Fenced as refused:
                self._lose(refused.partitions)
                continue
            yield
            self.ordering.confirm_parks(offer.park)
            self.ordering.confirm_claim(number, offer.take)
            return

    def _ours(self, messages: Iterable[Message]) -> list[Message]:
        return [message for message in messages if message.partition in self.epochs]

    # --- sending ---

    def _send(self) -> None:
        limit = self.world.dice.choice([1, 5, 50])
        if not self.is_zombie and (batch := self.ordering.next_batch(limit)):
            if self.has_runs:
                heads, batch = batch, self.ordering.extend_runs(batch, self.world.dice.choice([1, 5, 50]))
                self.world.seen["in a run"] += len(batch) - len(heads)
            self.sends.append(self._sent(batch))

    def _sent(self, batch: list[Message]) -> Steps:
        begun: set[str | None] = {None}
        for message in batch:
            if message.key not in begun or message.key is None:
                self.world.check_order(message)
            begun.add(message.key)
        yield
        answers = self._answers(batch)
        yield
        for message, answer in answers:
            self._tell(message, answer)

    def _answers(self, batch: list[Message]) -> list[tuple[Message, str]]:
        """What becomes of a batch at the broker: each run up to the first message that is not taken."""
        answers: list[tuple[Message, str]] = []
        ended: set[str] = set()
        begun: set[str] = set()
        for message in batch:
            if message.key is not None and message.key in ended:
                continue
            is_left = message.key is not None and message.key in begun and self.world.dice.random() < 0.1
            if not is_left and message.key in begun:
                self.world.check_order(message)
            answer = "left" if is_left else self.world.answer(message)
            answers.append((message, answer))
            if message.key is not None:
                begun.add(message.key)
                if answer != "taken":
                    ended.add(message.key)
        return answers

    def _send_suspects(self) -> Steps:
        group = [] if self.is_zombie else self.ordering.next_suspects(self.world.dice.choice([1, 5, 50]))
        if not group:
            return
        strikes = self.ordering.count_strikes(group[0].id)
        self.world.seen["alone" if len(group) == 1 else "in a group"] += 1
        if strikes >= LONE_STRIKES + _LONE_CAP:
            self.world.seen["given up"] += 1
            self.ordering.mark_failed(group[0], FailedOutcome(message_id=group[0].id, state=State.FAILED))
            return
        number, fence = next(self._numbers), self._fence({message.partition for message in group})
        yield
        try:
            self.table.claim(self.name, fence, Claim(number, [message.id for message in group], strikes))
            yield
            if not all(self.ordering.is_in_flight(message) for message in group):
                self.ordering.mark_returned(group)
                return
            left = self.ordering.confirm_group_claim(group, number)
            self.table.settle(self.name, fence, left)
        except Fenced as refused:
            self._lose(refused.partitions)
            self.ordering.mark_returned(group)
            return
        yield
        yield from self._sent(group)

    def _tell(self, message: Message, answer: str) -> None:
        match answer:
            case "taken":
                self.ordering.mark_delivered([message])
            case "broken":
                self.world.seen["struck"] += 1
                self.ordering.add_strikes([message])
                self.ordering.mark_returned([message])
            case "nobody":
                self.ordering.mark_returned([message])
            case "left":
                self.world.seen["left unsent"] += 1
                self.ordering.mark_unsent(message)
            case _:
                self.ordering.mark_failed(message, self.world.trouble(message, answer))

    # --- settling ---

    def _settle(self) -> Steps:
        if not self.ordering.has_outcomes:
            return
        settlement, lanes = self.ordering.next_settlement(self.world.dice.choice([1, 10, 100]))
        fence = self._fence(lanes)
        yield
        while self.world.fails():  # the answer is lost, whether or not the write got through
            if self.world.dice.random() < 0.5 and not self._settled(fence, settlement):
                return
            yield
        if self._settled(fence, settlement):
            yield
            self.ordering.confirm_settlement(settlement)

    def _settled(self, fence: Epochs, settlement: Settlement) -> bool:
        try:
            self.table.settle(self.name, fence, settlement)
        except Fenced as refused:
            self._lose(refused.partitions)
            self.ordering.abort_settlement(settlement)
            return False
        return True

    def _fence(self, lanes: Iterable[int]) -> dict[int, int]:
        return {lane: self.epochs[lane] for lane in lanes if lane in self.epochs}

    # --- lanes ---

    def take(self, lane: int) -> None:
        number = next(self._numbers)
        epoch, inherited = self.table.take(self.name, lane, number=number)
        for _ in inherited:
            next(self._numbers)
        self.epochs[lane] = epoch
        self.ordering.grant(lane)
        for part in inherited:
            self.world.seen["inherited"] += len(part.messages)
            self.ordering.recover_claim(part.claim.number, part.messages, strikes=part.claim.strikes)
        for key in self.table.blocked_keys([lane]):
            self.ordering.block(key.partition, key.key, front=key.front)

    def revoke(self, lane: int) -> None:
        self.leaving.add(lane)
        self.ordering.revoke(lane)

    def _hand_over(self) -> Steps:
        done = {lane for lane in self.leaving if self.ordering.is_drained(lane)}
        if done:
            fence = self._fence(done)
            yield
            self.world.seen["handed over"] += len(fence)
            self.table.release(self.name, fence)
            yield
            self.leaving -= done
            self.epochs = {lane: epoch for lane, epoch in self.epochs.items() if lane not in done}

    def _lose(self, lanes: Iterable[int]) -> None:
        lost = [lane for lane in lanes if lane in self.epochs]
        self.world.seen["fenced"] += len(lost)
        for lane in lost:
            del self.epochs[lane]
        self.leaving.difference_update(lost)
        self.ordering.drop(lost)


class World:
    """Some relays, a table, writers, a broker that has its moods, and an operator."""

    def __init__(self, seed: int, *, has_runs: bool = False) -> None:
        self.dice = random.Random(seed)
        self.has_runs = has_runs
        """The broker takes several messages of a key in one send, up to the first that it does not take."""
        self.table = Table()
        self.keys = [f"k{number}" for number in range(self.dice.choice([1, 3, 8]))]
        self.total = self.dice.randint(20, 150)
        self.holds = self.dice.random() < 0.3
        self.violence = self.dice.choice([0.0, 0.002, 0.006])
        """How often a relay dies."""
        self.poison = self.dice.randint(1, self.total) if self.dice.random() < 0.3 else None
        """A message that breaks every connection it is sent on."""
        self.is_down = False
        self.is_calm = False
        """Nothing more goes wrong, so that the end can be waited for."""
        self.seen: Counter[str] = Counter()
        """What came to pass, so that a test can tell whether a rare thing ever did."""
        self.acknowledged: set[int] = set()
        self.unordered: set[int] = set()
        """What its writer or a person let depart from the order."""
        self.relays: list[Relay] = []
        self._names = count(1)
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            self._join()

    def run(self) -> None:
        """Until everything is closed. An `AssertionError` is a broken promise."""
        patience = _PATIENCE
        while not self._is_done():
            self.table.now += 1
            self._step()
            self.is_calm |= len(self.table.closed) > 0.8 * self.total or self.table.now > _STORMY
            patience -= self.is_calm
            assert patience, f"stuck with {sorted(self.table.rows.values(), key=lambda m: m.id)[:5]}"
        self.seen["parked"] = len(self.table.parkings)
        self.seen["deferred"] = len(self.table.due_at)
        assert not self.table.claims
        assert all(parkings == 1 for parkings in self.table.parkings.values())
        self._check_ends()

    def _is_done(self) -> bool:
        return (
            self.table.last_id >= self.total
            and not self.table.drawn
            and not self.table.rows
            and not any(relay.is_waiting or relay.ordering.in_flight for relay in self.relays if not relay.is_zombie)
        )

    def _check_ends(self) -> None:
        delivered = {number for number, state in self.table.closed.items() if state is State.DELIVERED}
        assert delivered <= self.acknowledged
        assert len(self.table.closed) == self.total

    # --- what happens ---

    def _step(self) -> None:
        waiting = [relay for relay in self.relays if relay.is_waiting]
        luck = self.dice.random()
        if luck < 0.55 and waiting:
            self.dice.choice(waiting).go_on()
        elif luck < 0.65:
            self._write()
        elif luck < 0.975:
            self.dice.choice(self.relays).begin()
        elif luck < 0.99:
            self._move_lanes()
        elif luck < 0.992:
            self._operate()
        elif luck < 0.994:
            self._weather()
        elif luck < 0.994 + self.violence and not self.is_calm:
            self._die()

    def _write(self) -> None:
        if self.table.drawn and (self.dice.random() < 0.3 or self.table.last_id >= self.total):
            self.table.commit(self.dice.choice(list(self.table.drawn)))
            return
        busy = {message.key for message in self.table.drawn.values()}
        key = self.dice.choice([*(key for key in self.keys if key not in busy), None])
        if self.table.last_id < self.total:
            lane = self.keys.index(key) % LANES if key is not None else self.dice.randrange(LANES)
            delay = self.dice.randint(0, 200) if self.dice.random() < 0.1 else None
            number = self.table.draw(key, lane=lane, delay=delay)
            if delay is not None:
                self.unordered.add(number)

    def _weather(self) -> None:
        """The destination goes down or comes back; each relay finds out by itself."""
        self.is_down = not self.is_down and not self.is_calm
        for relay in self.relays:
            if self.is_down:
                relay.ordering.close()
            elif not relay.ordering.is_open:
                relay.ordering.reopen()

    def _operate(self) -> None:
        """A person acts on messages that nobody has in hand."""
        idle = [message for number, message in self.table.rows.items() if number not in self.table.claimed]
        held = [message for message in idle if message.waits is Waits.HELD]
        if held and self.dice.random() < 0.5:
            self.table.redrive_held(self.dice.choice(held).id)
        elif held:
            self.table.discard(self.dice.choice(held).id)
        elif idle and not self.is_calm:
            self._meddle(self.dice.choice(idle))

    def _meddle(self, message: Message) -> None:
        self.seen["meddled"] += 1
        if self.dice.random() < 0.3 and message.waits is not Waits.HELD:
            self.unordered.add(message.id)
            self.table.discard(message.id)
        elif message.waits in (None, Waits.RETRY):
            self.unordered.add(message.id)
            self.table.defer(message.id, until=self.table.now + self.dice.randint(1, 200))

    # --- relays and lanes ---

    def _join(self) -> None:
        self.relays.append(Relay(f"r{next(self._names)}", self))

    def _die(self) -> None:
        """Killed, or cut off from the store: a zombie. Its claims stay for whoever takes its lanes."""
        relay = self.dice.choice(self.relays)
        if self.dice.random() < 0.5:
            relay.is_zombie = True
        else:
            self.relays.remove(relay)
        if not any(not other.is_zombie for other in self.relays):
            self._join()

    def _move_lanes(self) -> None:
        able = [relay for relay in self.relays if not relay.is_zombie]
        alive = {relay.name for relay in able}
        lane, relay = self.dice.randrange(LANES), self.dice.choice(able)
        if self.table.owners.get(lane, ("", 0))[0] not in alive and lane not in relay.epochs:
            relay.take(lane)
        elif lane in relay.epochs and lane not in relay.leaving and not self.is_calm and self.dice.random() < 0.2:
            relay.revoke(lane)

    # --- the broker ---

    def fails(self) -> bool:
        """Whether a store call loses its answer."""
        return not self.is_calm and self.dice.random() < 0.1

    def answer(self, message: Message) -> str:
        """What becomes of one message at the broker. Taken is taken, whether or not the relay hears of it."""
        if message.id == self.poison:
            return "broken"
        if self.is_down:
            return self.dice.choice(["nobody", "broken"])
        luck = self.dice.random()
        if self.is_calm or luck < 0.8:
            self.acknowledged.add(message.id)
            return "taken"
        return self.dice.choice(["retry", "retry", "broken", "nobody", "failed", "failed"])

    def trouble(self, message: Message, answer: str) -> FailedOutcome:
        spent = message.attempts + 1
        if answer == "retry":
            return FailedOutcome(
                message_id=message.id, state=State.PENDING, waits=Waits.RETRY, attempts=spent,
                delay=timedelta(seconds=self.dice.randint(1, 60)),
            )  # fmt: skip
        if self.holds and message.key is not None:
            self.seen["held"] += 1
            return FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.HELD, attempts=spent)
        return FailedOutcome(message_id=message.id, state=State.FAILED, attempts=spent)

    def check_order(self, message: Message) -> None:
        """Nothing may be sent for the first time while an earlier message of its key is still to come."""
        if message.key is None or message.id in self.acknowledged or message.id in self.unordered:
            return
        earlier = [
            other.id
            for other in self.table.rows.values()
            if other.key == message.key and other.id < message.id and other.id not in self.unordered
        ]
        overtaken = [number for number in earlier if number not in self.acknowledged]
        assert not overtaken, f"{message.id} of {message.key} overtakes {overtaken}"
