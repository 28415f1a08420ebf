"""The director: starts everyone, strikes as the script says, waits for the end, and asks the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from pillarbox.demo import relays
from pillarbox.demo.cast import Cast
from pillarbox.demo.display import Display
from pillarbox.demo.judge import Evidence, Failure, Verdict, judge
from pillarbox.demo.orders import DESTINATION
from pillarbox.demo.script import ConsumerDown, ConsumerUp, Cue, KillRelay, Progress, Script
from pillarbox.demo.stage import Stage
from pillarbox.demo.story import Story
from pillarbox.errors import PillarboxError
from pillarbox.message import Message, State
from pillarbox.protocols import Selection, Store
from pillarbox.stores.opening import open_store

__all__ = ["Ending", "direct"]

_LOOK: Final = 0.15
_START: Final = 20.0
_GRACE: Final = 5.0
_SOME: Final = 1_000


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How it came out."""

    verdict: Verdict
    failed: Sequence[Failure]
    """What the relay keeps as failed."""
    refused: Sequence[Failure]
    """What the consumer keeps as refused."""
    is_complete: bool
    """False when messages were still on their way when patience ran out."""
    seconds: float


async def direct(story: Story, stage: Stage, display: Display) -> Ending:
    """Run the story to its end. Whatever happens, no process is left."""
    store = open_store(stage.place.url, names=stage.place.names)
    await store.open()
    try:
        with Cast(story, stage) as cast:
            return await _Performance(story, stage, store, cast).run(display)
    finally:
        await store.close()


class _Performance:
    def __init__(self, story: Story, stage: Stage, store: Store, cast: Cast) -> None:
        self._story = story
        self._stage = stage
        self._store = store
        self._cast = cast
        self._script = Script(story)
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._kills = 0
        self._outages = 0
        self._consumer_is_up = False

    async def run(self, display: Display) -> Ending:
        display.note("the consumer starts, then two relays and the order service")
        await self._start()
        progress = await self._look()
        while not self._script.is_over(progress) and progress.seconds < self._story.patience:
            display.show(progress)
            for cue in self._script.cues(progress):
                display.note(self._act(cue))
            await asyncio.sleep(_LOOK)
            progress = await self._look()
        display.show(progress)
        self._stop()
        return await self._ending(is_complete=progress.is_received)

    async def _start(self) -> None:
        self._cast.consumer.start()
        self._consumer_is_up = True
        await self._until_listening()
        for relay in self._cast.relays:
            relay.start()
        await self._until_registered()
        self._cast.shop.start()
        self._started = self._clock()

    async def _until_registered(self) -> None:
        give_up_at = self._clock() + _START
        while self._clock() < give_up_at:
            if len(await self._registered()) == len(self._cast.relays):
                return
            await asyncio.sleep(_LOOK)
        raise PillarboxError(f"The relays did not register in {_START:.0f} s; look at their logs after --keep.")

    async def _until_listening(self) -> None:
        give_up_at = self._clock() + _START
        while not await self._stage.intake.is_ready():
            self._cast.consumer.has_finished()
            if self._clock() >= give_up_at:
                raise PillarboxError(f"The consumer did not begin to listen in {_START:.0f} s; look at its log.")
            await asyncio.sleep(_LOOK)

    def _act(self, cue: Cue) -> str:
        """Do what the script says; what happened, for the audience."""
        match cue:
            case KillRelay(relay):
                self._cast.relays[relay].kill()
                self._cast.relays[relay].start()
                self._kills += 1
                return f"relay {relay + 1} killed with SIGKILL, and started again"
            case ConsumerDown():
                self._cast.consumer.kill()
                self._consumer_is_up = False
                self._outages += 1
                return f"consumer killed with SIGKILL; it stays down for {self._story.outage_seconds:.0f} s"
            case ConsumerUp():
                self._cast.consumer.start()
                self._consumer_is_up = True
                return "consumer started again"

    async def _look(self) -> Progress:
        committed, rolled_back = await self._stage.book.counts()
        states = dict.fromkeys(State, 0)
        shop_is_done = self._cast.shop.has_finished()
        for count in await self._store.counts():
            if count.destination == DESTINATION:
                states[count.state] += count.count
        return Progress(
            seconds=self._clock() - self._started,
            orders=self._story.orders,
            committed=committed,
            rolled_back=rolled_back,
            delivered=states[State.DELIVERED],
            sending=states[State.SENDING],
            pending=states[State.PENDING],
            failed=states[State.FAILED],
            kills=self._kills,
            outages=self._outages,
            received=self._stage.ledger.count(),
            consumer_is_up=self._consumer_is_up,
            shop_is_done=shop_is_done,
            relays=await self._registered(),
        )

    async def _registered(self) -> list[int]:
        registry = await self._store.registry(lease=relays.LEASE)
        pids = {relay.pid for relay in registry.relays}
        if self._consumer_is_up and self._cast.consumer.has_finished():
            raise PillarboxError("The consumer ended, and was not asked to.")
        if any(relay.has_finished() for relay in self._cast.relays):
            raise PillarboxError("A relay ended, and was not asked to.")
        return [number for number, relay in enumerate(self._cast.relays) if relay.pid in pids]

    def _stop(self) -> None:
        for relay in self._cast.relays:
            relay.stop(within=_GRACE)
        self._cast.shop.kill()
        self._cast.consumer.kill()

    async def _ending(self, *, is_complete: bool) -> Ending:
        entries = await self._stage.book.entries()
        ledger = self._stage.ledger
        failed = await self._store.find(Selection(states=[State.FAILED], destination=DESTINATION), limit=_SOME)
        kept = [_failure(message) for message in failed]
        evidence = Evidence(
            committed=entries.committed,
            rolled_back=entries.rolled_back,
            effects=ledger.effects(),
            received=ledger.received(),
            absorbed=ledger.absorbed(),
            failed=[failure.order_id for failure in (*kept, *ledger.refused())],
            kills=self._kills,
            outages=self._outages,
        )
        seconds = self._clock() - self._started
        return Ending(
            verdict=judge(evidence), failed=kept, refused=ledger.refused(), is_complete=is_complete, seconds=seconds
        )


def _failure(message: Message) -> Failure:
    return Failure(message.subject or "", message.key or "", message.last_error or "")
