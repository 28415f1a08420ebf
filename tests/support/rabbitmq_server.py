"""RabbitMQ for tests: where to look for it, and how to run a private one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import aiormq

from tests.support.private_rabbitmq import PrivateRabbitmq, shared
from tests.support.servers import ServerMissing, found, missing

__all__ = ["RabbitmqServer", "found_rabbitmq", "private_rabbitmq"]


@dataclass(frozen=True, slots=True)
class _Borrowed:
    """The process's own server: whoever borrows it does not stop it."""

    url: str

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RabbitmqServer:
    """How tests find RabbitMQ."""

    port: int = 5672
    name: str = "RabbitMQ"
    variable: str = "RABBITMQ_URL"
    remedy: str = "install RabbitMQ"

    def usual_urls(self) -> Sequence[str]:
        return [f"amqp://guest:guest@127.0.0.1:{self.port}/"]

    def refusal(self, url: str) -> str | None:
        """Usable means that it lets us in."""
        with ThreadPoolExecutor(1) as thread:  # wherever it is asked, also where a loop runs already
            return thread.submit(asyncio.run, _refusal(url)).result()

    def start_private(self) -> _Borrowed:
        return _Borrowed(shared().url)


async def _refusal(url: str) -> str | None:
    try:
        async with asyncio.timeout(5):
            connection = await aiormq.connect(url)
            await connection.close()
    except (OSError, aiormq.AMQPError) as error:
        return type(error).__name__
    return None


@contextmanager
def found_rabbitmq() -> Iterator[str]:
    """The URL of one that tests may fill, but not stop."""
    with found(RabbitmqServer(), environ=os.environ) as url:
        yield url


def private_rabbitmq() -> PrivateRabbitmq:
    """The one that tests may stop and start again, running; or the end of the test for want of it."""
    try:
        server = shared()
        server.start()
    except ServerMissing as reason:
        missing(RabbitmqServer(), reason=str(reason), environ=os.environ)
    return server
