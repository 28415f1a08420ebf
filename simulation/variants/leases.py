"""Broken leases: heartbeats that work can hold up, and relays that go on without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

from pillarbox.message import Message
from pillarbox.relay.dispatch import Dispatch
from pillarbox.relay.membership import Heartbeat, LeaseLost
from pillarbox.relay.standing import Standing
from simulation.variants.variant import Switch

__all__ = ["LEASES"]

_AT_WORK: Final = 0.01


def heartbeat_blocked_by_work(switch: Switch) -> None:
    """The lease is renewed between two sends, not beside them."""
    send_as_it_was, renew_as_it_was = Dispatch._send, Heartbeat.run_once
    under_way: WeakKeyDictionary[Standing, int] = WeakKeyDictionary()

    async def send(dispatch: Dispatch, messages: Sequence[Message]) -> None:
        standing = dispatch._work.standing
        under_way[standing] = under_way.get(standing, 0) + 1
        try:
            await send_as_it_was(dispatch, messages)
        finally:
            under_way[standing] -= 1

    async def run_once(heartbeat: Heartbeat) -> None:
        while under_way.get(heartbeat._standing):
            await asyncio.sleep(_AT_WORK)
        await renew_as_it_was(heartbeat)

    switch(Dispatch, "_send", send)
    switch(Heartbeat, "run_once", run_once)


def lease_counted_from_the_answer(switch: Switch) -> None:
    """The lease is believed to hold for its length after the renewal was answered, not after it was asked for."""
    run_as_it_was = Heartbeat.run_once

    async def run_once(heartbeat: Heartbeat) -> None:
        standing = heartbeat._standing
        before = standing._until
        await run_as_it_was(heartbeat)
        if standing._until > before:
            standing.renewed(heartbeat._clock.monotonic())

    switch(Heartbeat, "run_once", run_once)


def goes_on_without_a_lease(switch: Switch) -> None:
    """A relay stops when its renewal is refused, and not before."""
    switch(Standing, "may_act", lambda standing, now: True)


def stale_claim_sent(switch: Switch) -> None:
    """What was claimed under a lease is sent when that lease has ended: nobody looks again before sending."""
    send_as_it_was = Dispatch.send_ready

    def send_ready(dispatch: Dispatch) -> float:
        with patch.object(Standing, "may_act", lambda standing, now: True):
            return send_as_it_was(dispatch)

    switch(Dispatch, "send_ready", send_ready)


def lease_lost_unnoticed(switch: Switch) -> None:
    """A relay that was refused a renewal goes on as before."""
    run_as_it_was = Heartbeat.run_once

    async def run_once(heartbeat: Heartbeat) -> None:
        try:
            await run_as_it_was(heartbeat)
        except LeaseLost:
            heartbeat._standing.renewed(heartbeat._clock.monotonic())

    switch(Heartbeat, "run_once", run_once)
    switch(Standing, "may_act", lambda standing, now: True)


LEASES = (
    heartbeat_blocked_by_work,
    lease_counted_from_the_answer,
    goes_on_without_a_lease,
    stale_claim_sent,
    lease_lost_unnoticed,
)
