"""SQS and SNS for tests: moto, which plays AWS, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from tests.support.private_program import free_port
from tests.support.servers import ServerMissing, missing

__all__ = ["MotoServer", "PrivateMoto", "private_moto"]

_PATIENCE: Final = 60.0
_PROGRAM: Final = "import sys; from moto.server import main; main(sys.argv[1:])"


@dataclass(slots=True)
class PrivateMoto:
    """moto's server on a free loopback port. All it knows is gone with it."""

    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @classmethod
    def started(cls) -> PrivateMoto:
        """A new one that answers, or `ServerMissing`."""
        if find_spec("moto") is None:
            raise ServerMissing("the package moto is not installed")
        server = cls(free_port())
        try:
            server._start()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_PATIENCE)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "-H", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for pytest, which then ends the server
        )
        deadline = time.monotonic() + _PATIENCE
        while MotoServer().refusal(self.url) is not None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerMissing("a private one did not start")
            time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class MotoServer:
    """How tests find moto."""

    name: str = "moto server"
    variable: str = "MOTO_URL"
    remedy: str = "run make venv, which brings moto"

    def usual_urls(self) -> Sequence[str]:
        """Nobody runs one all the time."""
        return ()

    def refusal(self, url: str) -> str | None:
        try:
            with urllib.request.urlopen(f"{url}/moto-api/data.json", timeout=2):  # noqa: S310 - a loopback URL
                return None
        except OSError as error:
            return str(error)

    def start_private(self) -> PrivateMoto:
        return PrivateMoto.started()


def private_moto() -> PrivateMoto:
    """moto's server, or the end of the test for want of one."""
    try:
        return PrivateMoto.started()
    except ServerMissing as reason:
        missing(MotoServer(), reason=str(reason), environ=os.environ)


def port_of(url: str) -> int:
    return urlsplit(url).port or 80
