"""Runs of a key through the real relay, on every store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from pillarbox.contracts.transport import Outcome
from pillarbox.message import Message, State
from tests.support.relay_behaviour.scene import DELIVERED, Scene, Script, as_told, quick_retry, until

REFUSED = Outcome(delivered=False, error="refused as told")
REJECTED = Outcome(delivered=False, error="never as told", rejected=True)
MANY = 60


async def test_a_hot_key_goes_in_few_sends(scene: Scene) -> None:
    sink = Script(runs=True)
    await scene.put(*[(number, "hot") for number in range(MANY)])
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sink.numbers() == list(range(MANY))
    assert sink.sends < MANY / 4


@pytest.mark.usefixtures("short_outages")
async def test_a_hot_key_arrives_in_order_through_failures_and_several_relays(scene: Scene) -> None:
    failures = dict.fromkeys(range(0, MANY, 7), 2)

    def sometimes(message: Message) -> Outcome:
        number = int(message.payload)
        if failures.get(number, 0):
            failures[number] -= 1
            return REFUSED
        return DELIVERED

    sink = Script(sometimes, batch=20, runs=True)
    await scene.put(*[(number, f"key-{number % 2}") for number in range(MANY)])
    forever = quick_retry(attempts=None)
    async with scene.relay(sink, retry=forever), scene.relay(sink, retry=forever):
        await until(scene.is_drained)
    assert sorted(set(sink.numbers())) == list(range(MANY))
    assert all(ids == sorted(ids) for ids in sink.by_key().values())


async def test_what_follows_a_message_that_fails_was_not_tried(scene: Scene) -> None:
    """It has no attempt, no error and no line in the journal."""
    sink = Script(as_told({3: REJECTED}), runs=True)
    await scene.put(*[(number, "hot") for number in range(8)])
    async with scene.relay(sink):
        await until(scene.is_drained)
    assert sink.numbers() == [0, 1, 2, 4, 5, 6, 7]
    (failed,) = await scene.find(State.FAILED)
    others = await scene.find(State.DELIVERED)
    assert (failed.payload.strip(), failed.attempts) == (b"3", 1)
    assert {(one.attempts, one.last_error) for one in others} == {(0, None)}
    for one in others:
        assert [entry.error for entry in await scene.store.journal(message_id=one.message_id) if entry.error] == []


class _Overtaking(Script):
    """Goes on with a run behind a message that it did not take."""

    def _answer_runs(self, messages: Sequence[Message]) -> list[Outcome]:
        return [self.answer(message) for message in messages]


async def test_a_transport_that_breaks_the_promise_loses_nothing_and_is_told_of(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    refused = {"2": 1}

    def once(message: Message) -> Outcome:
        number = message.payload.decode().strip()
        if refused.get(number):
            refused[number] -= 1
            return REFUSED
        return DELIVERED

    sink = _Overtaking(once, runs=True)
    await scene.put(*[(number, "hot") for number in range(6)])
    with caplog.at_level(logging.ERROR, logger="pillarbox.relay"):
        async with scene.relay(sink):
            await until(scene.is_drained)
    assert sink.numbers() == [0, 1, 3, 4, 5, 2, 3, 4, 5]
    assert "broke its promise for runs" in caplog.text
