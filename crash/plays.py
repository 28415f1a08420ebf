"""One run: a story on a store, from the first message to the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from crash.deaths import BATCH, NotReached, die, is_in_company
from crash.judge import Verdict, judge
from crash.operating import all_failed
from crash.points import Point
from crash.processes import Program, TooLate, until
from crash.scene import LEASE, Scene
from pillarbox.message import State
from pillarbox.protocols import Selection, Store

__all__ = ["PATIENCE", "Result", "play"]

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
        scene.operate(lambda store: all_failed(store, story.action, batch=BATCH))
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
