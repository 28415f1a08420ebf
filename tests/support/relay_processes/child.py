"""A relay as a program: `python -m tests.support.relay_processes.child '{"store": …}'`. SIGTERM stops it gracefully."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import msgspec

from pillarbox.message import Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_store
from tests.support.relay_processes.sink import SinkTransport
from tests.support.relay_processes.ticks import DESTINATION

__all__ = ["Part"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What the program is told."""

    store: str
    schema: str | None
    sink: str
    lease: float = 1.0
    latency: float = 0.01
    batch: int = 500
    lone_cap: int = 5


async def _run(part: Part) -> None:
    destination = Destination(
        lambda: SinkTransport(Path(part.sink), latency=part.latency),
        DestinationSettings(name=DESTINATION, batch=part.batch),
    )
    settings = RelaySettings(
        lease=timedelta(seconds=part.lease),
        watch_interval=timedelta(milliseconds=100),
        poll_interval=timedelta(milliseconds=100),
        lone_cap=part.lone_cap,
    )
    relay = Relay(open_store(part.store, names=Names(part.schema)), [destination], settings=settings)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


def _end_with_the_test() -> None:
    """The test holds the other end of standard input, and takes it along however it dies."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(process)d %(message)s")
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=Part)))
