"""One process of `pillarbox relay --processes N`: its start, and its channel to the supervisor.

As a program, `python -m pillarbox.cli._process FD 2/4 ARGUMENT…` runs the arguments as process 2 of 4. FD is a socket
whose other end the supervisor holds. When the supervisor ends, however it ends, the socket closes and the process
stops, so that no relay outlives its supervisor.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

import msgspec

from pillarbox.cli._logs import program_log
from pillarbox.durations import format_duration
from pillarbox.operations.health import HealthApp
from pillarbox.tasks import cancel_all

__all__ = [
    "Answer",
    "Question",
    "RelayProcess",
    "Started",
    "Stop",
    "read_report",
    "to_frame",
]

# --- what the two say to each other ---


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Order to stop gracefully. To repeat it changes nothing, unlike a second signal."""

    signal: str


class Question(msgspec.Struct, frozen=True, tag=True):
    """Question of the supervisor: the name of a page."""

    number: int
    page: str
    """`livez`, `readyz`, `metrics`, or `counters`: the metrics without those from the tables."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """Report that the relay is in the registry. What ends it before that is for a person to fix."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Answer to the question of that number."""

    number: int
    status: int
    content_type: str
    body: bytes


_Order: TypeAlias = Stop | Question
_Report: TypeAlias = Started | Answer
T = TypeVar("T")

_LENGTH: Final = 4
_orders: Final[msgspec.msgpack.Decoder[_Order]] = msgspec.msgpack.Decoder(_Order)
_reports: Final[msgspec.msgpack.Decoder[_Report]] = msgspec.msgpack.Decoder(_Report)


def to_frame(message: _Order | _Report) -> bytes:
    """Encode a message with its length before it."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH) + body


async def read_report(reader: StreamReader) -> _Report | None:
    """Read what a process says; None when it has ended."""
    return await _read(reader, _reports)


async def _read(reader: StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH))
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None


# --- the end of the process ---

_START_POLL: Final = 0.05
"""Seconds between two looks whether the relay is in the registry."""
_JOIN_TIMEOUT: Final = 5.0


class RelayProcess:
    """This process as one of several: what its supervisor asks is answered in a thread, whatever the relay does."""

    def __init__(self, channel: socket.socket, *, number: int, count: int) -> None:
        self._channel = channel
        self.number = number
        self.count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    @property
    def name(self) -> str:
        """Its place, `2/4`, for log lines and for the registry."""
        return f"{self.number}/{self.count}"

    @contextmanager
    def serve(
        self,
        build_app: Callable[[], HealthApp],
        *,
        stop: Callable[[str], None],
        is_started: Callable[[], bool],
        grace: timedelta,
    ) -> Iterator[None]:
        """Answer the supervisor while the block runs.

        `stop` is called from another thread, with the reason. When the supervisor is gone the block has `grace` to end
        after that; then the process is ended, as if killed.
        """
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(build_app, stop, is_started, grace)),
            name="pillarbox-process",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            if self._loop is not None and self._end is not None:
                with suppress(RuntimeError):  # the loop is closed already
                    self._loop.call_soon_threadsafe(self._end.set)
            thread.join(_JOIN_TIMEOUT)

    async def _serve(
        self,
        build_app: Callable[[], HealthApp],
        stop: Callable[[str], None],
        is_started: Callable[[], bool],
        grace: timedelta,
    ) -> None:
        self._end, self._loop = asyncio.Event(), asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(sock=self._channel)
        app = build_app()
        orders = asyncio.create_task(_follow_orders(reader, writer, app, stop))
        started = asyncio.create_task(_report_start(writer, is_started))
        end = asyncio.create_task(self._end.wait())
        await asyncio.wait({orders, end}, return_when=asyncio.FIRST_COMPLETED)
        if not end.done():
            stop("the supervisor is gone")
            await asyncio.wait({end}, timeout=grace.total_seconds())
            if not end.done():
                program_log.error("not finished %s after the supervisor was gone: ending now", format_duration(grace))
                os._exit(1)
        await cancel_all([orders, started])
        await app.close()
        writer.close()


async def _report_start(writer: StreamWriter, is_started: Callable[[], bool]) -> None:
    while not is_started():  # noqa: ASYNC110 - it happens in another thread
        await asyncio.sleep(_START_POLL)
    writer.write(to_frame(Started()))


async def _follow_orders(
    reader: StreamReader, writer: StreamWriter, app: HealthApp, stop: Callable[[str], None]
) -> None:
    """Do what the supervisor says until it is gone. A slow answer keeps no other waiting."""
    async with asyncio.TaskGroup() as answers:
        while (order := await _read(reader, _orders)) is not None:
            if isinstance(order, Stop):
                stop(order.signal)
            else:
                answers.create_task(_answer(order, writer, app))


async def _answer(question: Question, writer: StreamWriter, app: HealthApp) -> None:
    if question.page == "counters":
        status, content_type, body = app.render_counters()
    else:
        status, content_type, body = await app.respond("GET", question.page)
    with suppress(OSError):  # who asked is gone
        writer.write(to_frame(Answer(question.number, status, content_type, body)))
        await writer.drain()


def _main() -> int:
    from pillarbox.cli._errors import run
    from pillarbox.cli._program import pillarbox

    descriptor, place, *arguments = sys.argv[1:]
    number, _, count = place.partition("/")
    channel = socket.socket(fileno=int(descriptor))
    channel.set_inheritable(False)  # what this process starts must not keep the channel open
    return run(pillarbox, arguments, process=RelayProcess(channel, number=int(number), count=int(count)))


if __name__ == "__main__":
    # As a program this file is a module named `__main__`: its classes must be those that the supervisor's side knows.
    from pillarbox.cli._process import _main as main

    sys.exit(main())
