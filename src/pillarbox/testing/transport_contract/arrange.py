"""What the tests begin with and look at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from pillarbox.cloudevents import CloudEvent, of
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Outcome
from pillarbox.testing.samples import sample
from pillarbox.testing.transport_contract.harness import TransportHarness

__all__ = ["PATIENCE", "batch", "deliver", "in_time", "same", "send_all", "taken_ids"]

PATIENCE: Final = 30.0
"""Seconds after which a test gives up. None waits for it to pass."""


def batch(harness: TransportHarness, count: int = 5) -> list[Message]:
    """Different messages of different keys."""
    return [harness.fit(sample(key=f"key-{number}", payload=b'{"number": %d}' % number)) for number in range(count)]


async def send_all(harness: TransportHarness, messages: Sequence[Message]) -> list[Outcome]:
    """Send as a relay does: together what fits into one send, and all sends at once."""
    size = harness.transport.features.batch
    parts = [messages[start : start + size] for start in range(0, len(messages), size)]
    answers = await asyncio.gather(*(harness.transport.send(part) for part in parts))
    return [outcome for answer in answers for outcome in answer]


async def deliver(harness: TransportHarness, message: Message) -> None:
    """Send one that must be delivered, perhaps after the transport has found its way back to the far side."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                (outcome,) = await harness.transport.send([message])
            except TransportUnavailable:
                await asyncio.sleep(0.05)
                continue
            assert outcome == Outcome(delivered=True)
            return


async def in_time(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


async def taken_ids(harness: TransportHarness) -> set[str]:
    """The ids of what the far side has."""
    return {event.message_id for event in await harness.received()}


def same(got: CloudEvent, message: Message) -> None:
    """Assert that everything of the message arrived. Headers that the way adds do not matter, nor their letter case."""
    expected = of(message)
    for name in set(CloudEvent.__struct_fields__) - {"headers", "extensions"}:
        assert (name, getattr(got, name)) == (name, getattr(expected, name))
    assert dict(_lowered(expected.headers.items())).items() <= dict(_lowered(got.headers.items())).items()


def _lowered(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((name.lower(), value) for name, value in headers)
