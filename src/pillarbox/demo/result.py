"""The result of a run: what was committed against what took effect. Pure functions over what the databases hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

__all__ = ["Evidence", "Failure", "Order", "Result", "compare"]


class Order(msgspec.Struct, frozen=True):
    """A committed order. `number` counts the orders of its customer, in the order of their commits."""

    order_id: str
    customer: str
    number: int


class Failure(msgspec.Struct, frozen=True):
    """An order that will not be applied, and why. It is kept."""

    order_id: str
    customer: str
    error: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the databases hold when everything has stopped."""

    committed: Sequence[Order]
    """In the order service's database."""
    rolled_back: Sequence[str]
    """Orders whose transaction was rolled back after publishing."""
    effects: Sequence[str]
    """Orders in the consumer's database, in the order they were applied."""
    received: Sequence[str]
    """Ids of the messages that the consumer processed, repeats among them."""
    absorbed: int
    """Repeats that the inbox refused."""
    failed: Collection[str]
    """Orders whose message is kept as failed, by the relay or by the consumer."""
    delivered: int
    """Messages that the relays recorded as delivered."""
    kills: int
    kills_while_delivering: int
    """Kills of a relay in the middle of its work: messages were delivered since the kill before."""
    outages: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers. The promise holds while nothing is lost, a ghost or out of order, and only the poison one failed."""

    committed: int
    rolled_back: int
    delivered: int
    effects: int
    lost: int
    """Committed, and neither applied nor kept as failed."""
    ghosts: int
    """Applied although not committed, or applied once more."""
    out_of_order: int
    """Applied after a later order of the same customer."""
    received: int
    duplicates: int
    absorbed: int
    kills: int
    kills_while_delivering: int
    outages: int
    failed: int

    @property
    def holds(self) -> bool:
        return self.lost == self.ghosts == self.out_of_order == 0 and self.failed <= 1


def compare(evidence: Evidence) -> Result:
    """Compare what was committed with what was applied."""
    committed = {order.order_id: order for order in evidence.committed}
    first = [order_id for order_id in dict.fromkeys(evidence.effects) if order_id in committed]
    return Result(
        committed=len(committed),
        rolled_back=len(evidence.rolled_back),
        delivered=evidence.delivered,
        effects=len(evidence.effects),
        lost=len(committed.keys() - set(first) - set(evidence.failed)),
        ghosts=len(evidence.effects) - len(first),
        out_of_order=sum(_find_overtaken(first, committed)),
        received=len(evidence.received),
        duplicates=len(evidence.received) - len(set(evidence.received)),
        absorbed=evidence.absorbed,
        kills=evidence.kills,
        kills_while_delivering=evidence.kills_while_delivering,
        outages=evidence.outages,
        failed=len(evidence.failed),
    )


def _find_overtaken(applied: Sequence[str], committed: Mapping[str, Order]) -> Iterator[bool]:
    """Yield for each applied order whether a later one of its customer was applied before it."""
    latest: dict[str, int] = {}
    for order_id in applied:
        order = committed[order_id]
        yield order.number < latest.get(order.customer, 0)
        latest[order.customer] = max(order.number, latest.get(order.customer, 0))
