"""The programs that the crash matrix starts and kills: relays, writers and operators.

`python -m proof.crash.programs` is the fork server that starts them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

import pillarbox.brokers.http.transport  # noqa: F401 - so that no child has to import it
from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.store import BulkResult, Selection, Store
from pillarbox.contracts.transport import Transport
from pillarbox.message import Message, Names, State
from pillarbox.relay.archive import Archive
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings, Retention
from pillarbox.retry import RetryPolicy
from pillarbox.stores.factory import open_store
from proof.crash.consumer import Arrivals
from proof.crash.scenarios import Action
from proof.crash.steps import make_kill_switch
from proof.databases import BACKENDS, write
from proof.kill_points import Call, KillableTransport, KillSwitch, SendLimit, make_store_killable
from proof.messages import DEAD_LETTERS, DESTINATION, build_event
from proof.processes import ProgramSpec, serve_forks

__all__ = ["OperatorSpec", "RelaySpec", "WriterSpec", "apply_to_failed"]


class RelaySpec(ProgramSpec, frozen=True, kw_only=True):
    """Runs a relay until it is stopped or dies."""

    to: str
    """The consumer's URL."""
    arrivals: str
    """The consumer's file of arrivals."""
    archive: str | None = None
    """A file that gets what is purged."""
    lease: float
    batch: int
    window: int
    after_failure: Literal["continue", "hold"]
    purges: bool
    """Delivered messages are purged at once, and often."""
    forwards: bool
    """Failed messages go to a dead-letter destination."""
    lone_cap: int
    send_limit: int | None
    """How many messages are sent; None: all."""


class WriterSpec(ProgramSpec, frozen=True, kw_only=True):
    """Writes transactions of so many messages each."""

    key: str
    transactions: int
    messages: int


class OperatorSpec(ProgramSpec, frozen=True, kw_only=True):
    """Redrives or discards all failed messages, in batches."""

    action: Action
    batch: int


async def _run_relay(spec: RelaySpec) -> None:
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    kill_switch = make_kill_switch(spec.kill)
    BACKENDS[spec.backend].hook(kill_switch)
    relay = Relay(
        make_store_killable(open_store(spec.store, names=Names(spec.schema)), kill_switch),
        _build_destinations(spec, kill_switch),
        settings=_build_settings(spec),
        archive=None if spec.archive is None else _make_archive(Path(spec.archive)),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


def _build_destinations(spec: RelaySpec, kill_switch: KillSwitch) -> list[Destination]:
    arrivals, send_limit = Arrivals(Path(spec.arrivals)), SendLimit(spec.send_limit)

    def open_transport(destination: str) -> Transport:
        transport = transport_from_url(f"{spec.to}/{destination}?allow_private=true&timeout=5s")
        return KillableTransport(transport, kill_switch, read_accepted=arrivals.read_accepted, send_limit=send_limit)

    settings = DestinationSettings(
        name=DESTINATION, batch=spec.batch, window=spec.window, after_failure=spec.after_failure,
        send_timeout=timedelta(seconds=5), retry=RetryPolicy(attempts=4, first=timedelta(milliseconds=200)),
        dead_letter=DEAD_LETTERS if spec.forwards else None,
    )  # fmt: skip
    destinations = [Destination(lambda: open_transport(DESTINATION), settings)]
    if spec.forwards:
        destinations.append(Destination(lambda: open_transport(DEAD_LETTERS), DestinationSettings(name=DEAD_LETTERS)))
    return destinations


def _build_settings(spec: RelaySpec) -> RelaySettings:
    lease = timedelta(seconds=spec.lease)
    purging = Retention(delivered=timedelta(0), every=timedelta(milliseconds=200), batch=5)
    return RelaySettings(
        service="crash", lease=lease, stale_after=lease, watch_interval=timedelta(milliseconds=50),
        poll_interval=timedelta(milliseconds=100), lone_cap=spec.lone_cap,
        retention=purging if spec.purges else Retention(),
    )  # fmt: skip


def _make_archive(path: Path) -> Archive:
    async def archive(messages: Sequence[Message]) -> None:
        lines = "".join(f"{message.subject}\n" for message in messages)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, lines.encode())
        finally:
            os.close(file)

    return archive


def _run_writer(spec: WriterSpec) -> None:
    kill_switch = make_kill_switch(spec.kill)
    with closing(BACKENDS[spec.backend].reopen(spec.store, spec.schema)) as database:
        for transaction in range(spec.transactions):
            first = 1 + transaction * spec.messages
            events = [build_event(spec.key, number) for number in range(first, first + spec.messages)]
            write(database, events, on_stage=partial(kill_switch.reach, call=Call("write")))


async def _run_operator(spec: OperatorSpec) -> None:
    kill_switch = make_kill_switch(spec.kill)
    BACKENDS[spec.backend].hook(kill_switch)
    store = make_store_killable(open_store(spec.store, names=Names(spec.schema)), kill_switch)
    await store.open()
    try:
        await apply_to_failed(store, spec.action, batch=spec.batch)
    finally:
        await store.close()


async def apply_to_failed(store: Store, action: Action, *, batch: int) -> None:
    """Redrive or discard every failed message, in batches, in id order."""
    after = 0
    while (moved := await _apply(store, action, Selection(states=[State.FAILED], after=after), batch)).count:
        after = moved.last_id


async def _apply(store: Store, action: Action, selection: Selection, batch: int) -> BulkResult:
    if action == "redrive":
        return await store.redrive(selection, by="the matrix", limit=batch)
    return await store.discard(selection, by="the matrix", reason="not wanted", limit=batch)


def _run_program(spec: bytes) -> None:
    match msgspec.json.decode(spec, type=RelaySpec | WriterSpec | OperatorSpec):
        case RelaySpec() as relay:
            asyncio.run(_run_relay(relay))
        case WriterSpec() as writer:
            _run_writer(writer)
        case OperatorSpec() as operator:
            asyncio.run(_run_operator(operator))


if __name__ == "__main__":
    serve_forks(_run_program)
