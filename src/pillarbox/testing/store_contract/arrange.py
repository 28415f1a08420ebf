"""What the tests begin with and look at. Lanes are those of the destination `orders` unless said otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from pillarbox.message import Message, State, Waits
from pillarbox.protocols import Claim, Fence, Selection, Settlement, Store, Trouble
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import key_in, sample_relay

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
    "everything",
    "fail",
    "hold",
    "ids",
    "own",
    "park",
    "put",
    "retry",
    "settled",
    "state_of",
    "stored",
]

LANE: Final = 7
OTHER: Final = 8
NEAR: Final = key_in(LANE)
"""A key of the lane; `SECOND` and `THIRD` are others of the same lane, `FAR` is one of the other lane."""
SECOND: Final = key_in(LANE, nth=1)
THIRD: Final = key_in(LANE, nth=2)
FAR: Final = key_in(OTHER)

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


async def settled(store: Store, fence: Fence, *troubles: Trouble, number: int = 1_000) -> None:
    """Claim what the troubles are about, and settle it."""
    await store.claim(fence, Claim(number, [trouble.message_id for trouble in troubles]))
    await store.settle(fence, Settlement(troubles=troubles, finished=[number]))


async def close(store: Store, fence: Fence, message: Message, state: State, *, number: int = 1_000) -> Message:
    """Bring a pending message into this closed state, by the way that leads there, and return it as stored."""
    if state is State.DELIVERED:
        await store.claim(fence, Claim(number, [message.id]))
        await store.settle(fence, Settlement(delivered=[message.id], finished=[number]))
    elif state is State.FAILED:
        await settled(store, fence, fail(message), number=number)
    else:
        await store.settle(fence, Settlement(troubles=[Trouble(message_id=message.id, state=state)]))
    return await stored(store, message)


def retry(message: Message, *, delay: timedelta | None = LEASE, attempts: int = 1, error: str = "HTTP 503") -> Trouble:
    return Trouble(
        message_id=message.id, state=State.PENDING, waits=Waits.RETRY, attempts=attempts, error=error, delay=delay
    )


def hold(message: Message, *, attempts: int = 5, error: str = "HTTP 400") -> Trouble:
    return Trouble(message_id=message.id, state=State.PENDING, waits=Waits.HELD, attempts=attempts, error=error)


def fail(message: Message, *, attempts: int = 5, error: str = "HTTP 400") -> Trouble:
    return Trouble(message_id=message.id, state=State.FAILED, attempts=attempts, error=error)


async def park(store: Store, fence: Fence, *messages: Message, number: int = 2_000) -> None:
    await store.claim(fence, Claim(number, []), park=ids(messages))
    await store.settle(fence, Settlement(finished=[number]))


async def stored(store: Store, message: Message) -> Message:
    """The message as it is now."""
    (found,) = await store.find(Selection(ids=[message.id]), limit=MANY)
    return found


async def state_of(store: Store, message: Message) -> State:
    return (await stored(store, message)).state


def ids(messages: Iterable[Message]) -> list[int]:
    return [message.id for message in messages]


async def everything(store: Store) -> Sequence[object]:
    """All that can be seen: for comparing before and after."""
    return (
        list(await store.find(Selection(), limit=MANY)),
        list(await store.journal(limit=MANY)),
        await store.registry(lease=LEASE),
        list(await store.pauses()),
        sorted(await store.counts(), key=repr),
    )
