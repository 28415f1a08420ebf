"""One answer per message, in the same order, and `delivered` only on the far side's word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.testing.transport_contract.arrange import batch, deliver, send_all, taken_ids
from pillarbox.testing.transport_contract.harness import TransportHarness

__all__ = ["AnsweringContract"]

_AT_ONCE = 20


async def _answers_are_true(
    harness: TransportHarness, messages: Sequence[Message], outcomes: Sequence[Outcome]
) -> None:
    assert len(outcomes) == len(messages)
    taken = await taken_ids(harness)
    for message, outcome in zip(messages, outcomes, strict=True):
        assert outcome.delivered == (str(message.message_id) in taken)


class AnsweringContract:
    """What `Transport.send` answers."""

    async def test_a_message_is_delivered(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        assert await harness.transport.send([message]) == [Outcome(delivered=True)]
        assert await taken_ids(harness) == {str(message.message_id)}

    async def test_nothing_is_answered_for_nothing(self, harness: TransportHarness) -> None:
        assert list(await harness.transport.send([])) == []
        assert await harness.received() == []

    async def test_every_message_is_answered_for(self, harness: TransportHarness) -> None:
        messages = batch(harness)
        assert await send_all(harness, messages) == [Outcome(delivered=True)] * len(messages)
        assert await taken_ids(harness) == {str(message.message_id) for message in messages}

    async def test_a_batch_arrives_in_order(self, harness: TransportHarness) -> None:
        messages = batch(harness)[: harness.transport.features.batch]
        await harness.transport.send(messages)
        assert [event.message_id for event in await harness.received()] == [str(one.message_id) for one in messages]

    async def test_a_refused_message_is_not_delivered(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        await harness.refuse_next()
        (outcome,) = await harness.transport.send([message])
        assert (outcome.delivered, outcome.rejected) == (False, False)
        assert outcome.error
        assert await harness.received() == []

    async def test_a_refused_message_hurts_only_itself(self, harness: TransportHarness) -> None:
        messages = batch(harness)
        await harness.refuse_next()
        outcomes = await send_all(harness, messages)
        assert [outcome.delivered for outcome in outcomes].count(False) == 1
        await _answers_are_true(harness, messages, outcomes)

    async def test_a_refused_message_can_be_delivered_later(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        await harness.refuse_next()
        await harness.transport.send([message])
        await deliver(harness, message)
        assert [event.message_id for event in await harness.received()] == [str(message.message_id)]

    async def test_a_rejected_message_says_so(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        (outcome,) = await harness.transport.send([await harness.reject_next(message)])
        assert (outcome.delivered, outcome.rejected) == (False, True)
        assert outcome.error
        assert await harness.received() == []

    async def test_a_rejected_message_hurts_only_itself(self, harness: TransportHarness) -> None:
        first, *others = batch(harness)
        messages = [await harness.reject_next(first), *others]
        outcomes = await send_all(harness, messages)
        assert [outcome.rejected for outcome in outcomes].count(True) == 1
        await _answers_are_true(harness, messages, outcomes)

    async def test_sends_at_once_are_each_answered_for(self, harness: TransportHarness) -> None:
        messages = batch(harness, _AT_ONCE)
        await harness.refuse_next()
        answers = await asyncio.gather(*(harness.transport.send([message]) for message in messages))
        outcomes = [outcome for answer in answers for outcome in answer]
        assert [outcome.delivered for outcome in outcomes].count(False) == 1
        await _answers_are_true(harness, messages, outcomes)
