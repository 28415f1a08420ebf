"""One hot key against many on the brokers that take runs: each in one line, see `benchmarks.relay.hot`."""

from __future__ import annotations

import asyncio
import socket
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aiohttp import web

from benchmarks.brokers.kafka import Kafka
from benchmarks.brokers.nats import Nats
from benchmarks.brokers.redis import Redis
from benchmarks.relay.hot import compare_broker, compare_keys

__all__ = ["hot_http", "hot_kafka", "hot_nats", "hot_redis"]

_HOST: Final = "127.0.0.1"


async def hot_redis() -> None:
    """`hot.redis`."""
    await compare_broker(Redis())


async def hot_kafka() -> None:
    """`hot.kafka`, on librdkafka's mock cluster unless KAFKA_URL says otherwise."""
    await compare_broker(Kafka())


async def hot_nats() -> None:
    """`hot.nats`, on a server of its own: the one of the test tools has atomic batches."""
    program = Path(sysconfig.get_path("scripts")) / "nats-server"
    with TemporaryDirectory() as folder:
        port = _find_free_port()
        async with _run(str(program), "-js", "-sd", folder, "-a", _HOST, "-p", str(port), port=port):
            await compare_broker(Nats(f"nats://{_HOST}:{port}", atomic=True))


async def hot_http() -> None:
    """`hot.http`: an endpoint in a process of its own that takes everything, with batches."""
    port = _find_free_port()
    async with _run(sys.executable, "-m", "benchmarks.brokers.hot", str(port), port=port):
        await compare_keys("http", f"http://{_HOST}:{port}/hooks?allow_private=true&batch=true")


@asynccontextmanager
async def _run(*command: str, port: int) -> AsyncIterator[None]:
    """Run a server for as long as the block runs; begin when it listens."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(30):
            while not _is_listening(port):
                await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        await process.wait()


def _find_free_port() -> int:
    with socket.create_server((_HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((_HOST, port)) == 0


def _serve(port: int) -> None:
    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=204)

    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/hooks", take)
    web.run_app(app, host=_HOST, port=port, print=None, access_log=None)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
