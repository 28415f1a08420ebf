"""What the tests begin with and look at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Received, Receiver
from pillarbox.receiving import event_of
from pillarbox.testing.receiver_contract.harness import ReceiverHarness
from pillarbox.testing.samples import sample

__all__ = ["PATIENCE", "ids", "messages", "nothing_more", "published", "take"]

PATIENCE: Final = 40.0
"""Seconds after which a test gives up. None waits for it to pass."""
_QUIET: Final = 0.5
"""Seconds in which a broker would have delivered what it has."""


def messages(count: int) -> list[Message]:
    """Different messages of different keys."""
    return [sample(key=f"key-{number}", payload=b'{"number": %d}' % number) for number in range(count)]


async def published(harness: ReceiverHarness, count: int) -> list[Message]:
    """So many messages, at the broker."""
    made = messages(count)
    for message in made:
        await harness.publish(message)
    return made


async def take(receiver: Receiver, count: int, *, limit: int = 100) -> list[Received]:
    """The next messages, as many as asked for, through whatever time the broker needs to find us again."""
    taken: list[Received] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            try:
                taken += await receiver.receive(limit=min(limit, count - len(taken)))
            except TransportUnavailable:
                await asyncio.sleep(0.05)
    return taken


async def nothing_more(receiver: Receiver) -> None:
    """Nothing waits for this receiver."""
    try:
        async with asyncio.timeout(_QUIET):
            came = await receiver.receive(limit=10)
    except TimeoutError:
        return
    raise AssertionError(f"came: {ids(came)}")


def ids(received: Sequence[Received]) -> list[str]:
    """The message ids, in order."""
    return [event_of(one).message_id for one in received]
