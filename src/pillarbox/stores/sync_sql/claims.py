"""Claims inside a transaction: the fence, settlements, and what a new owner of lanes recovers."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

import msgspec

from pillarbox.contracts.store import (
    Action,
    Claim,
    FailedOutcome,
    Fence,
    Lane,
    RecoveredClaim,
    Settlement,
)
from pillarbox.errors import Fenced
from pillarbox.message import State, Waits
from pillarbox.stores.rules import Keep, add_strikes, attach_messages, compute_fingerprint, group_by_strikes
from pillarbox.stores.statistics import ROLLUP_COLUMNS, classify_failure, count_below
from pillarbox.stores.sync_sql.database import Transaction
from pillarbox.stores.sync_sql.rows import (
    StoredClaim,
    claim_from_row,
    encode_json,
    messages_from_rows,
    parse_uuid_or_none,
    to_duration,
)

__all__ = [
    "RelayGone",
    "add_to_rollup",
    "free_messages",
    "read_recovered",
    "record_claim",
    "release_lanes",
    "settle",
    "take_lanes",
]


_TURN: Final = -1
"""Claims are numbered from 1 on. A number from here downward is of the row that takeovers of a destination wait for."""


class RelayGone(Exception):
    """The relay that takes lanes is not in the registry: the transaction must be undone."""


def record_claim(tx: Transaction, fence: Fence, claim: Claim, *, park: Mapping[int, UUID]) -> Mapping[int, int]:
    """Record a batch as claimed, and park messages, if the fence holds; return the revisions of the lanes."""
    # Lanes are locked before claims and messages, here as in `take_lanes`: one order, no deadlock.
    revisions = _check_fence(tx, fence)
    if claim.message_ids:
        tx.execute("claim", _claim_values(str(fence.relay_id), claim))
    if park:
        lanes = _lane_values(fence)
        rows = tx.query("read_message_ids", lanes | {"ids": list(park)})
        if ids := [id_ for id_, message_id, _ in rows if _is_sent(message_id, park[id_])]:
            tx.execute("park", lanes | {"ids": ids})
    return revisions


def settle(
    tx: Transaction, fence: Fence, settlement: Settlement, *, keep: Keep, renumbers: bool = False
) -> Collection[int]:
    """Record outcomes and take their ids out of the claims, if the fence holds; return ids that are in none of them.

    With `renumbers`, a delivered message whose id history has already is closed under another one.
    """
    _check_fence(tx, fence)
    unclaimed: list[int] = []
    claimed: set[int] = set()
    if settlement.claims:
        rows = tx.query("claims_named", {"relay_id": str(fence.relay_id), "numbers": list(settlement.claims)})
        claimed = {id_ for row in rows for id_ in claim_from_row(row).message_ids}
        unclaimed, settlement = settlement.list_unclaimed(claimed), settlement.narrow(claimed)
    counters: dict[str, float] = defaultdict(float)
    counters["returned"] += len(settlement.list_returned(claimed))
    if settlement.delivered:
        _deliver(tx, fence, settlement.delivered, settlement.message_ids, counters, keep=keep, renumbers=renumbers)
    if settlement.failures:
        _record_failures(tx, fence, settlement.failures, settlement.message_ids, counters)
    if any(counters.values()):
        add_to_rollup(tx, fence.destination, str(fence.relay_id), counters)
    relay_id = str(fence.relay_id)
    if settlement.finished:
        tx.execute("claims_finish", {"relay_id": relay_id, "numbers": list(settlement.finished)})
    if settlement.touched:
        failed = (failure.message_id for failure in settlement.failures)
        settled = {*settlement.delivered, *failed, *settlement.returned}
        touched = [claim for claim in _read_claims(tx, [relay_id]) if claim.number in settlement.touched]
        _trim_claims(tx, touched, keep=lambda id_: id_ not in settled)
    return unclaimed


def _check_fence(tx: Transaction, fence: Fence) -> Mapping[int, int]:
    """Raise `Fenced` for lanes of others, or return the revisions of the lanes.

    The statement locks the lanes: the answer stays true until the commit.
    """
    values = _lane_values(fence)
    rows, own_id = tx.query("fence", values), values["relay_id"]
    owned = {partition: epoch for partition, relay_id, epoch, _ in rows if relay_id == own_id}
    if lost := {partition for partition, epoch in fence.epochs.items() if owned.get(partition) != epoch}:
        raise Fenced(fence.destination, lost)
    return {partition: revision for partition, _, _, revision in rows}


def free_messages(tx: Transaction, messages: Collection[int]) -> None:
    """Take messages that an operator changes out of the claims of relays that are gone: no takeover may find them."""
    claims = [claim_from_row(row) for row in tx.query("gone_claims")] if messages else []
    _trim_claims(tx, claims, keep=lambda id_: id_ not in messages)


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


def add_to_rollup(tx: Transaction, destination: str, relay_id: str, counters: Mapping[str, float]) -> None:
    """Add to the counters of a destination in this minute, in this relay's row."""
    values = {column: counters.get(column, 0) for column in ROLLUP_COLUMNS}
    tx.execute("rollup_add", {"destination": destination, "relay_id": relay_id, **values})


def _deliver(
    tx: Transaction,
    fence: Fence,
    ids: Sequence[int],
    sent: Mapping[int, UUID],
    counters: dict[str, float],
    *,
    keep: Keep,
    renumbers: bool,
) -> None:
    lanes = _lane_values(fence)
    message_ids = [sent[id_] for id_ in ids if id_ in sent]
    values = lanes | {
        "ids": list(ids),
        "message_ids": message_ids,
        "unchecked": not sent,
        "keep": keep,
        "renumbers": renumbers,
    }
    counted = _count_delivered(tx, values)
    closed = _close_delivered(tx, values, keep=keep)
    if sent and closed < len(ids):
        # A few may be written in another way, or may be no ids at all: those are compared here.
        rows = tx.query("read_message_ids", values)
        left = [id_ for id_, message_id, _ in rows if _is_sent(message_id, sent.get(id_))]
        if left:
            closed += _close_delivered(tx, values | {"ids": left, "unchecked": True}, keep=keep)
    for column, number in counted.items():
        counters[column] += number
    if closed < counted["delivered"]:
        # What was left alone was counted too. Only its part in the longest times stays.
        for column, number in _count_delivered(tx, values).items():
            if not column.endswith("_max"):
                counters[column] -= number


def _close_delivered(tx: Transaction, values: Mapping[str, object], *, keep: Keep) -> int:
    tx.execute("journal_drop_delivered" if keep == "off" else "keep_delivered", values)
    return tx.execute("close_delivered", values)


def _count_delivered(tx: Transaction, values: Mapping[str, object]) -> dict[str, float]:
    """Count the messages with these ids that are open, as deliveries. Whether they were sent is not looked at."""
    (row,) = tx.query("rollup_delivered", values)
    return count_below(*(float(value or 0) for value in row))  # MySQL gives decimals; of no row the sums are null


def _is_sent(message_id: object, sent: UUID | None) -> bool:
    """Return whether a row has the message that was sent or read. An id that is no UUID cannot be compared."""
    try:
        return sent is None or UUID(str(message_id)) == sent
    except ValueError:
        return True


def _record_failures(
    tx: Transaction,
    fence: Fence,
    failures: Sequence[FailedOutcome],
    sent: Mapping[int, UUID],
    counters: dict[str, float],
) -> None:
    """Close each message or let it wait. The journal gets an entry only where something changed."""
    lanes = _lane_values(fence)
    ids = [failure.message_id for failure in failures]
    rows = tx.query("read_message_ids", lanes | {"ids": ids})
    message_ids = {id_: message_id for id_, message_id, _ in rows}
    errors = {id_: error for id_, _, error in rows}
    quiet: dict[FailedOutcome, list[int]] = defaultdict(list)
    for failure in failures:
        id_ = failure.message_id
        if id_ not in message_ids or not _is_sent(message_ids[id_], sent.get(id_)):
            continue
        action = failure.action
        if failure.state is State.PENDING and action is None:
            # Very many park, or wait for one address, alike: a statement for each would take longer than sending them.
            quiet[msgspec.structs.replace(failure, message_id=0)].append(id_)
            continue
        values = lanes | _failure_values(failure, error=errors[id_])
        if failure.state is State.PENDING:
            changed = tx.execute("failure_wait", values | {"ids": [id_]})
        elif failure.forward_to is not None:
            changed = tx.execute("failure_forward", values)
        else:
            tx.execute("failure_keep", values)
            changed = tx.execute("failure_close", values)
        if changed and (column := classify_failure(failure)) is not None:
            counters[column] += 1
        if changed and action is not None:
            entry = {"message_id": message_ids[id_], "action": action.value}
            tx.execute("journal_failure", values | entry)
            if failure.forward_to is not None:
                by = {"action": Action.REDRIVEN.value, "by": values["relay_id"], "reason": None}
                tx.execute("journal_note", values | entry | by)
    for failure, alike in quiet.items():
        tx.execute("failure_wait", lanes | _failure_values(failure) | {"ids": alike})


def _failure_values(failure: FailedOutcome, *, error: object = None) -> dict[str, object]:
    """Return the values of an outcome. `error` is the message's last one, which stays where the outcome names none."""
    waits_for_time = failure.waits not in (Waits.PARKED, Waits.HELD)
    return {
        "id": failure.message_id,
        "state": failure.state.value,
        "waits": None if failure.waits is None else failure.waits.value,
        "attempts": failure.attempts,
        "error": _to_valid_text(failure.error),
        "delay": to_duration(failure.delay or timedelta(0)) if waits_for_time else None,
        "detail": _to_valid_text(failure.detail),
        "forward_to": failure.forward_to,
        "fingerprint": compute_fingerprint(failure, error=error),
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
) -> tuple[Sequence[Lane], Sequence[Claim]]:
    """Own those of the lanes that are free, and recover what their dead owners had claimed. The lanes' rows exist.

    The lanes stay locked to the end: no other relay takes them, or claims or settles in them, meanwhile. No message is
    read here: a relay that freezes while it receives them would keep the locks. `read_recovered` reads them.

    Raises `RelayGone` if the relay has left, or was removed.
    """
    lanes = {"relay_id": relay_id, "destination": destination, "partitions": list(partitions)}
    owners: dict[int, str | None] = dict(tx.query("lanes_free", lanes | {"lease": to_duration(lease)}))
    if not owners:
        return (), ()
    free = lanes | {"partitions": sorted(owners)}
    tx.execute("lanes_take", free)
    taken = [
        Lane(destination, partition, epoch, revision, _find_dead_owner(owners[partition], relay_id))
        for partition, _, epoch, revision in sorted(tx.query("fence", free))
    ]
    dead = {owner for owner in owners.values() if owner is not None and owner != relay_id}
    turn = _TURN - zlib.crc32(destination.encode())
    # Two takeovers that recover different lanes lock the same claims: one waits for the other. Everybody waits in the
    # order of the ids. The row that is waited for goes with the commit.
    for owner in sorted(dead):
        tx.execute("claim", _claim_values(owner, Claim(turn, ())))
    claims = _lock_claims(tx, [*dead, relay_id], free)
    recovered = _recover_claims(tx, relay_id, claims, free, claim_number=claim_number)
    for owner in sorted(dead):
        tx.execute("claims_finish", {"relay_id": owner, "numbers": [turn]})
    gone = [row[0] for row in tx.query("relays_lock", {"relay_ids": sorted(dead)})]
    tx.execute("relays_remove", {"relay_ids": gone})
    # The last statement, because it locks the row that the heartbeat writes. To the commit the relay cannot leave.
    if not tx.query("relay_pin", {"relay_id": relay_id}):
        raise RelayGone
    return taken, recovered


def _find_dead_owner(owner: str | None, relay_id: str) -> UUID | None:
    return None if owner is None or owner == relay_id else parse_uuid_or_none(owner)


def read_recovered(tx: Transaction, lanes: Sequence[Lane], claims: Sequence[Claim]) -> Sequence[RecoveredClaim]:
    """Read the messages of claims that were taken over with these lanes."""
    values = {
        "destination": lanes[0].destination, "partitions": [lane.partition for lane in lanes],
        "ids": [message_id for claim in claims for message_id in claim.message_ids],
    }  # fmt: skip
    return attach_messages(claims, messages_from_rows(tx.query("claimed_messages", values)))


def _lock_claims(tx: Transaction, relay_ids: Iterable[str], lanes: Mapping[str, object]) -> list[StoredClaim]:
    """Lock and read the claims of these relays that have a message in these lanes, and no others.

    Takeovers of other destinations go on beside this one. A claim that its relay is still writing is passed over.
    """
    seen = _read_claims(tx, relay_ids, name="claims_seen")
    ids = [id_ for claim in seen for id_ in claim.message_ids]
    here = {row[0] for row in tx.query("ids_in_lanes", {**lanes, "ids": ids})} if ids else set()
    numbers: dict[str, list[int]] = defaultdict(list)
    for claim in seen:
        if not here.isdisjoint(claim.message_ids):
            numbers[claim.relay_id].append(claim.number)
    return [
        claim_from_row(row)
        for relay_id in sorted(numbers)
        for row in tx.query("claims_lock", {"relay_id": relay_id, "numbers": numbers[relay_id]})
    ]


def _recover_claims(
    tx: Transaction, relay_id: str, claims: Sequence[StoredClaim], lanes: Mapping[str, object], *, claim_number: int
) -> Sequence[Claim]:
    """Move what is claimed in these lanes into claims of this relay, with one strike more."""
    strikes = add_strikes((claim.strikes, claim.message_ids) for claim in claims)
    moved = sorted(row[0] for row in tx.query("ids_in_lanes", {**lanes, "ids": list(strikes)}))
    gone = set(moved)
    _trim_claims(tx, claims, keep=lambda id_: id_ not in gone)
    recovered = group_by_strikes(moved, strikes, claim_number=claim_number)
    for claim in recovered:
        tx.execute("claims_recover", _claim_values(relay_id, claim) | {"strikes": claim.strikes - 1})
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


def _read_claims(tx: Transaction, relay_ids: Iterable[str], *, name: str = "relay_claims") -> list[StoredClaim]:
    return [claim_from_row(row) for row in tx.query(name, {"relay_ids": list(relay_ids)})]


def _trim_claims(tx: Transaction, claims: Iterable[StoredClaim], *, keep: Callable[[int], bool]) -> None:
    """Leave in each claim the ids to keep, and delete a claim with nothing left."""
    for claim in claims:
        left = [id_ for id_ in claim.message_ids if keep(id_)]
        key = {"relay_id": claim.relay_id, "numbers": [claim.number]}
        if not left:
            tx.execute("claims_finish", key)
        elif len(left) < len(claim.message_ids):
            tx.execute("claims_trim", key | {"message_ids": encode_json(left)})
