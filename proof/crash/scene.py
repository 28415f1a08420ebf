"""One store with a consumer and relays: what can be seen of it, done to it and waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.contracts.store import Store
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION
from pillarbox.stores.factory import open_store
from proof.crash.consumer import Arrivals
from proof.crash.points import Point
from proof.crash.requests import Order, RelayOrder
from proof.crash.steps import STEPS
from proof.crash.stories import Rounds, Story
from proof.databases import Place, roll_back, write
from proof.judge import CommittedRow, Evidence, Kept
from proof.kill_points import Death, Trap
from proof.messages import DESTINATION, GRAVEYARD, parcel
from proof.processes import Consumer, ForkServer, Program, until

__all__ = ["LEASE", "Scene"]

LEASE: Final = 1.0
"""Seconds."""
_START: Final = 20.0
_LANES: Final = """
select count(*) from pillarbox_lane join pillarbox_relay using (relay_id) where destination = ? and pid = ?
"""
_OPEN: Final = "select count(*) from pillarbox_outbox where coalesce(key, '') <> ?"
_LAPSED: Final = "the lease is lost"


class Scene:
    """Everything of one run. Leaving it ends its processes."""

    def __init__(
        self,
        point: Point,
        story: Story,
        *,
        backend: str,
        place: Place,
        folder: Path,
        consumer: Consumer,
        fork_server: ForkServer,
    ) -> None:
        self.point = point
        self.story = story
        self.backend = backend
        self.place = place
        self.folder = folder
        self._consumer = consumer
        self._nursery = fork_server
        self._programs: list[Program] = []
        self.arrivals = Arrivals(folder.with_suffix(".arrivals"))

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.end()

    # --- doing ---

    def relay(self, *, trap: Trap | None = None) -> Program:
        """Have a relay begin."""
        return self.start(self._order(trap))

    def start(self, order: Order) -> Program:
        """Have a program begin."""
        program = self._nursery.start(order, log=self.folder / f"{type(order).__name__}-{len(self._programs)}.log")
        self._programs.append(program)
        return program

    def load(self) -> None:
        """Write what comes first; something that is rolled back is part of it."""
        if self.story.away:
            self.arrivals.away.touch()
        self.write(self.story.load)
        roll_back(self.place, [parcel("k0", 900), parcel("never", 1)])

    def write(self, rounds: Rounds) -> None:
        for parcels in rounds:
            write(self.place, parcels)

    def trap(self, point: Point, nth: int) -> Trap:
        return Trap(point.title, nth, str(self.folder / f"death-{len(self._programs)}"))

    def url(self) -> str:
        """The store's. Deaths between BEGIN and COMMIT need calls that have both."""
        return self.place.url(in_transactions=STEPS[self.point].stage.is_in_transaction)

    def _order(self, trap: Trap | None) -> RelayOrder:
        story = self.story
        return RelayOrder(
            backend=self.backend, store=self.url(), schema=self.place.names.schema, trap=trap,
            to=f"{self._consumer.url}/{self.folder.name}.arrivals",
            arrivals=str(self.folder.with_suffix(".arrivals")),
            archive=str(self.folder / "archive") if story.archives else None,
            lease=LEASE, batch=story.batch, window=story.window, after_failure=story.after_failure,
            purges=story.purges, forwards=story.forwards, lone_cap=story.lone_cap,
            through=None if trap is None else story.through,
        )  # fmt: skip

    def operate(self, act: Callable[[Store], Coroutine[None, None, None]]) -> None:
        """What a person does with the store."""

        async def run() -> None:
            store = open_store(self.place.url(), names=self.place.names)
            await store.open()
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(run())

    def change(self, sql: str) -> None:
        """Meddle with the tables."""
        with self.place.transaction() as handle:
            handle.execute(sql)

    # --- seeing ---

    def count(self, of: str, *values: object) -> int:
        """How many rows: `count("pillarbox_claim")`."""
        return int(self.place.rows(f"select count(*) from {of}", *values)[0][0])

    @property
    def destinations(self) -> Sequence[str]:
        return [DESTINATION, SKIPPED_DESTINATION, *([GRAVEYARD] if self.story.forwards else [])]

    def owns_all(self, relay: Program) -> bool:
        """Whether it owns every lane there is."""
        return all(self.place.rows(_LANES, name, relay.pid)[0][0] == PARTITIONS for name in self.destinations)

    def owns_some(self, relay: Program) -> bool:
        """Whether it has lanes of the consumer's."""
        return bool(self.place.rows(_LANES, DESTINATION, relay.pid)[0][0])

    def failed(self) -> int:
        return self.count("pillarbox_history where status = 'failed'")

    def is_drained(self) -> bool:
        """Whether everything is closed, but for a key that is held."""
        held = self.story.held
        if held is None:
            return not self.count("pillarbox_outbox")
        key = held.split("/")[0]
        is_held = self.count("pillarbox_outbox where key = ? and waits = 'held'", key) == 1
        return is_held and not self.place.rows(_OPEN, key)[0][0]

    def death(self, trap: Trap) -> Death | None:
        """How it died, if it did where it should."""
        path = Path(trap.marker)
        return msgspec.json.decode(path.read_bytes(), type=Death) if path.exists() else None

    # --- waiting ---

    def wait_owner(self, relay: Program) -> None:
        until(lambda: self.owns_all(relay), within=_START, what="a relay owns all lanes")

    # --- judging ---

    def recorded(self) -> tuple[list[str], int]:
        """What is recorded as delivered, and when that was true at the latest."""
        rows = self.place.rows("select subject from pillarbox_history where status = 'delivered'")
        return [subject for (subject,) in rows], time.monotonic_ns()

    def evidence(self, *, recorded: tuple[Sequence[str], int], left: int, exit_code: int | None) -> Evidence:
        """Once everybody has stopped."""
        archive = self.folder / "archive"
        kept = self.place.rows("select subject, state, attempts from pillarbox_messages order by id")
        return Evidence(
            committed=[CommittedRow(*row) for row in self.place.rows("select subject, key, number from parcel")],
            arrivals=self.arrivals.read(),
            kept=[Kept(*row) for row in kept],
            archived=archive.read_text().split() if archive.exists() else [],
            claims=self.count("pillarbox_claim"),
            owned_lanes=self.count("pillarbox_lane where relay_id is not null"),
            recorded=recorded[0],
            looked_at=recorded[1],
            left=left,
            exit_code=exit_code,
            lapses=self.told().count(_LAPSED),
        )

    def told(self) -> str:
        """What the relays logged."""
        return "".join(
            f"--- {program.log.name}\n{program.log.read_text(errors='replace')}" for program in self._programs
        )
