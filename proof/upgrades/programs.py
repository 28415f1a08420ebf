"""The programs of a mixed run: a writer and a relay. Each release runs them with the interpreter that imports it.

A writer notes a message when its commit has returned, a relay when it sends it. Both go on until they are terminated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec

import pillarbox
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.inbox import Inbox
from pillarbox.message import Message, Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_store
from proof.databases import BACKENDS
from proof.messages import DESTINATION, build_event, build_outbox

__all__ = ["Task"]

_KEYS: Final = 8
_PAUSE: Final = 0.004
"""Seconds between two messages of a writer."""
_LEASE: Final = timedelta(seconds=2)
_SOURCE: Final = "/proof/upgrades"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one program does."""

    program: str
    """`writer` or `relay`."""
    name: str
    release: str
    backend: str
    store: str
    schema: str | None
    notes: str
    """File that it appends its lines to."""


class _HandledMessage(msgspec.Struct, frozen=True):
    """What a consumer's inbox needs of a message."""

    source: str
    message_id: UUID


class NotedTransport:
    """Appends a line for each message to the file of all relays, in the order of sending."""

    features = TransportFeatures(name="notes")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._file = os.open(task.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def ping(self) -> None: ...

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        lines = [f"{message.subject} {self._task.release}\n" for message in messages]
        os.write(self._file, "".join(lines).encode())
        return [Outcome(True)] * len(messages)


def run_writer(task: Task) -> None:
    """Write and commit numbered messages of a few keys, and handle as many as a consumer, until terminated."""
    is_over = False

    def stop(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, stop)
    inbox, outbox = Inbox("proof", schema=task.schema), build_outbox(Names(schema=task.schema))
    with (
        closing(BACKENDS[task.backend].reopen(task.store, task.schema)) as database,
        Path(task.notes).open("a") as notes,
    ):
        number = 0
        while not is_over:
            number += 1
            for key in range(_KEYS):
                event = build_event(f"{task.name}-k{key}", number)
                with database.transaction() as handle:
                    outbox.publish(handle, event)
                    assert inbox.accept(handle, _HandledMessage(_SOURCE, uuid4()))
                notes.write(f"{event.subject}\n")
                notes.flush()
                time.sleep(_PAUSE)


async def run_relay(task: Task) -> None:
    """Deliver until terminated."""
    relay = Relay(
        open_store(task.store, names=Names(schema=task.schema)),
        [Destination(lambda: NotedTransport(task), DestinationSettings(name=DESTINATION))],
        settings=RelaySettings(lease=_LEASE, poll_interval=timedelta(milliseconds=100)),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.stop)
    await relay.run()


def main() -> None:
    """Run the program that the task names."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    print(f"{task.name}: {task.release} release in {pillarbox.__file__}", flush=True)
    if task.program == "writer":
        run_writer(task)
    else:
        asyncio.run(run_relay(task))


if __name__ == "__main__":
    main()
