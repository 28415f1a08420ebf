"""What the loops of one destination share: the core, the gate, and how a write is carried through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from pillarbox.clock import Clock
from pillarbox.errors import Fenced, StoreError, StoreUnavailable
from pillarbox.protocols import Fence, Store
from pillarbox.relay.breaker import Breaker
from pillarbox.relay.judging import Judge
from pillarbox.relay.lane import LaneCore
from pillarbox.relay.settings import DestinationSettings
from pillarbox.relay.standing import Standing
from pillarbox.telemetry import Telemetry

__all__ = ["Work"]

_KEY_SHARE: Final = 8
"""One key holds at most this part of the window."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class Work:
    """One destination in one relay."""

    def __init__(
        self,
        settings: DestinationSettings,
        *,
        store: Store,
        standing: Standing,
        judge: Judge,
        clock: Clock,
        telemetry: Telemetry,
        dice: random.Random,
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.store = store
        self.standing = standing
        self.judge = judge
        self.clock = clock
        self.telemetry = telemetry
        self.dice = dice
        self.breaker = Breaker()
        self.core = LaneCore(
            window=settings.window, key_share=settings.window // _KEY_SHARE, leaves=store.features.skips_keys
        )
        self.epochs: dict[int, int] = {}
        """The lanes in hand, and the epoch each was taken under."""
        self.pause_reason: str | None = None
        self.is_connected = False
        """The transport was opened; after that it finds its way back by itself."""
        self.flooded = False
        """So many rejections came in a row that the destination is to be paused."""
        self.intake = asyncio.Event()
        """There may be something to read, or room for it."""
        self.ready = asyncio.Event()
        """There may be something to send."""
        self.outcomes = asyncio.Event()
        """There may be something to settle."""
        self.stopping = False

    # --- the gate ---

    @property
    def is_open(self) -> bool:
        """Messages may flow at full width."""
        return self.breaker.is_closed and self.pause_reason is None and not self.stopping

    def shut(self) -> None:
        """Send nothing more; what is unsent goes back."""
        self.core.close()
        self.outcomes.set()

    def open_up(self) -> None:
        """Send again, at full width, from the start of every lane."""
        if self.is_open:
            self.core.window = self.settings.window
            self.core.reopen()
            self.intake.set()

    def pause(self, reason: str) -> None:
        """A person or the relay itself stopped the destination."""
        if self.pause_reason is None:
            self.pause_reason = reason
            self.telemetry.paused(self.name, reason=reason)
            self.shut()

    def resume(self) -> None:
        """The destination may be served again."""
        if self.pause_reason is not None:
            self.pause_reason = None
            self.judge.resumed()
            self.telemetry.resumed(self.name)
            self.open_up()

    # --- lanes ---

    def fence(self, partitions: Iterable[int]) -> Fence:
        """Proof of ownership for a write in these lanes."""
        return Fence(self.standing.relay_id, self.name, {p: self.epochs[p] for p in partitions if p in self.epochs})

    def lose(self, partitions: Iterable[int]) -> None:
        """Another relay owns these lanes: forget them, loudly."""
        lost = [partition for partition in partitions if partition in self.epochs]
        for partition in lost:
            del self.epochs[partition]
        self.core.drop(lost)
        if lost:
            self.telemetry.fenced(self.name, lost)

    def may_act(self) -> bool:
        """Whether the lease surely holds."""
        return self.standing.may_act(self.clock.monotonic())

    async def carried_through(self, what: str, write: Callable[[], Awaitable[None]]) -> bool:
        """Repeat a write until it is done; False once the lease is lost, or a lane with it. Writes can be repeated."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await write()
                return True
            except Fenced as refused:
                self.lose(refused.partitions)
                return False
            except StoreUnavailable as error:
                self.telemetry.store_failed(what, error)
            except StoreError as error:
                self.telemetry.store_failed(what, error)
                pause = _LONGEST_PAUSE
            if not self.may_act():
                return False
            await asyncio.sleep(pause * (0.5 + self.dice.random() / 2))
            pause = min(2 * pause, _LONGEST_PAUSE)
