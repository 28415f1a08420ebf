"""Taking free lanes: new epochs, and what was in the dead owners' hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pillarbox.message import Message
from pillarbox.protocols import Claim, Inherited, Lane
from pillarbox.stores.stepwise.claims import StoredClaim, claims_of, trim
from pillarbox.stores.stepwise.parts import Transaction
from pillarbox.stores.stepwise.rows import json_of, messages_of

__all__ = ["Taking", "take_over"]


class Taking(msgspec.Struct, frozen=True):
    """What a relay asks for."""

    relay_id: str
    destination: str
    partitions: Sequence[int]
    lease: int
    claim_number: int


def take_over(tx: Transaction, taking: Taking) -> tuple[Sequence[Lane], Sequence[Inherited]]:
    """The lanes stay locked to the end: nobody else takes them, or claims or settles in them, meanwhile."""
    owners = _free_lanes(tx, taking)
    if not owners:
        return (), ()
    asked = {"relay_id": taking.relay_id, "destination": taking.destination, "partitions": sorted(owners)}
    tx.run("lanes_take", asked)
    lanes = [Lane(taking.destination, partition, epoch) for partition, _, epoch in sorted(tx.rows("fence", asked))]
    dead = {owner for owner in owners.values() if owner not in (None, taking.relay_id)}
    inherited = _inherit(tx, taking, claims_of(tx, [*dead, taking.relay_id]), asked)
    tx.run("relays_remove", {"relay_ids": sorted(dead)})
    return lanes, inherited


def _free_lanes(tx: Transaction, taking: Taking) -> Mapping[int, str | None]:
    """The lanes that nobody alive owns, or that are the relay's own, with the owner they had."""
    asked = {
        "relay_id": taking.relay_id, "destination": taking.destination, "partitions": list(taking.partitions),
        "lease": taking.lease,
    }  # fmt: skip
    tx.run("lanes_create", asked)
    return dict(tx.rows("lanes_free", asked))


def _inherit(
    tx: Transaction, taking: Taking, claims: Sequence[StoredClaim], lanes: Mapping[str, object]
) -> Sequence[Inherited]:
    strikes = _strikes(claims)
    messages = messages_of(tx.rows("claimed", {**lanes, "ids": list(strikes)}))
    moved = {message.id for message in messages}
    trim(tx, claims, keep=lambda id_: id_ not in moved)
    inherited = _grouped(messages, strikes, first=taking.claim_number)
    for part in inherited:
        tx.run("claims_inherit", {
            "relay_id": taking.relay_id, "number": part.claim.number, "message_ids": json_of(part.claim.message_ids),
            "strikes": part.claim.strikes - 1,
        })  # fmt: skip
    return inherited


def _strikes(claims: Sequence[StoredClaim]) -> dict[int, int]:
    """Claimed id to its strikes from now on. Its new claim keeps one less: it is not under way before it is claimed."""
    strikes: dict[int, int] = {}
    for claim in claims:
        for id_ in claim.message_ids:
            strikes[id_] = max(claim.strikes + 1, strikes.get(id_, 0))
    return strikes


def _grouped(messages: Sequence[Message], strikes: Mapping[int, int], *, first: int) -> Sequence[Inherited]:
    """One claim per count of strikes."""
    groups: dict[int, list[Message]] = {}
    for message in messages:
        groups.setdefault(strikes[message.id], []).append(message)
    return [
        Inherited(Claim(number, [message.id for message in group], struck), group)
        for number, (struck, group) in enumerate(sorted(groups.items()), start=first)
    ]
