"""The consumer: `python -m proof.crash.consumer FOLDER`. Prints its port, records arrivals there."""

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

from proof.messages import DESTINATION, Parcel

__all__ = ["Arrival", "Arrivals"]


class Arrival(msgspec.Struct, frozen=True):
    """One request with a parcel in it."""

    subject: str
    key: str
    number: int
    status: int
    """The answer to it."""
    at: int
    """On the steady clock, which all processes of a machine share, in nanoseconds."""

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refused(self) -> bool:
        """By a word on this very parcel: 500 or 422. A 503 is said about the consumer."""
        return self.status in (500, 422)


class Arrivals:
    """The file of one scene. A line outlives whoever wrote it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def away(self) -> Path:
        """While this file is there, the consumer answers 503."""
        return self._path.with_suffix(".away")

    def record(self, subject: str, key: str, number: int, *, status: int) -> None:
        line = msgspec.json.encode(Arrival(subject, key, number, status, time.monotonic_ns())) + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def read(self) -> list[Arrival]:
        """All of them, in order."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        return [msgspec.json.decode(line, type=Arrival) for line in lines if line.endswith(b"\n")]


_ACCEPTED: Final = 204
_REFUSED: Final = 500
_LATE: Final = 0.03
_LATEST: Final = 1.0
_SILENCE: Final = 10.0


class _Consumer:
    """Treats each parcel as it asks for. `/SCENE/DESTINATION` is where it comes to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._came: Counter[tuple[str, str]] = Counter()
        self._accepted: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=_ACCEPTED)
        scene, place = request.match_info["scene"], request.match_info["place"]
        arrivals = Arrivals(self._folder / scene)
        parcel = msgspec.json.decode(await request.read(), type=Parcel)
        self._came[scene, parcel.subject] += not arrivals.away.exists()
        time = self._came[scene, parcel.subject]
        status = _status(arrivals, parcel, time, place=place)
        arrivals.record(parcel.subject, parcel.key, parcel.number, status=status)
        if status == _ACCEPTED:
            await self._accept(request, scene, parcel, is_silent=time <= parcel.silent)
        elif status == _REFUSED:
            await self._until_others_are_accepted(scene)
        return web.Response(status=status)

    async def _accept(self, request: web.Request, scene: str, parcel: Parcel, *, is_silent: bool) -> None:
        if is_silent:
            await _silence(request)
        await asyncio.sleep(parcel.slow)
        self._accepted[scene] += 1

    async def _until_others_are_accepted(self, scene: str) -> None:
        """A refusal counts against a message if the destination takes others meanwhile."""
        before = self._accepted[scene]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LATEST):
                while self._accepted[scene] == before:
                    await asyncio.sleep(0.01)
        await asyncio.sleep(_LATE)


def _status(arrivals: Arrivals, parcel: Parcel, time: int, *, place: str) -> int:
    """The answer to a parcel that comes for the nth time."""
    if arrivals.away.exists():
        return 503
    if place == DESTINATION and time <= parcel.refuse:
        return _REFUSED
    if place == DESTINATION and time <= parcel.reject:
        return 422
    return _ACCEPTED


async def _silence(request: web.Request) -> None:
    """Say nothing until the other side is gone."""
    async with asyncio.timeout(_SILENCE):
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)


async def _serve(folder: Path) -> None:
    app = web.Application()
    app.router.add_route("*", "/{scene}/{place}", _Consumer(folder).answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _end_with_the_matrix() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_matrix, daemon=True).start()
    asyncio.run(_serve(Path(sys.argv[1])))
