"""Claiming and settling: the writes that a fence guards."""

from __future__ import annotations

from collections.abc import Sequence

from pillarbox.errors import Fenced
from pillarbox.journal import action_of
from pillarbox.message import State, Waits
from pillarbox.protocols import Claim, Fence, Settlement, Trouble
from pillarbox.stores.keeping import Keep
from pillarbox.stores.stepwise.claims import claims_of, trim
from pillarbox.stores.stepwise.parts import Parts, Transaction
from pillarbox.stores.stepwise.rows import json_of, span

__all__ = ["Settling"]


class Settling(Parts):
    """The settling part of the store."""

    async def claim(self, fence: Fence, claim: Claim, *, park: Sequence[int] = ()) -> None:
        def work(tx: Transaction) -> None:
            _require(tx, fence)
            if claim.message_ids:
                tx.run("claim", _numbered(fence, claim))
            if park:
                tx.run("park", _lanes(fence) | {"ids": list(park)})

        await self._database.relaxed(work)

    async def settle(self, fence: Fence, settlement: Settlement) -> None:
        def work(tx: Transaction) -> None:
            _require(tx, fence)
            if settlement.delivered:
                _deliver(tx, fence, settlement.delivered, keep=self._keep)
            if settlement.troubles:
                _record(tx, fence, settlement.troubles)
            _take_out(tx, fence, settlement)

        for trouble in settlement.troubles:
            trouble.check()
        await (self._database.writing(work) if settlement.troubles else self._database.relaxed(work))


def _require(tx: Transaction, fence: Fence) -> None:
    """What is true now stays true until the commit: the lanes are locked."""
    owned = {
        partition: epoch
        for partition, relay_id, epoch in tx.rows("fence", _lanes(fence))
        if relay_id == str(fence.relay_id)
    }
    if lost := {partition for partition, epoch in fence.epochs.items() if owned.get(partition) != epoch}:
        raise Fenced(fence.destination, lost)


def _lanes(fence: Fence) -> dict[str, object]:
    return {
        "relay_id": str(fence.relay_id),
        "destination": fence.destination,
        "partitions": list(fence.epochs),
    }


def _numbered(fence: Fence, claim: Claim) -> dict[str, object]:
    return {
        "relay_id": str(fence.relay_id),
        "number": claim.number,
        "message_ids": json_of(claim.message_ids),
        "strikes": claim.strikes,
    }


def _deliver(tx: Transaction, fence: Fence, ids: Sequence[int], *, keep: Keep) -> None:
    asked = _lanes(fence) | {"ids": list(ids), "keep": keep}
    if keep != "off":
        tx.run("keep_delivered", asked)
    else:
        tx.run("journal_drop_delivered", asked)
    tx.run("close_delivered", asked)


def _record(tx: Transaction, fence: Fence, troubles: Sequence[Trouble]) -> None:
    """Close each message or let it wait. The journal gets its line only where something changed."""
    lanes = _lanes(fence)
    names = dict(tx.rows("names", lanes | {"ids": [trouble.message_id for trouble in troubles]}))
    for trouble in troubles:
        asked = lanes | _values(trouble)
        action = action_of(trouble)
        if _changed(tx, trouble, asked) and action is not None:
            told = {"message_id": names[trouble.message_id], "action": action.value}
            tx.run("journal_trouble", asked | told)


def _changed(tx: Transaction, trouble: Trouble, asked: dict[str, object]) -> bool:
    if trouble.state is State.PENDING:
        return tx.run("trouble_wait", asked) > 0
    tx.run("trouble_keep", asked)
    return tx.run("trouble_close", asked) > 0


def _values(trouble: Trouble) -> dict[str, object]:
    return {
        "id": trouble.message_id,
        "state": trouble.state.value,
        "waits": None if trouble.waits is None else trouble.waits.value,
        "attempts": trouble.attempts,
        "error": _storable(trouble.error),
        "delay": None if trouble.waits in (Waits.PARKED, Waits.HELD) else span(trouble.delay) if trouble.delay else 0,
        "detail": _storable(trouble.detail),
    }


def _storable(text: str | None) -> str | None:
    """An error may quote bytes that are no text; that must not cost the outcome of the whole batch."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _take_out(tx: Transaction, fence: Fence, settlement: Settlement) -> None:
    relay_id = str(fence.relay_id)
    if settlement.finished:
        tx.run("claims_finish", {"relay_id": relay_id, "numbers": list(settlement.finished)})
    if settlement.touched:
        gone = {*settlement.delivered, *(t.message_id for t in settlement.troubles), *settlement.returned}
        touched = [claim for claim in claims_of(tx, [relay_id]) if claim.number in settlement.touched]
        trim(tx, touched, keep=lambda id_: id_ not in gone)
