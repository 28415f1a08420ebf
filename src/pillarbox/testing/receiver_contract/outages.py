"""A broker that is away is said to be, and found again; a consumer that dies loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.errors import TransportUnavailable
from pillarbox.testing.receiver_contract.arrange import PATIENCE, ids, nothing_more, published, take
from pillarbox.testing.receiver_contract.harness import ReceiverHarness

__all__ = ["OutageContract"]


class OutageContract:
    """`TransportUnavailable`, and the way back."""

    async def test_ping_reaches_the_broker(self, harness: ReceiverHarness) -> None:
        await harness.receiver.ping()

    async def test_what_a_dead_consumer_had_comes_to_another(self, harness: ReceiverHarness) -> None:
        """An acknowledgement may have been on its way when it died: only what it did not acknowledge must come."""
        made = await published(harness, 3)
        first, *rest = await take(harness.receiver, 3)
        await harness.receiver.acknowledge(first)
        other = await harness.another()
        await harness.die()
        came: set[str] = set()
        while not came.issuperset(ids(rest)):
            for received in await take(other, 1):
                assert received.redelivered
                await other.acknowledge(received)
                came.update(ids([received]))
        assert came <= {str(message.message_id) for message in made}

    async def test_what_is_acknowledged_too_late_does_no_harm(self, harness: ReceiverHarness) -> None:
        """The connection it came by is gone: it comes again, and that one can be acknowledged."""
        made = await published(harness, 1)
        (old,) = await take(harness.receiver, 1)
        await harness.go_down()
        await harness.come_back()
        (again,) = await take(harness.receiver, 1)
        assert ids([again]) == [str(made[0].message_id)]
        await harness.receiver.acknowledge(old)
        await harness.receiver.give_back(old)
        await harness.receiver.acknowledge(again)
        await nothing_more(harness.receiver)

    async def test_a_broker_that_is_away_is_unavailable(self, harness: ReceiverHarness) -> None:
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await _until_unavailable(harness)
        with pytest.raises(TransportUnavailable):
            await harness.receiver.ping()

    async def test_who_waits_is_told_that_the_broker_went(self, harness: ReceiverHarness) -> None:
        waiting = asyncio.create_task(_until_unavailable(harness))
        await asyncio.sleep(0.1)  # so that it does wait
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            async with asyncio.timeout(PATIENCE):
                await waiting

    async def test_it_finds_its_way_back(self, harness: ReceiverHarness) -> None:
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await _until_unavailable(harness)
        await harness.come_back()
        made = await published(harness, 2)
        assert ids(await take(harness.receiver, 2)) == [str(message.message_id) for message in made]

    async def test_opening_finds_nobody(self, harness: ReceiverHarness) -> None:
        await harness.receiver.close()
        await harness.go_down()
        with pytest.raises(TransportUnavailable):
            await harness.receiver.open()

    async def test_closing_twice_is_harmless(self, harness: ReceiverHarness) -> None:
        await harness.receiver.close()
        await harness.receiver.close()

    async def test_what_is_closed_is_unavailable(self, harness: ReceiverHarness) -> None:
        await harness.receiver.close()
        with pytest.raises(TransportUnavailable):
            await harness.receiver.ping()


async def _until_unavailable(harness: ReceiverHarness) -> None:
    while True:
        await harness.receiver.receive(limit=1)
