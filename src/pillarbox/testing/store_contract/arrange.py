"""Arrangements and observations that the tests share. Lanes belong to the destination `orders` unless one is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from pillarbox.contracts.store import (
    NO_BYTE_LIMIT,
    Claim,
    FailedOutcome,
    Fence,
    RelayStore,
    Selection,
    Settlement,
    Store,
)
from pillarbox.message import Message, State, Waits
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import find_key, sample_relay

__all__ = [
    "FAR",
    "HOUR",
    "LANE",
    "LEASE",
    "MANY",
    "NEAR",
    "OTHER",
    "SECOND",
    "THIRD",
    "close",
    "fail",
    "hold",
    "list_ids",
    "own",
    "pair_ids",
    "park",
    "put",
    "read_due",
    "read_everything",
    "read_key",
    "read_state",
    "reload",
    "retry",
    "settle_failures",
]

LANE: Final = 7
OTHER: Final = 8
NEAR: Final = find_key(LANE)
"""A key of the lane; `SECOND` and `THIRD` are others of the same lane, `FAR` is one of the other lane."""
SECOND: Final = find_key(LANE, nth=1)
THIRD: Final = find_key(LANE, nth=2)
FAR: Final = find_key(OTHER)

LEASE: Final = timedelta(seconds=10)
HOUR: Final = timedelta(hours=1)
MANY: Final = 1_000
"""More than any test has."""


async def put(harness: StoreHarness, *messages: Message, delay: timedelta | None = None) -> list[Message]:
    """Commit the messages in one transaction and return them as stored, in the order given."""
    await harness.insert(messages, delay=delay)
    selection = Selection(message_ids=[message.message_id for message in messages])
    return list(await harness.store.find(selection, limit=MANY))


async def own(
    store: Store, *partitions: int, relay_id: UUID | None = None, destination: str = "orders", lease: timedelta = LEASE
) -> Fence:
    """Register a relay, take these lanes, and return the proof of it."""
    relay = sample_relay(relay_id=relay_id, destination=destination)
    await store.register(relay, lease=lease)
    lanes, _ = await store.take(relay.relay_id, destination, partitions=partitions, lease=lease, claim_number=1)
    assert {lane.partition for lane in lanes} == set(partitions)
    return Fence(relay.relay_id, destination, {lane.partition: lane.epoch for lane in lanes})


async def settle_failures(store: Store, fence: Fence, *failures: FailedOutcome, number: int = 1_000) -> None:
    """Claim the messages of these outcomes, and settle them."""
    await store.claim(fence, Claim(number, [outcome.message_id for outcome in failures]))
    await store.settle(fence, Settlement(failures=failures, finished=[number]))


async def close(store: Store, fence: Fence, message: Message, state: State, *, number: int = 1_000) -> Message:
    """Close a pending message in this state, by the calls that a relay makes, and return it as stored."""
    if state is State.DELIVERED:
        await store.claim(fence, Claim(number, [message.id]))
        await store.settle(fence, Settlement(delivered=[message.id], finished=[number]))
    elif state is State.FAILED:
        await settle_failures(store, fence, fail(message), number=number)
    else:
        await store.settle(fence, Settlement(failures=[FailedOutcome(message_id=message.id, state=state)]))
    return await reload(store, message)


def retry(
    message: Message, *, delay: timedelta | None = LEASE, attempts: int = 1, error: str = "HTTP 503"
) -> FailedOutcome:
    return FailedOutcome(
        message_id=message.id, state=State.PENDING, waits=Waits.RETRY, attempts=attempts, error=error, delay=delay
    )


def hold(message: Message, *, attempts: int = 5, error: str = "HTTP 400") -> FailedOutcome:
    return FailedOutcome(message_id=message.id, state=State.PENDING, waits=Waits.HELD, attempts=attempts, error=error)


def fail(message: Message, *, attempts: int = 5, error: str = "HTTP 400") -> FailedOutcome:
    return FailedOutcome(message_id=message.id, state=State.FAILED, attempts=attempts, error=error)


def pair_ids(*messages: Message) -> Mapping[int, UUID]:
    """Return what to park of a claim: the id of each row, with the message that was read under it."""
    return {message.id: message.message_id for message in messages}


async def park(store: Store, fence: Fence, *messages: Message, number: int = 2_000) -> None:
    await store.claim(fence, Claim(number, []), park=pair_ids(*messages))
    await store.settle(fence, Settlement(finished=[number]))


async def reload(store: Store, message: Message) -> Message:
    """Return the message as it is stored now."""
    (found,) = await store.find(Selection(ids=[message.id]), limit=MANY)
    return found


async def read_state(store: Store, message: Message) -> State:
    return (await reload(store, message)).state


def list_ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]


async def read_due(
    store: RelayStore, *partitions: int, destination: str = "orders", limit: int = MANY, max_bytes: int = NO_BYTE_LIMIT
) -> list[Message]:
    """Find what is due and read it, longest due first."""
    found = await store.find_due(destination, partitions=partitions or [LANE], limit=limit, max_bytes=max_bytes)
    ids = [due.id for due in found]
    return sorted(await store.read_due(destination, ids), key=lambda message: ids.index(message.id))


async def read_key(
    store: RelayStore,
    key: str = NEAR,
    *,
    partition: int = LANE,
    destination: str = "orders",
    limit: int = MANY,
    max_bytes: int = NO_BYTE_LIMIT,
) -> list[Message]:
    """Read the blocked messages of one key."""
    (found,) = await store.read_keys(destination, [(partition, key)], key_limit=limit, limit=MANY, max_bytes=max_bytes)
    return list(found.messages)


async def read_everything(store: Store) -> Sequence[object]:
    """Return all that a store shows: for comparing before and after."""
    return (
        list(await store.find(Selection(), limit=MANY)),
        list(await store.journal(limit=MANY)),
        await store.registry(lease=LEASE),
        list(await store.pauses()),
        sorted(await store.counts(), key=repr),
    )
