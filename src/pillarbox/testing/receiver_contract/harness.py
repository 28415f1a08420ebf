"""What a receiver must be given so that the contract can be run on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pytest

from pillarbox.message import Message
from pillarbox.protocols import Receiver

__all__ = ["ReceiverHarness"]


class ReceiverHarness(ABC):
    """One opened receiver over a broker that is real and empty.

    Ways to fail that a broker does not have are left out, and the tests that need them are skipped. Closes everything
    when its fixture ends.
    """

    receiver: Receiver

    @abstractmethod
    async def publish(self, message: Message) -> None:
        """Send a message as Pillarbox's own transport does. Returns when the broker has it, or it is on its way."""

    @abstractmethod
    async def publish_plain(self, headers: Mapping[str, str], body: bytes) -> None:
        """Send what some other producer would: with native headers, and no CloudEvent unless they make one."""

    async def another(self) -> Receiver:
        """Another opened receiver of the same consumer: they share the work."""
        pytest.skip("There is one receiver alone.")

    async def die(self) -> None:
        """The receiver's process dies: its connection is gone, and it said nothing."""
        pytest.skip("The connection of this receiver cannot be broken.")

    async def go_down(self) -> None:
        """The broker is away: nobody can connect, and what was connected is so no longer."""
        pytest.skip("This broker is never away.")

    async def come_back(self) -> None:
        """It is there again, with all it had."""
        pytest.skip("This broker is never away.")
