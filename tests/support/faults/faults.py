"""What a broker must bring so that every fault can be tried on it.

A module `tests/support/faults/<name>.py` has a function `broker()` that returns a `BrokerUnderTest`, and its name
stands in `tests.support.faults.BROKERS`. `tests.support.faults.trying` does the rest: for each fault a real relay over
a SQLite store delivers some 200 messages of 20 keys to a new far side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, NamedTuple, Protocol

import msgspec

from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy

__all__ = ["NETWORK", "Arrival", "BrokerUnderTest", "Draft", "FarSide", "Fault", "arrival"]


class Fault(Enum):
    """What goes wrong. The value is the word in the table."""

    CUT_BEFORE = "cut before the answer"
    """The connection breaks with messages under way that the broker never saw."""
    CUT_AFTER = "cut after the answer"
    """The broker took them and said so; its answer is lost and the connection breaks."""
    RESTART = "restart"
    HANG = "hang"
    """Not a byte moves, for longer than the transport's timeout."""
    UNROUTABLE = "unroutable"
    """Three messages have an address that leads nowhere."""
    REFUSED = "refused"
    """The broker says no for a while: full, throttled, no permission."""
    TOO_LARGE = "too large"
    """Three messages are larger than the broker takes."""


NETWORK: Final = frozenset({Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.RESTART, Fault.HANG})
"""Nobody's fault but the line's: these must cost no message anything, or nearly."""


class Draft(msgspec.Struct, frozen=True):
    """A message to be published."""

    topic: str
    key: str
    number: int
    padding: int = 0
    """Bytes to be added to the payload."""

    @property
    def payload(self) -> bytes:
        """JSON that `arrival` reads."""
        return msgspec.json.encode({"key": self.key, "number": self.number, "padding": "x" * self.padding})


class Arrival(NamedTuple):
    """A message as a plain client found it at the far side."""

    key: str
    number: int
    message_id: str


def arrival(body: bytes | str, message_id: str) -> Arrival:
    """What arrived, from its body (the payload of binary mode) and from the native place of the message id."""
    members = msgspec.json.decode(body)
    return Arrival(members["key"], members["number"], message_id)


class FarSide(Protocol):
    """A real broker, with addresses that only this fault uses, behind a proxy. Derive from it; what a fault that does
    not apply would need can be left out."""

    topic: str
    """What the messages are published to. The topology for it exists."""
    proxy: FaultProxy
    """Every byte between the transport and the broker goes through it."""

    def transport(self) -> Transport:
        """A new transport through the proxy, not open yet. Its own timeout is about a second."""
        raise NotImplementedError

    async def received(self) -> Sequence[Arrival]:
        """All that arrived, repeats too, in order of arrival: read by a plain client that does not use the proxy.

        Asked once, after the last message was delivered.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """End the broker, better kill it. Returns when it is gone."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start it again at the same port, with what it had stored. Returns when it answers."""
        raise NotImplementedError

    async def refuse(self) -> None:
        """Take no message, or not all, from now on."""
        raise NotImplementedError

    async def allow(self) -> None:
        """Take them again."""
        raise NotImplementedError

    def spoiled(self, fault: Fault, draft: Draft) -> Draft:
        """The same message so that the broker will not take it: another topic, or padding."""
        raise NotImplementedError


class BrokerUnderTest(Protocol):
    """One broker of the table. Derive from it."""

    name: str
    """As people write it: `RabbitMQ`."""
    exempt: Mapping[Fault, str] = {}
    """Faults that do not apply, and why, as a sentence for a footnote."""
    spoils: frozenset[Fault] = frozenset({Fault.UNROUTABLE, Fault.TOO_LARGE})
    """Faults that lie in three messages (`FarSide.spoiled`), which are then to be failed. Add REFUSED if the broker
    refuses single messages for good; else `FarSide.refuse` and `allow` are called, and nothing may fail."""

    def far_side(self, fault: Fault) -> AbstractAsyncContextManager[FarSide]:
        """A new one for this fault, removed when the block ends. A missing server ends the test by
        `tests.support.servers.missing`."""
        raise NotImplementedError
