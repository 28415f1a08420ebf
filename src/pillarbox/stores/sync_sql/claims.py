"""Claims inside a transaction: the fence, settlements, and what a new owner of lanes recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

from pillarbox.contracts.store import (
    Claim,
    FailedOutcome,
    Fence,
    Lane,
    RecoveredClaim,
    Settlement,
)
from pillarbox.errors import Fenced
from pillarbox.message import State, Waits
from pillarbox.stores.rules import Keep, add_strikes, group_by_strikes
from pillarbox.stores.sync_sql.database import Transaction
from pillarbox.stores.sync_sql.rows import (
    StoredClaim,
    claim_from_row,
    encode_json,
    messages_from_rows,
    to_duration,
)

__all__ = ["record_claim", "release_lanes", "settle", "take_lanes"]


def record_claim(tx: Transaction, fence: Fence, claim: Claim, *, park: Sequence[int]) -> None:
    """Record a batch as claimed, and park messages, if the fence holds."""
    # Lanes are locked before claims and messages, here as in `take_lanes`: one order, no deadlock.
    _check_fence(tx, fence)
    if claim.message_ids:
        tx.execute("claim", _claim_values(str(fence.relay_id), claim))
    if park:
        tx.execute("park", _lane_values(fence) | {"ids": list(park)})


def settle(tx: Transaction, fence: Fence, settlement: Settlement, *, keep: Keep) -> None:
    """Record outcomes and take their ids out of the claims, if the fence holds."""
    _check_fence(tx, fence)
    if settlement.delivered:
        _deliver(tx, fence, settlement.delivered, keep=keep)
    if settlement.failures:
        _record_failures(tx, fence, settlement.failures)
    relay_id = str(fence.relay_id)
    if settlement.finished:
        tx.execute("claims_finish", {"relay_id": relay_id, "numbers": list(settlement.finished)})
    if settlement.touched:
        failed = (failure.message_id for failure in settlement.failures)
        settled = {*settlement.delivered, *failed, *settlement.returned}
        touched = [claim for claim in _read_claims(tx, [relay_id]) if claim.number in settlement.touched]
        _trim_claims(tx, touched, keep=lambda id_: id_ not in settled)


def _check_fence(tx: Transaction, fence: Fence) -> None:
    """Raise `Fenced` for lanes of others. The statement locks the lanes: the answer stays true until the commit."""
    owned = {
        partition: epoch
        for partition, relay_id, epoch in tx.query("fence", _lane_values(fence))
        if relay_id == str(fence.relay_id)
    }
    if lost := {partition for partition, epoch in fence.epochs.items() if owned.get(partition) != epoch}:
        raise Fenced(fence.destination, lost)


def _lane_values(fence: Fence) -> dict[str, object]:
    return {
        "relay_id": str(fence.relay_id),
        "destination": fence.destination,
        "partitions": list(fence.epochs),
    }


def _claim_values(relay_id: str, claim: Claim) -> dict[str, object]:
    return {
        "relay_id": relay_id,
        "number": claim.number,
        "message_ids": encode_json(claim.message_ids),
        "strikes": claim.strikes,
    }


def _deliver(tx: Transaction, fence: Fence, ids: Sequence[int], *, keep: Keep) -> None:
    values = _lane_values(fence) | {"ids": list(ids), "keep": keep}
    tx.execute("journal_drop_delivered" if keep == "off" else "keep_delivered", values)
    tx.execute("close_delivered", values)


def _record_failures(tx: Transaction, fence: Fence, failures: Sequence[FailedOutcome]) -> None:
    """Close each message or let it wait. The journal gets an entry only where something changed."""
    lanes = _lane_values(fence)
    ids = [failure.message_id for failure in failures]
    message_ids = dict(tx.query("read_message_ids", lanes | {"ids": ids}))
    for failure in failures:
        values = lanes | _failure_values(failure)
        if failure.state is State.PENDING:
            changed = tx.execute("failure_wait", values)
        else:
            tx.execute("failure_keep", values)
            changed = tx.execute("failure_close", values)
        action = failure.action
        if changed and action is not None:
            entry = {"message_id": message_ids[failure.message_id], "action": action.value}
            tx.execute("journal_failure", values | entry)


def _failure_values(failure: FailedOutcome) -> dict[str, object]:
    waits_for_time = failure.waits not in (Waits.PARKED, Waits.HELD)
    return {
        "id": failure.message_id,
        "state": failure.state.value,
        "waits": None if failure.waits is None else failure.waits.value,
        "attempts": failure.attempts,
        "error": _to_valid_text(failure.error),
        "delay": to_duration(failure.delay or timedelta(0)) if waits_for_time else None,
        "detail": _to_valid_text(failure.detail),
    }


def _to_valid_text(text: str | None) -> str | None:
    """Replace what cannot be encoded: an error that quotes broken bytes must not cost the whole batch."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def take_lanes(
    tx: Transaction,
    relay_id: str,
    destination: str,
    *,
    partitions: Sequence[int],
    lease: timedelta,
    claim_number: int,
) -> tuple[Sequence[Lane], Sequence[RecoveredClaim]]:
    """Own those of the lanes that are free, and recover what their dead owners had claimed.

    The lanes stay locked to the end: no other relay takes them, or claims or settles in them, meanwhile.
    """
    lanes = {"relay_id": relay_id, "destination": destination, "partitions": list(partitions)}
    tx.execute("lanes_create", lanes)  # a row that does not exist cannot be locked
    owners: dict[int, str | None] = dict(tx.query("lanes_free", lanes | {"lease": to_duration(lease)}))
    if not owners:
        return (), ()
    free = lanes | {"partitions": sorted(owners)}
    tx.execute("lanes_take", free)
    taken = [Lane(destination, partition, epoch) for partition, _, epoch in sorted(tx.query("fence", free))]
    dead = {owner for owner in owners.values() if owner is not None and owner != relay_id}
    claims = _read_claims(tx, [*dead, relay_id])
    recovered = _recover_claims(tx, relay_id, claims, free, claim_number=claim_number)
    tx.execute("relays_remove", {"relay_ids": sorted(dead)})
    return taken, recovered


def _recover_claims(
    tx: Transaction, relay_id: str, claims: Sequence[StoredClaim], lanes: Mapping[str, object], *, claim_number: int
) -> Sequence[RecoveredClaim]:
    """Move what is claimed in these lanes into claims of this relay, with one strike more."""
    strikes = add_strikes((claim.strikes, claim.message_ids) for claim in claims)
    messages = messages_from_rows(tx.query("claimed_messages", {**lanes, "ids": list(strikes)}))
    moved = {message.id for message in messages}
    _trim_claims(tx, claims, keep=lambda id_: id_ not in moved)
    recovered = group_by_strikes(messages, strikes, claim_number=claim_number)
    for one in recovered:
        values = _claim_values(relay_id, one.claim)
        tx.execute("claims_recover", values | {"strikes": one.claim.strikes - 1})
    return recovered


def release_lanes(tx: Transaction, fence: Fence) -> None:
    """Give up the lanes that are still the relay's, and drop its claims on messages in them."""
    relay_id, destination = str(fence.relay_id), fence.destination
    released = [
        partition
        for partition, epoch in fence.epochs.items()
        if tx.execute("lanes_release", {
            "relay_id": relay_id, "destination": destination, "partition": partition, "epoch": epoch,
        })
    ]  # fmt: skip
    claims = _read_claims(tx, [relay_id]) if released else []
    ids = [id_ for claim in claims for id_ in claim.message_ids]
    rows = tx.query("ids_in_lanes", {"ids": ids, "destination": destination, "partitions": released})
    gone = {row[0] for row in rows}
    _trim_claims(tx, claims, keep=lambda id_: id_ not in gone)


def _read_claims(tx: Transaction, relay_ids: Iterable[str]) -> list[StoredClaim]:
    return [claim_from_row(row) for row in tx.query("relay_claims", {"relay_ids": list(relay_ids)})]


def _trim_claims(tx: Transaction, claims: Iterable[StoredClaim], *, keep: Callable[[int], bool]) -> None:
    """Leave in each claim the ids to keep, and delete a claim with nothing left."""
    for claim in claims:
        left = [id_ for id_ in claim.message_ids if keep(id_)]
        key = {"relay_id": claim.relay_id, "numbers": [claim.number]}
        if not left:
            tx.execute("claims_finish", key)
        elif len(left) < len(claim.message_ids):
            tx.execute("claims_trim", key | {"message_ids": encode_json(left)})
