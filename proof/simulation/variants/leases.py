"""Broken leases: heartbeats that work can hold up, and relays that go on without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

from pillarbox.message import Message
from pillarbox.relay.lease import Lease
from pillarbox.relay.membership import Heartbeat, LeaseLost
from pillarbox.relay.sender import Sender
from proof.simulation.checker import Promise
from proof.simulation.variants.variant import Changes, Replace

__all__ = ["LEASES"]

_AT_WORK: Final = 0.01


def heartbeat_blocked_by_work(replace: Replace) -> None:
    """The lease is renewed between two sends, not beside them."""
    original_send, original_renew = Sender._send, Heartbeat.run_once
    under_way: WeakKeyDictionary[Lease, int] = WeakKeyDictionary()

    async def send(sender: Sender, messages: Sequence[Message]) -> None:
        lease = sender._state.lease
        under_way[lease] = under_way.get(lease, 0) + 1
        try:
            await original_send(sender, messages)
        finally:
            under_way[lease] -= 1

    async def run_once(heartbeat: Heartbeat) -> None:
        while under_way.get(heartbeat._lease):
            await asyncio.sleep(_AT_WORK)
        await original_renew(heartbeat)

    replace(Sender, "_send", send)
    replace(Heartbeat, "run_once", run_once)


def lease_counted_from_the_answer(replace: Replace) -> None:
    """The lease is believed to hold for its length after the renewal was answered, not after it was asked for."""
    original_run = Heartbeat.run_once

    async def run_once(heartbeat: Heartbeat) -> None:
        lease = heartbeat._lease
        before = lease._until
        await original_run(heartbeat)
        if lease._until > before:
            lease.extend(heartbeat._clock.monotonic())

    replace(Heartbeat, "run_once", run_once)


def goes_on_without_a_lease(replace: Replace) -> None:
    """A relay stops when its renewal is refused, and not before."""
    replace(Lease, "may_act", lambda lease, now: True)


def stale_claim_sent(replace: Replace) -> None:
    """What was claimed under a lease is sent when that lease has ended: nobody looks again before sending."""
    original_send = Sender.send_ready

    def send_ready(sender: Sender) -> float:
        with patch.object(Lease, "may_act", lambda lease, now: True):
            return original_send(sender)

    replace(Sender, "send_ready", send_ready)


def lease_lost_unnoticed(replace: Replace) -> None:
    """A relay that was refused a renewal goes on as before."""
    original_run = Heartbeat.run_once

    async def run_once(heartbeat: Heartbeat) -> None:
        try:
            await original_run(heartbeat)
        except LeaseLost:
            heartbeat._lease.extend(heartbeat._clock.monotonic())

    replace(Heartbeat, "run_once", run_once)
    replace(Lease, "may_act", lambda lease, now: True)


LEASES: Changes = {
    heartbeat_blocked_by_work: (Promise.STARVED,),
    lease_counted_from_the_answer: (Promise.OVERRUN,),
    goes_on_without_a_lease: (Promise.OVERRUN,),
    stale_claim_sent: (Promise.OVERRUN,),
    lease_lost_unnoticed: (Promise.OVERRUN,),
}
