"""The consumer's HTTP endpoint. Here relays speak to the consumer itself: while it is down, nobody takes messages."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Final
from urllib.parse import urlsplit

from pillarbox.cloudevents import HTTP, read
from pillarbox.demo.intakes import Taker
from pillarbox.demo.line import Line
from pillarbox.errors import ConfigError, DecodeError, MessageRejected, MissingExtra

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise MissingExtra("aiohttp", extra="http", needed_for="The demo") from error

__all__ = ["HttpIntake", "http_line"]

_SLOWEST: Final = 0.02
"""Seconds until an answer: a request under way is what a killed relay leaves behind."""
_LOOPBACK: Final = ("127.0.0.1", "localhost")
# Below the ports that systems give to outgoing connections: while the consumer is down, a relay that knocks at such a
# port could be connected with itself.
_PORTS: Final = range(20_000, 32_000)


def http_line(url: str) -> Line:
    """To an endpoint of the demo's own, at a free port if the URL has none."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", _port_in(url) or _free_port()
    if host not in _LOOPBACK:
        raise ConfigError("The demo's own consumer listens at --to, so its host must be 127.0.0.1 or localhost.")
    path = parts.path if parts.path not in ("", "/") else "/orders"
    options = [option for option in parts.query.split("&") if option and not option.startswith("allow_private=")]
    at = f"http://{host}:{port}{path}"
    return Line(kind="http", to=f"{at}?{'&'.join([*options, 'allow_private=true'])}", at=at)


class HttpIntake:
    """Listens at the line's place."""

    def __init__(self, line: Line) -> None:
        parts = urlsplit(line.at)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 0, parts.path

    async def prepare(self) -> None:
        """Nothing: the consumer itself is what the relays send to."""

    async def remove(self) -> None:
        """Nothing."""

    async def is_ready(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return False
        writer.close()
        return True

    async def serve(self, taker: Taker) -> None:
        """The answer is 204 once a message's transaction has committed, 422 to what is no order."""

        async def answer(request: web.Request) -> web.Response:
            if request.method != "POST":
                return web.Response(status=204)
            try:
                taker.apply(read(request.headers, await request.read(), binding=HTTP))
            except (DecodeError, MessageRejected) as error:
                return web.Response(status=422, text=str(error))
            await asyncio.sleep(random.uniform(0, _SLOWEST))  # noqa: S311 - how long something takes
            return web.Response(status=204)

        app = web.Application()
        app.router.add_route("*", self._path, answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port).start()
        await asyncio.Event().wait()


def _port_in(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        raise ConfigError("The port in --to is not a number between 1 and 65535.") from None


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigError("No free port was found for the demo's consumer: name one with --to http://127.0.0.1:PORT.")
