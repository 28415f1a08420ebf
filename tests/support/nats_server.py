"""NATS for tests: where to look for a server, and how to run a private one."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sysconfig
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from tests.support.private_program import PrivateProgram
from tests.support.servers import ServerMissing, missing

__all__ = ["NatsServer", "PrivateNats", "Stream", "private_nats", "stream_at", "stream_named"]


class PrivateNats(PrivateProgram):
    """A JetStream server. `settings` are lines of its configuration."""

    names = (str(Path(sysconfig.get_path("scripts")) / "nats-server"), "nats-server")

    def __init__(self, program: Path, *settings: str) -> None:
        super().__init__(program)
        self.settings = settings

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"nats://127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        store = self.folder / "jetstream"
        lines = [f"listen: 127.0.0.1:{self.port}", f'jetstream {{ store_dir: "{store}" }}', *self.settings]
        (self.folder / "conf").write_text("\n".join(lines) + "\n")
        return "-c", str(self.folder / "conf")

    def answers(self) -> bool:
        """It listens before JetStream is ready, and greets only then."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
                return line.recv(5) == b"INFO " and "Server is ready" in self.log_of_run
        except OSError:
            return False


def private_nats(*settings: str) -> PrivateNats:
    """A server that the test may stop, kill and start again; or the end of the test for want of one."""
    try:
        return PrivateNats(PrivateNats.found(), *settings).started()
    except ServerMissing as reason:
        missing(NatsServer(), reason=str(reason), environ=os.environ)


@dataclass(frozen=True, slots=True)
class NatsServer:
    """How tests find NATS with JetStream."""

    port: int = 4222
    name: str = "NATS"
    variable: str = "NATS_URL"
    remedy: str = "install nats-server, or run make venv, which brings one"

    def usual_urls(self) -> Sequence[str]:
        return [f"nats://127.0.0.1:{self.port}"]

    def refusal(self, url: str) -> str | None:
        """Usable means that it lets us make streams."""
        return asyncio.run(_refusal(url))

    def start_private(self) -> PrivateNats:
        return PrivateNats(PrivateNats.found()).started()


async def _refusal(url: str) -> str | None:
    try:
        async with asyncio.timeout(5), stream_at(url):
            return None
    except (OSError, TimeoutError, nats.errors.Error) as error:
        return str(error) or type(error).__name__


class Stream:
    """A stream of a test's own, as somebody sees it who knows nothing of Pillarbox."""

    def __init__(self, js: JetStreamContext, name: str) -> None:
        self.js = js
        self.name = name
        """Also what all its subjects begin with."""

    async def change(self, **config: Any) -> None:
        """Set something else on it."""
        known = (await self.js.stream_info(self.name)).config.evolve(**config)
        await self.js.update_stream(known)

    async def put(self, subject: str) -> int:
        """Store something that is not from us; its number in the stream."""
        return (await self.js.publish(subject, b"in the way")).seq

    async def messages(self) -> list[RawStreamMsg]:
        """All that it holds, in order."""
        state = (await self.js.stream_info(self.name)).state
        found = []
        for number in range(max(1, state.first_seq), state.last_seq + 1):
            try:
                found.append(await self.js.get_msg(self.name, number))
            except nats.js.errors.NotFoundError:
                continue
        return found


async def _quiet(error: Exception) -> None:
    """The client would log what the caller gets as an exception anyway."""


@asynccontextmanager
async def stream_at(url: str, **config: Any) -> AsyncIterator[Stream]:
    """A new stream with the subjects NAME.>, removed afterwards."""
    name = f"pillarbox-test-{secrets.token_hex(6)}"
    async with stream_named(url, name, **config) as stream:
        try:
            yield stream
        finally:
            await stream.js.delete_stream(name)


@asynccontextmanager
async def stream_named(url: str, name: str, **config: Any) -> AsyncIterator[Stream]:
    """The stream of this name, with the subjects NAME.>, made if it is not there."""
    client = await nats.connect(url, allow_reconnect=False, connect_timeout=2, error_cb=_quiet)
    try:
        js = client.jetstream()
        try:
            await js.stream_info(name)
        except nats.js.errors.NotFoundError:
            await js.add_stream(name=name, subjects=[f"{name}.>"], **config)
        yield Stream(js, name)
    finally:
        await client.close()
