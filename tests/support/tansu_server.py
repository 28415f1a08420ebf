"""A Kafka broker that is not librdkafka's mock: Tansu, which keeps its records and offsets in SeaweedFS, on loopback.

Both come from pinned packages and run as plain processes. The broker can be killed and started again; what it
acknowledged is in the storage then. It is an independent implementation of the protocol, and not Apache Kafka.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.packages import install
from tests.support.private_program import PrivateProgram, free_port
from tests.support.servers import ServerMissing

__all__ = ["PrivateTansu", "StorageGate"]

_BUCKET: Final = "pillarbox"
_PATIENCE: Final = 60.0


class _Seaweed(PrivateProgram):
    """Object storage with the interface of S3: one process, files in its folder."""

    @classmethod
    def found(cls) -> Path:
        return next(install("seaweedfs").rglob("scripts/weed"))

    def __init__(self, program: Path) -> None:
        super().__init__(program)
        ports = {name: free_port() for name in ("master", "volume", "filer")}
        places = {**ports, "s3": self.port}
        self._places = [f"-{name}.port={port}" for name, port in places.items()]
        self._places += [f"-{name}.port.grpc={free_port()}" for name in places]

    def arguments(self) -> Sequence[str]:
        own = ("server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3")
        # Without a port these two listen at fixed ones, and a second server would end.
        unused = ("-s3.port.iceberg=0", "-s3.port.lance=0")
        return (*own, "-volume.max=20", "-master.volumeSizeLimitMB=64", *unused, *self._places)

    def answers(self) -> bool:
        """It listens before a bucket can be made."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{_BUCKET}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - loopback
                return True
        except (urllib.error.URLError, OSError):
            return False


class _Storage(Protocol):
    """The part of the storage that the broker needs."""

    @property
    def port(self) -> int: ...

    def close(self) -> None: ...


class StorageGate:
    """Stands between the broker and its storage. It can hold back requests that store records, and no others."""

    @classmethod
    def opened(cls) -> Self:
        return cls(_Seaweed(_Seaweed.found()).started())

    def __init__(self, storage: _Storage) -> None:
        self._storage = storage
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.holds_records = False
        self.held = threading.Event()
        """Set when a request was held back. It is never forwarded."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self._storage.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._storage.port))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                request = data.partition(b"\r\n")[0]
                if self.holds_records and request.startswith(b"PUT ") and b".batch" in request:
                    self.held.set()
                    return
                target.sendall(data)
        for one in (source, target):
            one.close()


class PrivateTansu(PrivateProgram):
    """The broker, with its storage. `kill` and `start` are the broker's alone."""

    @classmethod
    def found(cls) -> Path:
        return next(install("tansu").rglob("bin/tansu"))

    @classmethod
    def opened(cls) -> Self:
        """Return one that answers, or raise `ServerMissing`."""
        storage = _Seaweed(_Seaweed.found()).started()
        try:
            return cls(cls.found(), storage).started()
        except BaseException:
            storage.close()
            raise

    def __init__(self, program: Path, storage: _Storage) -> None:
        super().__init__(program)
        self._storage = storage

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def arguments(self) -> Sequence[str]:
        where = f"tcp://{self.address}"
        listen = (f"--listener-url={where}", f"--advertised-listener-url={where}")
        return ("broker", *listen, f"--storage-engine=s3://{_BUCKET}/")

    def launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, *self.arguments()], cwd=self.folder, env={**os.environ, **self._environment()},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def answers(self) -> bool:
        if not self.is_listening:
            return False
        try:
            return bool(AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def create(self, *topics: str, partitions: int = 1) -> None:
        """Create topics, and return once they are there."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        made = admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics], operation_timeout=_PATIENCE)
        for done in made.values():
            done.result(_PATIENCE)
        deadline = time.monotonic() + _PATIENCE
        while not set(topics) <= set(admin.list_topics(timeout=_PATIENCE).topics):
            if time.monotonic() > deadline:
                raise ServerMissing("Tansu did not make a topic")
            time.sleep(0.1)

    def close(self) -> None:
        super().close()
        self._storage.close()

    def _environment(self) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self._storage.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            "RUST_LOG": "warn",
        }
