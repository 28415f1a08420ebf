"""What is acknowledged never comes again; what is not, does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from pillarbox.message import Message
from pillarbox.protocols import Received
from pillarbox.testing.receiver_contract.arrange import PATIENCE, ids, messages, nothing_more, published, take
from pillarbox.testing.receiver_contract.harness import ReceiverHarness

__all__ = ["AcknowledgingContract"]


class AcknowledgingContract:
    """`Receiver.acknowledge` and `give_back`."""

    async def test_what_is_acknowledged_does_not_come_again(self, harness: ReceiverHarness) -> None:
        await published(harness, 3)
        for received in await take(harness.receiver, 3):
            await harness.receiver.acknowledge(received)
        await harness.receiver.close()
        await harness.receiver.open()
        await nothing_more(harness.receiver)

    async def test_what_is_not_acknowledged_comes_again_after_closing(self, harness: ReceiverHarness) -> None:
        made = await published(harness, 3)
        first, *_ = await take(harness.receiver, 3)
        await harness.receiver.acknowledge(first)
        await harness.receiver.close()
        await harness.receiver.open()
        again = await take(harness.receiver, 2)
        assert ids(again) == [str(message.message_id) for message in made[1:]]
        assert all(one.redelivered for one in again)

    async def test_acknowledging_out_of_order_loses_nothing(self, harness: ReceiverHarness) -> None:
        """Different keys are handled at once, and the later may be done first."""
        made = await published(harness, 3)
        first, _, third = await take(harness.receiver, 3)
        await harness.receiver.acknowledge(third)
        await harness.receiver.acknowledge(first)
        await harness.receiver.close()
        await harness.receiver.open()
        again = await take(harness.receiver, 1)
        assert ids(again) == [str(made[1].message_id)]

    async def test_what_is_given_back_comes_again(self, harness: ReceiverHarness) -> None:
        made = await published(harness, 3)
        taken = await take(harness.receiver, 3)
        for received in reversed(taken):
            await harness.receiver.give_back(received)
        again = await take(harness.receiver, 3)
        assert sorted(ids(again)) == sorted(str(message.message_id) for message in made)

    async def test_cancelling_loses_nothing(self, harness: ReceiverHarness) -> None:
        waiting = asyncio.create_task(_received(harness))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        made = await published(harness, 3)
        assert ids(await take(harness.receiver, 3)) == [str(message.message_id) for message in made]

    async def test_cancelling_over_and_over_loses_nothing(self, harness: ReceiverHarness) -> None:
        """Also not what comes at the same moment."""
        made = messages(30)
        publishing = asyncio.create_task(_published(harness, made))
        got: list[Received] = []
        async with asyncio.timeout(PATIENCE):
            while len(got) < len(made):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        got += await harness.receiver.receive(limit=4)
        await publishing
        assert ids(got) == [str(message.message_id) for message in made]

    async def test_several_share_the_work(self, harness: ReceiverHarness) -> None:
        made = await published(harness, 10)
        first = await take(harness.receiver, 1, limit=1)
        other = await harness.another()
        for received in first:
            await harness.receiver.acknowledge(received)
        seen = set(ids(first))
        await harness.receiver.close()
        while len(seen) < len(made):
            for received in await take(other, 1):
                await other.acknowledge(received)
                seen.add(*ids([received]))
        assert seen == {str(message.message_id) for message in made}


async def _published(harness: ReceiverHarness, made: Sequence[Message]) -> None:
    for message in made:
        await harness.publish(message)


async def _received(harness: ReceiverHarness) -> None:
    await harness.receiver.receive(limit=1)
