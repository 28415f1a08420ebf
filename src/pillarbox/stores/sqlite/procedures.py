"""Claims and settlements as one statement each: what a procedure is in other databases, by a view and its trigger.

A transaction of several statements needs Python's lock between any two of them, and waits for it while the relay works.
One statement needs it at its end. Only the usual case goes that way: a fence that holds, and messages that are all as
they were sent. Any other is refused as a whole, and takes the way of all stores, which tells one case from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pillarbox.contracts.store import Claim, Fence, Settlement
from pillarbox.stores.rules import Keep
from pillarbox.stores.sql import Statements
from pillarbox.stores.sync_sql.rows import encode_json

__all__ = ["build_claim", "build_delivery", "build_procedures", "decode_revisions"]

_CONFLICT: Final = "on conflict"
_MARK: Final = "/* on conflict */"

decode_revisions = msgspec.json.Decoder(dict[int, int]).decode
"""Decode the revisions of lanes that `claim_at_once` returns."""


def build_procedures(statements: Statements) -> Sequence[str]:
    """Return the statements that make the procedures of one connection. They leave no trace in the file."""
    _, _, addition = statements["rollup_add"].partition(_CONFLICT)
    trigger = statements["delivering_trigger"].replace(_MARK, _CONFLICT + addition)
    return [statements["claiming_view"], statements["claiming_trigger"], statements["delivering_view"], trigger]


def build_claim(fence: Fence, claim: Claim) -> Mapping[str, object]:
    """Return the values of `claim_at_once`."""
    return {
        **_build_fence(fence),
        "number": claim.number,
        "message_ids": encode_json(claim.message_ids),
        "strikes": claim.strikes,
    }


def build_delivery(fence: Fence, settlement: Settlement, *, keep: Keep) -> Mapping[str, object] | None:
    """Return the values of `deliver_at_once`; None for a settlement that is more than claimed messages delivered."""
    if settlement.failures or settlement.returned or not settlement.delivered or not settlement.claims:
        return None
    ids, sent = sorted(settlement.delivered), settlement.message_ids
    try:
        message_ids = [sent[id_] for id_ in ids]
    except KeyError:
        return None
    return {
        **_build_fence(fence),
        "mask": _build_mask(fence.epochs),
        "ids": encode_json(ids),
        "message_ids": encode_json(message_ids),
        "number": len(ids),
        "claims": encode_json(settlement.claims),
        "finished": encode_json(settlement.finished),
        "touched": encode_json(settlement.touched),
        "keep": keep,
    }


def _build_fence(fence: Fence) -> dict[str, object]:
    return {
        "destination": fence.destination,
        "relay_id": str(fence.relay_id),
        "epochs": msgspec.json.encode(fence.epochs).decode(),
        "lanes": len(fence.epochs),
    }


def _build_mask(partitions: Mapping[int, int]) -> int:
    """Return an integer with a bit for each lane, of 64 bits with a sign as SQLite has them."""
    mask = sum(1 << partition for partition in partitions)
    return mask - (1 << 64) if mask >> 63 else mask
