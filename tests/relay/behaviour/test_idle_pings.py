"""A relay that has nothing to send finds out all the same that a destination went away, and that it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.errors import TransportUnavailable
from pillarbox.message import State
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings
from pillarbox.telemetry import Telemetry
from tests.support.relay_behaviour import scene as scenes
from tests.support.relay_behaviour.scene import LEASE, SHORT_LEASE, Scene, Script

OFTEN = timedelta(milliseconds=50)
PATIENCE = 120.0


async def until(true: Callable[[], Any]) -> None:
    await scenes.until(true, within=PATIENCE)


class Asked(Script):
    """Counts how often it is asked; may keep those who ask waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.pings = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def ping(self) -> None:
        self.pings += 1
        await self.answers.wait()
        await super().ping()


async def reachable(scene: Scene) -> Sequence[str]:
    """What the only relay says in the registry that it can reach."""
    registry = await scene.store.registry(lease=timedelta(hours=1))
    return [name for relay in registry.relays for name in relay.reachable]


def idle(scene: Scene, sink: Asked, *, lease: timedelta = SHORT_LEASE, telemetry: Telemetry | None = None) -> Relay:
    settings = DestinationSettings(name="sink", ping_interval=OFTEN)
    return Relay(
        scene.open_store(), [Destination(lambda: sink, settings)], settings=scene.quick(lease=lease),
        telemetry=telemetry,
    )  # fmt: skip


@pytest.mark.usefixtures("short_outages")
async def test_an_idle_relay_finds_out_and_tells(scene: Scene) -> None:
    sink = Asked()

    async def is_reached() -> bool:
        return "sink" in await reachable(scene)

    async def is_missed() -> bool:
        return bool(await reachable(scene)) and not await is_reached()

    async with idle(scene, sink):
        await until(is_reached)
        await until(lambda: sink.pings >= 2)
        sink.is_down = True
        await until(is_missed)
        sink.is_down = False
        await until(is_reached)
        await scene.put((1, "a"))
        await until(scene.is_drained)
    (message,) = await scene.find()
    assert (message.state, message.attempts, sink.sends) == (State.DELIVERED, 0, 1)


class FirstFails(Asked):
    """The first who asks waits until the answer is no; everybody else hears yes."""

    async def ping(self) -> None:
        self.pings += 1
        if self.pings == 1:
            await self.answers.wait()
            raise TransportUnavailable("it takes no such question")


class Listening(Telemetry):
    def __init__(self) -> None:
        self.opened: list[str] = []

    def on_breaker_opened(self, destination: str, *, reason: str, seconds: float) -> None:
        self.opened.append(reason)


async def test_an_answer_that_takes_its_time_holds_no_message_up_and_is_not_believed_then(scene: Scene) -> None:
    sink, listening = FirstFails(), Listening()
    sink.answers.clear()
    async with idle(scene, sink, lease=LEASE, telemetry=listening):
        await until(lambda: sink.pings == 1)
        await scene.put((1, "a"), (2, "b"))
        await until(scene.is_drained)
        sink.answers.set()
        await until(lambda: sink.pings >= 3)
        await scene.put((3, "c"))
        await until(scene.is_drained)
    assert sorted(sink.numbers()) == [1, 2, 3]
    assert listening.opened == []


async def test_an_answer_that_is_all_there_is_is_believed(scene: Scene) -> None:
    sink, listening = FirstFails(), Listening()
    async with idle(scene, sink, lease=LEASE, telemetry=listening):
        await until(lambda: sink.pings >= 3)
    assert listening.opened == ["it takes no such question"]


async def test_who_sends_is_not_asked_and_who_is_told_never_is_not_either(scene: Scene) -> None:
    busy, quiet = Asked(), Asked()
    async with scene.relay(busy, ping_interval=timedelta(hours=1)):
        await scene.put(*((number, f"k{number}") for number in range(50)))
        await until(scene.is_drained)
    async with scene.relay(quiet, ping_interval=timedelta.max):
        await scene.put((51, "a"))
        await until(scene.is_drained)
    assert (busy.pings, quiet.pings) == (0, 0)
