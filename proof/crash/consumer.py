"""The consumer process, `python -m proof.crash.consumer FOLDER`: prints its port, records arrivals in the folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from proof.messages import DESTINATION, NumberedEvent
from proof.processes import ServerProcess

__all__ = ["Arrival", "Arrivals", "ConsumerProcess"]


class Arrival(msgspec.Struct, frozen=True):
    """One request with a message in it."""

    subject: str
    key: str
    number: int
    status: int
    """The status it was answered with."""
    at: int
    """On the monotonic clock, which all processes of a machine share, in nanoseconds."""

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refused(self) -> bool:
        """Whether this message was refused, with 500 or 422. A 503 says that the consumer is down."""
        return self.status in (500, 422)


class Arrivals:
    """The file with the arrivals of one run. A line is in it before the answer is sent."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def down_file(self) -> Path:
        """While this file is there, the consumer answers 503."""
        return self._path.with_suffix(".down")

    def record(self, subject: str, key: str, number: int, *, status: int) -> None:
        line = msgspec.json.encode(Arrival(subject, key, number, status, time.monotonic_ns())) + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def read(self) -> list[Arrival]:
        """Return all arrivals, in order."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        return [msgspec.json.decode(line, type=Arrival) for line in lines if line.endswith(b"\n")]

    def read_accepted(self) -> set[str]:
        """Return the subjects that were accepted so far."""
        return {arrival.subject for arrival in self.read() if arrival.is_accepted}


class ConsumerProcess(ServerProcess):
    """The consumer, as the matrix starts it."""

    def __init__(self, folder: Path) -> None:
        super().__init__("proof.crash.consumer", str(folder), log=folder / "consumer.log")
        self.url = f"http://127.0.0.1:{self.read_port()}"


_ACCEPTED: Final = 204
_REFUSED: Final = 500
_PAUSE: Final = 0.03
_WAIT_LIMIT: Final = 1.0
_HANG_LIMIT: Final = 10.0


class _Consumer:
    """Treats each message as it asks for. Messages come to `/RUN/DESTINATION`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._received: Counter[tuple[str, str]] = Counter()
        self._accepted: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=_ACCEPTED)
        run, destination = request.match_info["run"], request.match_info["destination"]
        arrivals = Arrivals(self._folder / run)
        event = msgspec.json.decode(await request.read(), type=NumberedEvent)
        self._received[run, event.subject] += not arrivals.down_file.exists()
        nth = self._received[run, event.subject]
        status = _choose_status(arrivals, event, nth, destination=destination)
        arrivals.record(event.subject, event.key, event.number, status=status)
        if status == _ACCEPTED:
            await self._accept(request, run, event, is_silent=nth <= event.silent)
        elif status == _REFUSED:
            await self._wait_for_other_message(run)
        return web.Response(status=status)

    async def _accept(self, request: web.Request, run: str, event: NumberedEvent, *, is_silent: bool) -> None:
        if is_silent:
            await _hang(request)
        await asyncio.sleep(event.slow)
        self._accepted[run] += 1

    async def _wait_for_other_message(self, run: str) -> None:
        """Wait until another message was accepted: a refusal spends an attempt only if the destination works."""
        before = self._accepted[run]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_LIMIT):
                while self._accepted[run] == before:
                    await asyncio.sleep(0.01)
        await asyncio.sleep(_PAUSE)


def _choose_status(arrivals: Arrivals, event: NumberedEvent, nth: int, *, destination: str) -> int:
    """Choose the answer to a message that comes for the nth time."""
    if arrivals.down_file.exists():
        return 503
    if destination == DESTINATION and nth <= event.refuse:
        return _REFUSED
    if destination == DESTINATION and nth <= event.reject:
        return 422
    return _ACCEPTED


async def _hang(request: web.Request) -> None:
    """Do not answer until the client is gone."""
    async with asyncio.timeout(_HANG_LIMIT):
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)


async def _serve(folder: Path) -> None:
    app = web.Application()
    app.router.add_route("*", "/{run}/{destination}", _Consumer(folder).answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _exit_with_matrix() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_matrix, daemon=True).start()
    asyncio.run(_serve(Path(sys.argv[1])))
