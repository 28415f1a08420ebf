"""Who is alive, and who owns what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pillarbox.protocols import Fence, Inherited, Lane, Registry, RelayInfo
from pillarbox.stores.stepwise.claims import claims_of, trim
from pillarbox.stores.stepwise.parts import Parts, Transaction
from pillarbox.stores.stepwise.rows import json_of, span, texts_of, time_of
from pillarbox.stores.stepwise.takeover import Taking, take_over

__all__ = ["Membership"]


class Membership(Parts):
    """The membership part of the store."""

    async def register(self, relay: RelayInfo, *, lease: timedelta) -> None:
        await self._database.writing(lambda tx: tx.run("register", _values(relay) | {"lease": span(lease)}))

    async def renew(self, relay_id: UUID, *, lease: timedelta, reachable: Sequence[str], asleep: bool = False) -> bool:
        asked = {
            "relay_id": str(relay_id), "lease": span(lease), "reachable": json_of(reachable), "asleep": asleep,
        }  # fmt: skip
        return await self._database.relaxed(lambda tx: tx.run("renew", asked)) == 1

    async def registry(self, *, lease: timedelta) -> Registry:
        def work(tx: Transaction) -> Registry:
            relays = [_relay(row) for row in tx.rows("relays_live", {"lease": span(lease)})]
            return Registry(time_of(tx.now), relays, _owners(tx, {relay.relay_id for relay in relays}))

        return await self._database.reading(work)

    async def take(
        self,
        relay_id: UUID,
        destination: str,
        *,
        partitions: Sequence[int],
        lease: timedelta,
        claim_number: int,
    ) -> tuple[Sequence[Lane], Sequence[Inherited]]:
        taking = Taking(str(relay_id), destination, partitions, span(lease), claim_number)
        return await self._database.writing(lambda tx: take_over(tx, taking))

    async def release(self, fence: Fence) -> None:
        await self._database.writing(lambda tx: _release(tx, fence))

    async def leave(self, relay_id: UUID) -> None:
        def work(tx: Transaction) -> None:
            for name in ("lanes_leave", "claims_leave", "relays_leave"):
                tx.run(name, {"relay_id": str(relay_id)})

        await self._database.writing(work)

    async def forget(self, *, stale_after: timedelta) -> int:
        def work(tx: Transaction) -> int:
            forgotten = tx.run("relays_forget", {"stale_after": span(stale_after)})
            tx.run("claims_forget")
            return forgotten

        return await self._database.writing(work)

    async def now(self) -> datetime:
        return await self._database.reading(lambda tx: time_of(tx.now))


def _values(relay: RelayInfo) -> dict[str, object]:
    return {
        "relay_id": str(relay.relay_id), "service": relay.service, "host": relay.host, "pid": relay.pid,
        "version": relay.version, "destinations": json_of(relay.destinations), "reachable": json_of(relay.reachable),
        "asleep": relay.asleep,
    }  # fmt: skip


def _relay(row: Sequence[Any]) -> RelayInfo:
    relay_id, service, host, pid, version, destinations, reachable, asleep, started_at, expires_at = row
    return RelayInfo(
        relay_id=UUID(relay_id), service=service, host=host, pid=pid, version=version,
        destinations=texts_of(destinations), reachable=texts_of(reachable), asleep=bool(asleep),
        started_at=time_of(started_at), expires_at=time_of(expires_at),
    )  # fmt: skip


def _owners(tx: Transaction, live: set[UUID]) -> dict[str, dict[int, UUID]]:
    owners: dict[str, dict[int, UUID]] = {}
    by_text = {str(relay_id): relay_id for relay_id in live}
    for destination, partition, relay_id in tx.rows("lanes_owned"):
        if relay_id in by_text:
            owners.setdefault(destination, {})[partition] = by_text[relay_id]
    return owners


def _release(tx: Transaction, fence: Fence) -> None:
    relay_id = str(fence.relay_id)
    released = [
        partition
        for partition, epoch in fence.epochs.items()
        if tx.run("lanes_release", {
            "relay_id": relay_id, "destination": fence.destination, "partition": partition, "epoch": epoch,
        })
    ]  # fmt: skip
    claims = claims_of(tx, [relay_id]) if released else []
    ids = [id_ for claim in claims for id_ in claim.message_ids]
    asked = {"ids": ids, "destination": fence.destination, "partitions": released}
    gone = {row[0] for row in tx.rows("ids_in_lanes", asked)}
    trim(tx, claims, keep=lambda id_: id_ not in gone)
