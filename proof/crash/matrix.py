"""All points on all stores, one after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.contracts.store import Selection, Store
from pillarbox.message import State
from proof.crash.deaths import BATCH, NotReached, die, is_in_company
from proof.crash.points import Point
from proof.crash.requests import redrive_all_failed
from proof.crash.scene import LEASE, Scene
from proof.crash.stories import STORIES, Story
from proof.databases import BACKENDS, MakePlace, Place
from proof.judge import Verdict, judge
from proof.processes import Consumer, ForkServer, Program, TooLate, until

__all__ = ["Result", "Run", "Setting", "play", "run_all", "setting"]

PATIENCE: Final = 20.0
"""Seconds."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run."""

    point: Point
    store: str
    nth: int
    verdict: Verdict | None = None
    """None: nobody died where it was laid out."""
    recovered: float | None = None
    """Leases from the last death until every message was closed and every lane owned."""
    trouble: str | None = None
    """Why the point was not reached."""
    log: str = ""
    """What the relays told, if it did not hold."""

    @property
    def hit(self) -> bool:
        """Somebody died where it was laid out, by SIGKILL."""
        return self.verdict is not None

    @property
    def holds(self) -> bool:
        return self.verdict is not None and self.verdict.holds


def _nothing(_: Scene) -> None:
    pass


def play(
    scene: Scene, *, nth: int, patience: float = PATIENCE, meanwhile: Callable[[Scene], None] = _nothing
) -> Result:
    """Run a story to its end. `patience` is how long each death is waited for, `meanwhile` comes right after it."""
    told = Result(point=scene.point, store=scene.backend, nth=nth)
    try:
        died = die(scene, nth=nth, patience=patience)
    except (TooLate, NotReached) as trouble:
        return msgspec.structs.replace(told, trouble=str(trouble), log=scene.told())
    recorded = scene.recorded()
    meanwhile(scene)
    survivor = died.survivor or scene.relay()
    recovered, troubles = None, []
    try:
        recovered = _recover(scene, survivor, died_at=died.at)
    except TooLate as late:
        troubles.append(str(late))
    evidence = scene.evidence(recorded=recorded, left=died.left, exit_code=survivor.stop())
    verdict = judge(evidence, scene.story, alone=not is_in_company(scene, nth))
    verdict = msgspec.structs.replace(verdict, faults=[*troubles, *verdict.faults])
    log = "" if verdict.holds else scene.told()
    return msgspec.structs.replace(told, verdict=verdict, recovered=recovered, log=log)


def _recover(scene: Scene, survivor: Program, *, died_at: int) -> float:
    """Until everything is closed, and every lane has its owner. Answers how many leases it took."""
    story = scene.story
    scene.arrivals.away.unlink(missing_ok=True)
    scene.write(story.later)
    if story.who == "operator":
        scene.operate(lambda store: redrive_all_failed(store, story.action, batch=BATCH))
    until(scene.is_drained, within=PATIENCE, what="every message is closed")
    scene.wait_owner(survivor)
    if story.forgets:
        until(lambda: scene.count("pillarbox_relay") == 1, within=PATIENCE, what="the dead are forgotten")
    recovered = (time.monotonic_ns() - died_at) / 1e9 / LEASE
    if story.held is not None:
        scene.operate(_redrive)
        until(lambda: not scene.count("pillarbox_outbox"), within=PATIENCE, what="the held key goes on")
    return recovered


async def _redrive(store: Store) -> None:
    await store.redrive(Selection(states=[State.FAILED]), by="the matrix", limit=BATCH)


class Run(msgspec.Struct, frozen=True):
    """One point, on one store, at one occurrence; if none is named, at the first one of its story."""

    point: Point
    store: str
    occurrence: int = 0

    @property
    def nth(self) -> int:
        return self.occurrence or STORIES[self.point].nths[0]

    @property
    def name(self) -> str:
        return f"{self.store}-{self.point.title}-{self.nth}"


class Setting(msgspec.Struct, frozen=True):
    """What all runs share: the consumer, and where the programs come from."""

    folder: Path
    consumer: Consumer
    fork_server: ForkServer

    def scene(self, point: Point, story: Story, *, backend: str, place: Place, name: str) -> Scene:
        """For one run of a story. No two share a name."""
        folder = self.folder / name
        folder.mkdir()
        return Scene(
            point,
            story,
            backend=backend,
            place=place,
            folder=folder,
            consumer=self.consumer,
            fork_server=self.fork_server,
        )

    def played(self, run: Run, make: MakePlace) -> Result:
        """One run, in a place of its own."""
        folder = self.folder / f"{run.name}.store"
        folder.mkdir()
        story = STORIES[run.point]
        with make(folder) as place, self.scene(
            run.point, story, backend=run.store, place=place, name=run.name
        ) as scene:  # fmt: skip
            return play(scene, nth=run.nth)


def runs(points: Sequence[Point], store: str) -> list[Run]:
    """Every occurrence at which these points are tried."""
    return [Run(point, store, nth) for point in points for nth in STORIES[point].nths]


@contextmanager
def setting(folder: Path) -> Iterator[Setting]:
    """Consumer and nursery, ended afterwards."""
    with Consumer(folder) as consumer, ForkServer(folder) as fork_server:
        yield Setting(folder, consumer, fork_server)


def run_all(points: Sequence[Point], stores: Sequence[str], *, told: Callable[[Result], None]) -> list[Result]:
    """The matrix. Tells of each result as it comes. `Unserved` before the first, if a store cannot be had."""
    results = []
    with ExitStack() as stack:
        makes = {store: stack.enter_context(BACKENDS[store].open_places()) for store in stores}
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pillarbox-crash-"))
        shared = stack.enter_context(setting(Path(folder)))
        for run in (run for store in stores for run in runs(points, store)):
            results.append(shared.played(run, makes[run.store]))
            told(results[-1])
    return results
