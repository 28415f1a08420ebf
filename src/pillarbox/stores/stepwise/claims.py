"""Claims as they are stored, and how ids leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from pillarbox.stores.stepwise.parts import Transaction
from pillarbox.stores.stepwise.rows import json_of

__all__ = ["StoredClaim", "claims_of", "trim"]

_ids: Final = msgspec.json.Decoder(list[int]).decode


class StoredClaim(msgspec.Struct, frozen=True):
    """A row of the claim table."""

    relay_id: str
    number: int
    message_ids: Sequence[int]
    strikes: int


def claims_of(tx: Transaction, relay_ids: Iterable[str]) -> list[StoredClaim]:
    """All claims of these relays."""
    rows = tx.rows("claims_of", {"relay_ids": list(relay_ids)})
    return [StoredClaim(relay_id, number, _ids(ids), strikes) for relay_id, number, ids, strikes in rows]


def trim(tx: Transaction, claims: Iterable[StoredClaim], *, keep: Callable[[int], bool]) -> None:
    """Leave in each claim the ids to keep; a claim with nothing left goes."""
    for claim in claims:
        left = [id_ for id_ in claim.message_ids if keep(id_)]
        key = {"relay_id": claim.relay_id, "numbers": [claim.number]}
        if not left:
            tx.run("claims_finish", key)
        elif len(left) < len(claim.message_ids):
            tx.run("claims_lessen", key | {"message_ids": json_of(left)})
