"""Somebody dies: a relay, a writer or an operator, where it was laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from proof.crash.points import Point
from proof.crash.requests import OperatorOrder, WriterOrder
from proof.crash.scene import Scene
from proof.kill_points import Trap
from proof.messages import WRITER
from proof.processes import Program, TooLate, until

__all__ = ["BATCH", "NotReached", "die", "is_in_company"]

BATCH: Final = 2
"""Parcels in a writer's transaction, and messages in an operator's batch."""
_BUSY: Final = 3
"""So many arrivals show that a relay is at work."""


class NotReached(Exception):
    """Nobody died where somebody should have. The text says what happened instead."""


class Died(msgspec.Struct, frozen=True):
    """When it was, who goes on if anybody is there, and how many messages were failed then."""

    at: int
    """On the steady clock, in nanoseconds."""
    survivor: Program | None = None
    left: int = 0


def die(scene: Scene, *, nth: int, patience: float) -> Died:
    """Begin the story, and wait for its death; `NotReached` or `TooLate` if it does not come."""
    return _DEATHS[scene.story.who](scene, nth, patience)


def is_in_company(scene: Scene, nth: int) -> bool:
    """Whether another relay is at work when one dies."""
    return scene.story.who == "relay" and nth > 1


def _relay_dies(scene: Scene, nth: int, patience: float) -> Died:
    if is_in_company(scene, nth):
        return _in_company(scene, nth, patience)
    scene.load()
    for point in scene.story.before:
        _victim(scene, point, 1, patience)
    scene.write(scene.story.between)
    for _ in range(scene.story.deaths - 1):
        _victim(scene, scene.point, nth, patience)
    trap = scene.trap(scene.point, nth)
    victim = scene.relay(trap=trap)
    newcomer = _joining(scene, victim, patience) if scene.story.joins else None
    if scene.story.stops:
        until(lambda: len(scene.arrivals.read()) >= _BUSY, within=patience, what="messages arrive")
        victim.terminate()
    return Died(_died(scene, victim, trap, patience), newcomer)


def _in_company(scene: Scene, nth: int, patience: float) -> Died:
    """Two relays share the lanes before there is anything to deliver."""
    other = scene.relay()
    scene.wait_owner(other)
    trap = scene.trap(scene.point, nth)
    victim = scene.relay(trap=trap)
    until(lambda: scene.owns_some(victim) or victim.has_ended, within=patience, what="lanes are shared")
    scene.load()
    return Died(_died(scene, victim, trap, patience), other)


def _joining(scene: Scene, owner: Program, patience: float) -> Program:
    """Another relay comes when one owns all lanes."""
    until(lambda: scene.owns_all(owner) or owner.has_ended, within=patience, what="lanes are taken")
    return scene.relay()


def _victim(scene: Scene, point: Point, nth: int, patience: float) -> None:
    trap = scene.trap(point, nth)
    _died(scene, scene.relay(trap=trap), trap, patience)


def _writer_dies(scene: Scene, nth: int, patience: float) -> Died:
    survivor = scene.relay()
    scene.load()
    trap = scene.trap(scene.point, nth)
    order = WriterOrder(
        backend=scene.backend, store=scene.place.url(), schema=scene.place.names.schema, trap=trap,
        key=WRITER, transactions=nth + 1, parcels=BATCH,
    )  # fmt: skip
    return Died(_died(scene, scene.start(order), trap, patience), survivor)


def _operator_dies(scene: Scene, nth: int, patience: float) -> Died:
    survivor = scene.relay()
    scene.load()
    failed = len(scene.story.redriven)
    until(lambda: scene.failed() == failed, within=patience, what=f"{failed} messages are failed")
    trap = scene.trap(scene.point, nth)
    order = OperatorOrder(
        backend=scene.backend, store=scene.place.url(), schema=scene.place.names.schema, trap=trap,
        action=scene.story.action, batch=BATCH,
    )  # fmt: skip
    at = _died(scene, scene.start(order), trap, patience)
    return Died(at, survivor, scene.failed())


_DEATHS: Final[Mapping[str, Callable[[Scene, int, float], Died]]] = MappingProxyType(
    {"relay": _relay_dies, "writer": _writer_dies, "operator": _operator_dies}
)


def _died(scene: Scene, victim: Program, trap: Trap, patience: float) -> int:
    """Wait for the death. Answers when it was."""
    try:
        until(lambda: victim.has_ended, within=patience, what=f"it comes to {trap.point}")
    except TooLate as late:
        raise NotReached(str(late)) from None
    death = scene.death(trap)
    if death is None or not victim.was_killed:
        raise NotReached(f"it ended with code {victim.exit_code} before it came to {trap.point}")
    return death.at
