"""A broker of Kafka's protocol that is not librdkafka's mock: Tansu, with its storage in SeaweedFS.

It is an independent implementation, and not Apache Kafka. The broker has no state of its own and no leader to elect: it
is started again, as a supervisor does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, TopicPartition

from proof.clusters.cluster import HOST, Cluster, Node, Target, keep_missing, list_tree
from proof.clusters.engines.sqlite import make_sqlite_store
from proof.judge import NumberedRow
from tests.support.packages import load_packages
from tests.support.tansu_server import PrivateTansu, _Seaweed

__all__ = ["TansuCluster"]


class _Broker(PrivateTansu):
    """One broker. The storage is not its own."""

    def __init__(self, name: str, storage: _Seaweed) -> None:
        super().__init__(self.found(), storage)
        self.name = name

    def list_pids(self) -> Sequence[int]:
        return list_tree(self.pid)

    def start(self) -> None:
        self.launch()

    def close(self) -> None:
        super(PrivateTansu, self).close()


class TansuCluster(Cluster):
    """Acknowledged when the storage has it, says Tansu."""

    name = "tansu"
    promise = "says that the storage has what it acknowledged"
    freeze = 20.0
    restarts = True
    _storage: _Seaweed | None = None

    def start(self) -> None:
        with keep_missing("Tansu and SeaweedFS come as pinned wheels"):
            program = _Seaweed.found()
            PrivateTansu.found()
        self._storage = _Seaweed(program).started()
        self._servers = [_Broker("t0", self._storage)]
        self.nodes: list[Node] = [*self._servers]
        for server in self._servers:
            server.started()
        self.wait_until_whole(None)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        if self._storage is not None:
            self._storage.close()

    def read_version(self) -> str:
        versions = load_packages()
        return f"Tansu {versions['tansu'].version} over SeaweedFS {versions['seaweedfs'].version}, one broker"

    def prepare(self, run: str, folder: Path) -> Target:
        self._servers[0].create(run, partitions=3)
        hosts = ",".join(f"{HOST}:{server.port}" for server in self._servers)
        return make_sqlite_store(folder, to=f"kafka://{hosts}?topic={run}")

    def find_leader(self, target: Target) -> Node:
        return self._servers[0]

    def is_whole(self, target: Target | None) -> bool:
        return all(server.answers() for server in self._servers)

    def read_arrivals(self, target: Target) -> list[NumberedRow]:
        topic = (target.to or "").partition("topic=")[2]
        consumer = Consumer(
            {
                "bootstrap.servers": f"{HOST}:{self._servers[0].port}", "group.id": "proof", "log_level": 0,
                "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        rows: list[NumberedRow] = []
        try:
            # Until nothing comes any more: what the broker calls the end of a partition may lag behind.
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
            while (message := consumer.poll(15)) is not None:
                if message.error() is None:
                    rows.append(msgspec.json.decode(message.value() or b"", type=NumberedRow))
        finally:
            consumer.close()
        return rows
