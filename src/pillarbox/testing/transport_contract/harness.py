"""What a transport must be given so that the contract can be run on it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest

from pillarbox.cloudevents import CloudEvent
from pillarbox.message import Message
from pillarbox.protocols import Transport

__all__ = ["TransportHarness"]


class TransportHarness(ABC):
    """One opened transport, and a far side that is real, empty, and can be made to fail.

    Ways to fail that a far side does not have are left out, and the tests that need them are skipped. Closes everything
    when its fixture ends.
    """

    transport: Transport

    @abstractmethod
    async def received(self) -> Sequence[CloudEvent]:
        """What the far side really took, in order: read there, from what came over the wire.

        `pillarbox.cloudevents.read` makes an event of it. What was refused is not in it.
        """

    def fit(self, message: Message) -> Message:
        """The message, changed where the far side can only take some: another topic, a smaller payload."""
        return message

    async def refuse_next(self) -> None:
        """The far side takes not the next message, but would take it later."""
        pytest.skip("This far side cannot be made to refuse a message.")

    async def reject_next(self, message: Message) -> Message:
        """The far side will never take the next message; returns what to send as such: this one, or one like it."""
        pytest.skip("This far side cannot be made to reject a message.")

    async def cut_next(self) -> None:
        """The connection breaks when the next message is under way, before it is answered."""
        pytest.skip("The connection to this far side cannot be broken.")

    async def go_down(self) -> None:
        """The far side is away: nobody can connect, and what was connected is so no longer."""
        pytest.skip("This far side is never away.")

    async def come_back(self) -> None:
        """It is there again, and answers also what it let hang."""
        pytest.skip("This far side is never away.")

    async def hang(self) -> asyncio.Event:
        """The far side takes no message and answers none, until `come_back`. The event is set when one came in."""
        pytest.skip("This far side cannot be made to hang.")
