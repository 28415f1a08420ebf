"""The order of the duties `send` and `retry`, over a backlog of both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pillarbox.contracts.store import Selection
from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, State
from pillarbox.relay.settings import Duty
from tests.support.relay_behaviour.scene import DELIVERED, Scene, Script, until

_MANY = 90
REJECTED = Outcome(delivered=False, error="never as told", rejected=True)


def _answer(message: Message) -> Outcome:
    """Deliver one of three, so that the others are no outage."""
    return DELIVERED if int(message.payload) % 3 == 0 else REJECTED


@pytest.mark.parametrize("keys", [7, 100, None])
async def test_a_backlog_of_retries_is_empty_before_new_messages_go(scene: Scene, keys: int | None) -> None:
    """With many keys each retry is due by itself; with few the rest of a key follows its first."""
    sink = Script(_answer)
    await scene.put(*[(number, f"old-{number % keys}" if keys else None) for number in range(_MANY)])
    async with scene.relay(sink):
        await until(scene.is_drained)
    sink.taken.clear()
    sink.answer = lambda _: DELIVERED
    await scene.store.redrive(Selection(states=[State.FAILED]), by="anna", limit=1_000)
    await scene.put(*[(_MANY + number, f"new-{number % 50}") for number in range(_MANY)])
    settings = scene.quick(duties=[Duty.RETRY, Duty.SEND])
    async with scene.relay(sink, settings=settings, window=40, batch=20):
        await until(lambda: len(sink.taken) == _MANY * 2 // 3 + _MANY)
    assert _list_new_before_old(sink.taken) == []


def _list_new_before_old(taken: Sequence[Message]) -> list[int]:
    numbers = [int(message.payload) for message in taken]
    last_old = max(at for at, number in enumerate(numbers) if number < _MANY)
    return [number for number in numbers[:last_old] if number >= _MANY]
