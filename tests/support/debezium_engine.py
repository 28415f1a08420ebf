"""A real Debezium: its embedded engine in a process of its own, from pinned packages, with any Java 17 or newer.

The engine runs connector and transforms as Kafka Connect does. What Kafka Connect does last, to turn a record into the
bytes that go to Kafka, the child process does with the same converters.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.packages import find_installed, install
from tests.support.servers import ServerMissing

__all__ = ["DebeziumEngine", "Record", "find_debezium"]

_CHILD: Final = Path(__file__).with_name("debezium_child.py")
_PATIENCE: Final = 60.0


def find_debezium(environ: Mapping[str, str] = os.environ) -> str:
    """Return the PYTHONPATH with the engine; `ServerMissing` where it is not in the cache, or Java is missing."""
    if shutil.which("java") is None:
        raise ServerMissing("there is no Java, of which Debezium needs 17 or newer (apt-get install openjdk-17-jre)")
    fetch = install if environ.get("PILLARBOX_TEST_HANDOFF") else find_installed
    return os.pathsep.join([str(fetch("debezium")), str(fetch("jpype"))])


@dataclass(frozen=True, slots=True)
class Record:
    """A record as Kafka would get it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @classmethod
    def parse(cls, line: str) -> Record:
        fields = json.loads(line)
        headers = [(name, _decode(value)) for name, value in fields["headers"]]
        return cls(fields["topic"], _decode(fields["key"]), _decode(fields["value"]), headers)


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class DebeziumEngine:
    """Runs one connector. Its offsets are in a folder, from which a second one goes on."""

    def __init__(self, config: Mapping[str, str], *, folder: Path, path: str) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        own = {
            "name": "engine",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "100",
        }
        (folder / "config.json").write_text(json.dumps({**config, **own}))
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, _CHILD, folder / "config.json"],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def read_until(self, is_enough: Callable[[list[Record]], bool]) -> list[Record]:
        """Return the records of messages so far, once they are enough. Heartbeats are left out."""
        found: list[Record] = []
        while not is_enough(found):
            try:
                line = self._lines.get(timeout=_PATIENCE)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"Debezium gave {len(found)} records, and wrote: {self.log[-3000:]}")
            record = Record.parse(line)
            if not record.topic.startswith("__debezium-heartbeat"):
                found.append(record)
        return found

    def read(self, count: int) -> list[Record]:
        """Return the next records of messages."""
        return self.read_until(lambda found: len(found) >= count)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def freeze(self) -> None:
        """Stop it from running, as a machine that hangs does: its connection stays."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_PATIENCE)

    def close(self) -> None:
        """Stop it in order, or else at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(_PATIENCE)
        self._process.stdout.close()
