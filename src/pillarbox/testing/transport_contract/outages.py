"""A far side that is away costs nothing, is said to be away, and is found again."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.testing.transport_contract.arrange import PATIENCE, batch, deliver, in_time, taken_ids
from pillarbox.testing.transport_contract.harness import TransportHarness

__all__ = ["OutageContract"]


class OutageContract:
    """`TransportUnavailable`, and the way back."""

    async def test_ping_reaches_the_far_side(self, harness: TransportHarness) -> None:
        await harness.transport.ping()
        assert await harness.received() == []

    async def test_a_far_side_that_is_away_is_unavailable(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        await harness.go_down()
        with pytest.raises(TransportUnavailable) as away:
            await harness.transport.send([message])
        assert str(away.value)
        await harness.come_back()
        assert await harness.received() == []

    async def test_what_could_not_be_sent_is_not_blamed(self, harness: TransportHarness) -> None:
        """Once the transport knows that nobody is there, no message can be the reason."""
        (message,) = batch(harness, 1)
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.ping()
        with pytest.raises(TransportUnavailable) as away:
            await harness.transport.send([message])
        assert not away.value.mid_send

    async def test_ping_finds_nobody(self, harness: TransportHarness) -> None:
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.ping()

    async def test_opening_finds_nobody(self, harness: TransportHarness) -> None:
        await harness.transport.close()
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.open()

    async def test_opening_again_works_when_the_far_side_is_back(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        await harness.transport.close()
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.open()
        await harness.come_back()
        await harness.transport.open()
        await deliver(harness, message)

    async def test_it_finds_its_way_back(self, harness: TransportHarness) -> None:
        before, during, after = batch(harness, 3)
        await deliver(harness, before)
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.transport.send([during])
        await harness.come_back()
        await deliver(harness, after)
        taken = await taken_ids(harness)
        assert str(after.message_id) in taken
        assert str(during.message_id) not in taken

    async def test_a_connection_that_breaks_under_way_is_said_to(self, harness: TransportHarness) -> None:
        broken, next_one = batch(harness, 2)
        await harness.cut_next()
        with pytest.raises(TransportUnavailable) as cut:
            await harness.transport.send([broken])
        assert cut.value.mid_send
        await deliver(harness, next_one)

    async def test_cancelling_a_send_is_clean(self, harness: TransportHarness) -> None:
        stopped, next_one = batch(harness, 2)
        arrived = await harness.hang()
        sending = asyncio.create_task(_sent(harness, stopped))
        await in_time(arrived)
        sending.cancel()
        async with asyncio.timeout(PATIENCE):
            (ended,) = await asyncio.gather(sending, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError)
        await harness.come_back()
        await deliver(harness, next_one)
        assert str(next_one.message_id) in await taken_ids(harness)

    async def test_what_hangs_does_not_hold_up_what_is_cancelled_beside_it(self, harness: TransportHarness) -> None:
        waiting, stopped = batch(harness, 2)
        arrived = await harness.hang()
        first = asyncio.create_task(_sent(harness, waiting))
        second = asyncio.create_task(_sent(harness, stopped))
        await in_time(arrived)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await harness.come_back()
        async with asyncio.timeout(PATIENCE):
            assert await first == [Outcome(delivered=True)]

    async def test_closing_twice_is_harmless(self, harness: TransportHarness) -> None:
        await harness.transport.close()
        await harness.transport.close()

    async def test_what_is_closed_is_unavailable(self, harness: TransportHarness) -> None:
        (message,) = batch(harness, 1)
        await harness.transport.close()
        with pytest.raises(TransportUnavailable):
            await harness.transport.send([message])
        with pytest.raises(TransportUnavailable):
            await harness.transport.ping()


async def _sent(harness: TransportHarness, message: Message) -> list[Outcome]:
    return list(await harness.transport.send([message]))
