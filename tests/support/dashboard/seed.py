"""Fills a store with what a bad day leaves: for the tests of the dashboard's pages, and for its pictures.

Everything goes through the store's own calls, so it works on every store. The times are those of the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import msgspec

from pillarbox.cloudevents import HTTP, to_binary
from pillarbox.contracts.receiver import FallbackIdentity, IncomingMessage
from pillarbox.contracts.store import Claim, FailedOutcome, Fence, RelayInfo, Selection, Settlement, Store
from pillarbox.contracts.writer import Accept, Fail, InboxCommand
from pillarbox.decoding import encode_incoming
from pillarbox.message import PARTITIONS, Message, Names, State, Waits
from pillarbox.redaction import redact_line
from pillarbox.testing.samples import sample

__all__ = ["LEASE", "Filled", "Relaying", "RowWriter", "fill", "to_incoming"]

LEASE = timedelta(seconds=10)
NAMES = Names()


class RowWriter(Protocol):
    """Writes rows as an application and its consumer do."""

    async def insert(self, messages: Sequence[Message]) -> None: ...

    async def execute(self, command: InboxCommand[Any]) -> Any: ...


class Relaying:
    """A relay that owns all lanes of some destinations, and does what it is told."""

    def __init__(
        self, store: Store, *destinations: str, service: str = "shop", reachable: Sequence[str] | None = None
    ) -> None:
        self._store = store
        self._destinations = destinations
        self._number = 0
        self.info = RelayInfo(
            relay_id=uuid4(), service=service, host="web-1", pid=4711, version="0.9.0", destinations=list(destinations),
            reachable=list(destinations if reachable is None else reachable), labels={"region": "eu"},
        )  # fmt: skip
        self._fences: dict[str, Fence] = {}
        self.lease = LEASE

    async def start(self) -> None:
        await self._store.register(self.info, lease=LEASE)
        for name in self._destinations:
            lanes, _ = await self._store.take(
                self.info.relay_id, name, partitions=range(PARTITIONS), lease=LEASE, claim_number=self._number + 1
            )
            self._number += PARTITIONS
            self._fences[name] = Fence(self.info.relay_id, name, {lane.partition: lane.epoch for lane in lanes})

    async def renew(self) -> None:
        await self._store.renew(self.info.relay_id, lease=LEASE, reachable=self.info.reachable)

    async def _claim(self, destination: str, ids: Sequence[int], park: Sequence[Message] = ()) -> None:
        self._number += 1
        parked = {message.id: message.message_id for message in park}
        await self._store.claim(self._fences[destination], Claim(self._number, list(ids)), park=parked)

    async def deliver(self, destination: str, ids: Sequence[int]) -> None:
        await self._claim(destination, ids)
        await self._settle(destination, Settlement(delivered=list(ids), finished=[self._number]))

    async def fail(self, destination: str, ids: Sequence[int], error: str, *, attempts: int = 5) -> None:
        await self._claim(destination, ids)
        failures = [
            FailedOutcome(message_id=one, state=State.FAILED, attempts=attempts, error=error.replace("{id}", str(one)))
            for one in ids
        ]
        await self._settle(destination, Settlement(failures=failures, finished=[self._number]))

    async def retry(self, destination: str, ids: Sequence[int], error: str, *, delay: timedelta) -> None:
        await self._wait(destination, ids, error, waits=Waits.RETRY, delay=delay)

    async def hold(self, destination: str, ids: Sequence[int], error: str) -> None:
        await self._wait(destination, ids, error, waits=Waits.HELD, delay=None)

    async def skip(self, ids: Sequence[int]) -> None:
        """Close messages that no route took."""
        await self._claim("_skipped", ids)
        failures = [FailedOutcome(message_id=one, state=State.SKIPPED, error="no route matched") for one in ids]
        await self._settle("_skipped", Settlement(failures=failures, finished=[self._number]))

    async def park(self, destination: str, ids: Sequence[int]) -> None:
        found = await self._store.find(Selection(ids=list(ids)), limit=len(ids))
        await self._claim(destination, [], park=found)

    async def send(self, destination: str, ids: Sequence[int]) -> None:
        """Claim messages, and leave them in this relay's hands."""
        await self._claim(destination, ids)

    async def _wait(
        self, destination: str, ids: Sequence[int], error: str, *, waits: Waits, delay: timedelta | None
    ) -> None:
        await self._claim(destination, ids)
        failures = [
            FailedOutcome(message_id=one, state=State.PENDING, waits=waits, attempts=2, error=error, delay=delay)
            for one in ids
        ]
        await self._settle(destination, Settlement(failures=failures, finished=[self._number]))

    async def _settle(self, destination: str, settlement: Settlement) -> None:
        await self._store.settle(self._fences[destination], settlement)


def to_incoming(message: Message) -> bytes:
    """Encode a message as an inbox keeps it."""
    headers, body = to_binary(message, binding=HTTP)
    fallback = FallbackIdentity(
        message_id=str(message.message_id), source=message.source, type=message.type, topic="orders"
    )
    return encode_incoming(IncomingMessage(headers=headers, body=body, binding=HTTP, fallback=fallback))


class Filled(NamedTuple):
    """What was written, by a name for each."""

    messages: Mapping[str, Message]
    correlation_id: str
    inbox_message: Message


CANARY = "<script>alert('x')</script>"


async def fill(store: Store, writer: RowWriter, *, text: str = "", secret: str = "", many: int = 3) -> Filled:
    """Fill an empty store.

    `text` is put into every text field that a writer may fill, `secret` where one may slip in.
    """
    correlation = f"request-7{text}"
    error = f"https://billing.example/hooks answered 422: no account for customer {{id}}{text} password={secret or 'x'}"
    error = redact_line(error)  # as a relay does it
    cause = sample(type="orders.placed", destination="billing", key=f"order-42{text}", topic=f"orders{text}",
                   correlation_id=correlation, source=f"/shop{text}", subject=f"42{text}",
                   payload=msgspec.json.encode({"order_id": 12345678901234567890, "note": text}),
                   headers={"tenant": "acme", "x-api-token": secret or "hidden-value",
                            "remark": f"see{text}"})  # fmt: skip
    sibling = msgspec.structs.replace(cause, destination="mail")
    caused = sample(type="billing.charged", destination="mail", key="order-42", correlation_id=correlation,
                    causation_id=str(cause.message_id), source="/billing")  # fmt: skip
    orphan = sample(type="mail.sent", destination="mail", key="m", correlation_id=correlation,
                    causation_id="01900000-0000-7000-8000-000000000000", source="/mail")  # fmt: skip
    failing = [
        sample(type="orders.placed", destination="billing", key=f"customer-{n}{text}", topic="orders")
        for n in range(many)
    ]
    retried = sample(destination="billing", key="slow")
    held = sample(destination="audit", key=f"blocked{text}")
    behind = [sample(destination="audit", key=f"blocked{text}") for _ in range(2)]
    sending = sample(destination="mail", key="s")
    waiting = sample(destination="unserved", key="u")
    skipped = sample(destination="_skipped", key="k")
    discarded = sample(destination="mail", key="d")
    names = {
        "cause": cause, "sibling": sibling, "caused": caused, "orphan": orphan, "retried": retried, "held": held,
        "behind": behind[0], "sending": sending, "waiting": waiting, "skipped": skipped, "discarded": discarded,
        "failed": failing[0],
    }  # fmt: skip
    await writer.insert(
        [cause, sibling, caused, orphan, *failing, retried, held, *behind, sending, waiting, skipped, discarded]
    )
    stored = {(one.message_id, one.destination): one for one in await store.find(Selection(), limit=1_000)}

    def get(one: Message) -> int:
        return stored[one.message_id, one.destination].id

    relay = Relaying(store, "billing", "mail", "audit", reachable=["billing", "mail", "audit"])
    await relay.start()
    await relay.deliver("mail", [get(sibling), get(caused), get(orphan)])
    await relay.deliver("billing", [get(cause)])
    await relay.fail("billing", [get(one) for one in failing], error)
    await relay.retry("billing", [get(retried)], f"answered 503{text}", delay=timedelta(minutes=5))
    await relay.hold("audit", [get(held)], f"answered 400: held{text}")
    await relay.park("audit", [get(one) for one in behind])
    await relay.send("mail", [get(sending)])
    await store.discard(Selection(ids=[get(discarded)]), by=f"ann{text}", reason=f"sent by hand{text}", limit=1)
    await store.pause("audit", by=f"ann{text}", reason=f"they are moving{text} token={secret or 'x'}")
    await store.record_backlog(relay.info.relay_id, destinations=["billing", "mail", "audit"], limit=1_000)
    failed_inbox = sample(
        type="orders.placed", source=f"/shop{text}", headers={"x-api-token": secret or "hidden-value"}
    )
    await writer.execute(
        Accept(names=NAMES, consumer="billing", source=f"/shop{text}", message_id=str(cause.message_id))
    )
    await writer.execute(
        Fail(names=NAMES, consumer=f"invoices{text}", source=f"/shop{text}", message_id=str(failed_inbox.message_id),
             attempts=3, error=f"ValueError: no{text}", message=to_incoming(failed_inbox))
    )  # fmt: skip
    found = {(one.message_id, one.destination): one for one in await store.find(Selection(), limit=1_000)}
    shown = {name: found[one.message_id, one.destination] for name, one in names.items()}
    return Filled(shown, correlation, failed_inbox)
