"""MariaDB Galera: three nodes that take a commit together or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pymysql

from proof.clusters.cluster import HOST, Cluster, Node, Target, list_tree, stop_program
from tests.support.mariadb_server import PrivateMariadb, connected
from tests.support.private_program import free_port
from tests.support.servers import ServerMissing

__all__ = ["GaleraCluster"]

_LIBRARIES: Final = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")


_ACCOUNT: Final = "mysql"
"""Whom the nodes run as where we are root: rsync gives root's rights away, and could not write root's files then."""


def _find_library() -> str:
    for path in _LIBRARIES:
        if Path(path).exists():
            return path
    raise ServerMissing("libgalera_smm.so is not installed: apt-get install mariadb-server galera-4 rsync")


class _GaleraNode(PrivateMariadb):
    """One node. It joins the others, or begins the cluster if it is told to."""

    def __init__(self, name: str, group: int) -> None:
        super().__init__(self.found())
        self.name = name
        self.group = group
        """The port for the other nodes."""
        self.state = free_port()
        """The port over which it gets all data from another node."""
        self.incremental = free_port()
        self.others: Sequence[int] = ()
        self.is_first = False

    def arguments(self) -> Sequence[str]:
        members = ",".join(f"{HOST}:{port}" for port in self.others)
        # Ports of its own for everything, and timeouts that a test can wait for.
        options = [
            f"gmcast.listen_addr=tcp://{HOST}:{self.group}", f"base_port={self.group}",
            f"ist.recv_addr={HOST}:{self.incremental}",
            "evs.suspect_timeout=PT3S", "evs.inactive_timeout=PT6S", "evs.inactive_check_period=PT1S",
            "evs.keepalive_period=PT1S", "gcache.size=64M", "pc.weight=1",
        ]  # fmt: skip
        own = [word for word in super().arguments() if not word.startswith("--user=")]
        return (
            *own,
            *((f"--user={_ACCOUNT}",) if os.geteuid() == 0 else ()),
            "--wsrep-on=ON",
            f"--wsrep-provider={_find_library()}",
            f"--wsrep-cluster-name=pillarbox{self.others[0]}",
            f"--wsrep-cluster-address=gcomm://{'' if self.is_first else members}",
            f"--wsrep-node-name={self.name}",
            f"--wsrep-node-address={HOST}:{self.group}",
            f"--wsrep-sst-receive-address={HOST}:{self.state}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-provider-options={';'.join(options)}",
            "--binlog-format=ROW",
            "--default-storage-engine=InnoDB",
            "--innodb-autoinc-lock-mode=2",
        )

    def _install(self) -> None:
        super()._install()
        if os.geteuid() == 0:
            for path in (self.folder, *self.folder.rglob("*")):
                shutil.chown(path, _ACCOUNT)

    def stop(self) -> None:
        stop_program(self)

    def list_pids(self) -> Sequence[int]:
        return list_tree(self.pid)

    def start(self) -> None:
        self.launch()

    def read_status(self) -> dict[str, str]:
        with closing(connected(self.url, autocommit=True, read_timeout=3)) as connection, connection.cursor() as cursor:
            cursor.execute("show global status like 'wsrep_%'")
            return {str(name): str(value) for name, value in cursor.fetchall()}


class GaleraCluster(Cluster):
    """Every process names the nodes in the same order, so all of them write to one node at a time."""

    name = "galera"
    promise = "keeps what it acknowledged: every node of the majority has it"
    freeze = 20.0

    def start(self) -> None:
        _find_library()
        groups = [free_port() for _ in range(3)]
        self._servers = [_GaleraNode(f"g{number}", group) for number, group in enumerate(groups)]
        self.nodes: list[Node] = [*self._servers]
        for server in self._servers:
            server.others = groups
        self._servers[0].is_first = True
        for server in self._servers:
            server.started()
            server.is_first = False
        self.wait_until_whole(None)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def read_version(self) -> str:
        with closing(connected(self._servers[0].url)) as connection:
            server = str(connection.get_server_info()).partition("-MariaDB")[0].rpartition("5.5.5-")[2]
        provider = self._servers[0].read_status()["wsrep_provider_version"].partition("(")[0]
        return f"MariaDB {server}, Galera {provider}, three nodes"

    def prepare(self, run: str, folder: Path) -> Target:
        hosts = ",".join(f"{HOST}:{server.port}" for server in self._servers)
        with closing(connected(self._servers[0].url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(f"create database {run}")
        return Target(backend="mariadb", store=f"mysql://root@{hosts}/{run}")

    def find_leader(self, target: Target) -> Node:
        """All may be written to. The first of the URL that is ready is the one that everybody uses."""
        for server in self._servers:
            try:
                status = server.read_status()
            except pymysql.Error:
                continue
            if status["wsrep_ready"] == "ON" and status["wsrep_cluster_status"] == "Primary":
                return server
        raise LookupError("no node is ready")

    def is_whole(self, target: Target | None) -> bool:
        states: list[Any] = [server.read_status() for server in self._servers]
        return all(one["wsrep_local_state_comment"] == "Synced" and one["wsrep_cluster_size"] == "3" for one in states)
