"""MySQL group replication: three members, of which one is the primary and takes the writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pymysql

from proof.clusters.cluster import HOST, Cluster, Node, Target, keep_missing, list_tree, stop_program
from tests.support.mariadb_server import PrivateMysql, connected
from tests.support.packages import load_packages
from tests.support.private_program import free_port

__all__ = ["GroupReplicationCluster"]

_MEMBERS: Final = "select member_port, member_role, member_state from performance_schema.replication_group_members"
_REJOIN: Final = 30.0
"""Seconds that a member gets to join its group by itself."""
_JOIN: Final = (
    "change replication source to source_user = 'root', source_password = '' for channel 'group_replication_recovery'",
    "start group_replication",
)


class _Member(PrivateMysql):
    """One member. It joins its group by itself from its second start on."""

    def __init__(self, number: int, *, group: str, local: int, seeds: Sequence[int]) -> None:
        super().__init__(self.found())
        self.name = f"m{number}"
        self._number = number
        self._group = group
        self._local = local
        self._seeds = seeds
        self.joins_at_start = False
        self._joined_at = time.monotonic()

    def arguments(self) -> Sequence[str]:
        seeds = ",".join(f"{HOST}:{port}" for port in self._seeds)
        return (
            *super().arguments(),
            f"--server-id={self._number + 1}",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            f"--report-host={HOST}",
            f"--report-port={self.port}",
            "--plugin-load-add=group_replication.so",
            f"--loose-group-replication-group-name={self._group}",
            f"--loose-group-replication-local-address={HOST}:{self._local}",
            f"--loose-group-replication-group-seeds={seeds}",
            "--loose-group-replication-recovery-get-public-key=ON",
            f"--loose-group-replication-start-on-boot={'ON' if self.joins_at_start else 'OFF'}",
        )

    def stop(self) -> None:
        stop_program(self)

    def list_pids(self) -> Sequence[int]:
        return list_tree(self.pid)

    def start(self) -> None:
        self._joined_at = time.monotonic()
        self.launch()

    def rejoin(self) -> None:
        """Do what an operator does when a member came back before the others had noticed that it was gone.

        It was refused then. It gets time to join by itself first.
        """
        if time.monotonic() - self._joined_at > _REJOIN:
            self._joined_at = time.monotonic()
            self.run("stop group_replication", "start group_replication")

    def run(self, *statements: str) -> list[Any]:
        with (
            closing(connected(self.url, autocommit=True, read_timeout=60)) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


class GroupReplicationCluster(Cluster):
    """The members agree on the order of commits. The others elect a primary when it is gone."""

    name = "mysql-group"
    promise = "keeps what it acknowledged: the majority of the group has received it"
    freeze = 25.0

    def start(self) -> None:
        with keep_missing("MySQL comes as pinned packages of Debian"):
            _Member.found()
        local, group = [free_port() for _ in range(3)], str(uuid4())
        self._servers = [_Member(number, group=group, local=local[number], seeds=local) for number in range(3)]
        self.nodes: list[Node] = [*self._servers]
        for server in self._servers:
            server.started()
        self._found_group()
        for server in self._servers[1:]:
            server.run(*_JOIN)
        for server in self._servers:
            server.joins_at_start = True
        self.wait_until_whole(None)

    def _found_group(self) -> None:
        first = self._servers[0]
        first.run("set global group_replication_bootstrap_group = on")
        first.run(*_JOIN, "set global group_replication_bootstrap_group = off")

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def read_version(self) -> str:
        return f"MySQL {load_packages()['mysql'].version}, group replication, three members, single primary"

    def prepare(self, run: str, folder: Path) -> Target:
        self._find_primary().run(f"create database {run}")
        hosts = ",".join(f"{HOST}:{server.port}" for server in self._servers)
        return Target(backend="mariadb", store=f"mysql://root@{hosts}/{run}")

    def find_leader(self, target: Target) -> Node:
        return self._find_primary()

    def _find_primary(self) -> _Member:
        for server in self._servers:
            try:
                members = server.run(_MEMBERS)
            except pymysql.Error:
                continue
            for port, role, state in members:
                if (role, state) == ("PRIMARY", "ONLINE"):
                    return next(one for one in self._servers if one.port == int(port))
        raise LookupError("there is no primary")

    def is_whole(self, target: Target | None) -> bool:
        for server in self._servers:
            members = server.run(_MEMBERS)
            if [state for _, _, state in members] in (["OFFLINE"], ["ERROR"]):
                server.rejoin()
                return False
            if sorted(state for _, _, state in members) != ["ONLINE"] * 3:
                return False
        return True
