"""What a broker must provide so that every fault can be injected into it.

A module here has a class that derives from `BrokerUnderTest`, and an entry in `tests.support.faults.BROKERS`.
`tests.support.faults.runner` does the rest: for each fault a real relay over a SQLite store delivers some 200 messages
of 20 keys to a broker that runs for this fault alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Final, NamedTuple, Protocol

import msgspec

from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy

__all__ = ["NETWORK", "Arrival", "BrokerUnderTest", "Draft", "Fault", "RunningBroker", "parse_arrival"]


class Fault(Enum):
    """A fault. The value is its name in the table."""

    CUT_BEFORE = "cut before the answer"
    """The connection breaks with messages under way that the broker never received."""
    CUT_AFTER = "cut after the answer"
    """The broker accepted and acknowledged them; its answer is lost and the connection breaks."""
    RESTART = "restart"
    HANG = "hang"
    """No byte is transferred, for longer than the transport's timeout."""
    UNROUTABLE = "unroutable"
    """Three messages have an address that does not exist."""
    REFUSED = "refused"
    """The broker refuses messages for a while: full, throttled, no permission."""
    TOO_LARGE = "too large"
    """Three messages are larger than the broker accepts."""


NETWORK: Final = frozenset({Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.RESTART, Fault.HANG})
"""Faults of the network: they must cost messages no attempts, or nearly none."""


class Draft(msgspec.Struct, frozen=True):
    """A message to be published."""

    topic: str
    key: str
    number: int
    padding: int = 0
    """Bytes to be added to the payload."""

    @property
    def payload(self) -> bytes:
        """JSON that `parse_arrival` reads."""
        return msgspec.json.encode({"key": self.key, "number": self.number, "padding": "x" * self.padding})


class Arrival(NamedTuple):
    """A message as a plain client read it from the broker."""

    key: str
    number: int
    message_id: str


def parse_arrival(body: bytes | str, message_id: str) -> Arrival:
    """Parse a body, the payload in binary mode; the message id is from where the broker's protocol has it."""
    members = msgspec.json.decode(body)
    return Arrival(members["key"], members["number"], message_id)


class RunningBroker(Protocol):
    """A real broker behind a proxy, with addresses that only this fault uses.

    Derive from it; methods that only faults need which do not apply can be left out.
    """

    topic: str
    """What the messages are published to. The topology for it exists."""
    proxy: FaultProxy
    """Every byte between the transport and the broker goes through it."""

    def make_transport(self) -> Transport:
        """Make a transport through the proxy, not open yet. Its own timeout is about a second."""
        raise NotImplementedError

    async def read_received(self) -> Sequence[Arrival]:
        """Return all that arrived, duplicates too, in order of arrival.

        A plain client reads it, past the proxy. Called once, after the last message was delivered.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop the broker, if possible with SIGKILL. Return when it has ended."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start it again at the same port, with what it had stored. Returns when it answers."""
        raise NotImplementedError

    async def refuse(self) -> None:
        """Refuse messages from now on."""
        raise NotImplementedError

    async def allow(self) -> None:
        """Accept them again."""
        raise NotImplementedError

    def spoil(self, fault: Fault, draft: Draft) -> Draft:
        """Return the message changed so that the broker does not accept it: another topic, or padding."""
        raise NotImplementedError


class BrokerUnderTest(Protocol):
    """One broker of the table. Derive from it."""

    name: str
    """As people write it: `RabbitMQ`."""
    exempt: Mapping[Fault, str] = {}
    """Faults that do not apply, and why, as a sentence for a footnote."""
    spoils: frozenset[Fault] = frozenset({Fault.UNROUTABLE, Fault.TOO_LARGE})
    """Faults that lie in three messages (`RunningBroker.spoil`), which are then to be failed. Add REFUSED if the broker
    refuses single messages for good; else `RunningBroker.refuse` and `allow` are called, and nothing may fail."""

    def run(self, fault: Fault) -> AbstractAsyncContextManager[RunningBroker]:
        """A new one for this fault, removed when the block ends. A missing server ends the test by
        `tests.support.servers.missing`."""
        raise NotImplementedError
