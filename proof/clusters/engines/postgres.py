"""PostgreSQL under Patroni: a primary and two standbys, with an etcd that is not touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg

from proof.clusters.cluster import HOST, Cluster, Node, Target, keep_missing, list_tree, send_signal
from tests.support.packages import install, load_packages
from tests.support.postgres_programs import account, environment, program_folders, reachable
from tests.support.private_program import PrivateProgram, free_port
from tests.support.servers import ServerMissing

__all__ = ["AsynchronousPostgresCluster", "PostgresCluster"]

_MISSING: Final = "Patroni and etcd come as pinned packages of Debian"
_PATIENCE: Final = 60.0


class _Etcd(PrivateProgram):
    """The store in which Patroni agrees on a leader."""

    @classmethod
    def found(cls) -> Path:
        return install("etcd") / "usr" / "bin" / "etcd"

    def arguments(self) -> Sequence[str]:
        client, peer = f"http://{HOST}:{self.port}", f"http://{HOST}:{free_port()}"
        return (
            f"--data-dir={self.folder / 'data'}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )  # fmt: skip


class _PatroniNode:
    """Patroni and the PostgreSQL that it runs. They die, freeze and stop together, as on one machine."""

    def __init__(self, name: str, *, etcd: int, programs: Path, is_synchronous: bool) -> None:
        self.name = name
        self.port = free_port()
        self.rest_port = free_port()
        self.account = account()
        self.folder = Path(tempfile.mkdtemp(prefix="pillarbox-patroni-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._packages = install("patroni") / "usr" / "lib" / "python3" / "dist-packages"
        self._postmaster: int | None = None
        (self.folder / "patroni.yml").write_text(
            json.dumps(self._build_settings(etcd, programs=programs, is_synchronous=is_synchronous))  # JSON is YAML too
        )
        if self.account.uid is not None and self.account.gid is not None:
            for path in (self.folder, self.folder / "patroni.yml"):
                os.chown(path, self.account.uid, self.account.gid)

    def _build_settings(self, etcd: int, *, programs: Path, is_synchronous: bool) -> dict[str, Any]:
        address, rest = f"{HOST}:{self.port}", f"{HOST}:{self.rest_port}"
        rules = ["local all all trust", f"host all all {HOST}/32 trust", f"host replication all {HOST}/32 trust"]
        return {
            "scope": "pillarbox",
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"{HOST}:{etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": 20,  # the least that Patroni takes
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "synchronous_mode": is_synchronous,
                    "synchronous_mode_strict": is_synchronous,
                    "maximum_lag_on_failover": 1024 * 1024 * 1024,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True, "pg_hba": rules},
                },
                "initdb": ["no-locale", "no-sync", {"encoding": "UTF8"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self.folder / "data"),
                "bin_dir": str(programs),
                "pgpass": str(self.folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "postgres"},
                    "rewind": {"username": "postgres"},
                },
                "parameters": {
                    "unix_socket_directories": "",
                    "fsync": "off",  # a killed server loses nothing by it, only a killed machine does
                    "wal_log_hints": "on",
                    "wal_keep_size": "256MB",
                    "shared_buffers": "32MB",
                    "max_connections": 60,
                },
            },
            "tags": {"nofailover": False},
        }

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def read_rest(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{HOST}:{self.rest_port}/{path}", timeout=3) as reply:
            return json.loads(reply.read())

    def list_pids(self) -> Sequence[int]:
        patroni = self._process.pid if self._process is not None and self._process.poll() is None else None
        return [*list_tree(patroni), *list_tree(self._read_postmaster())]

    def _read_postmaster(self) -> int | None:
        """Return the server's process: it belongs to init, and not to Patroni that started it."""
        try:
            pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            return None
        return pid if str(self.folder).encode() in command else None

    def start(self) -> None:
        if self._process is not None:
            self._process.wait(_PATIENCE)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._lower_rights(), sys.executable, "-m", "patroni", str(self.folder / "patroni.yml")],
                cwd=self.folder,
                env={**environment(), "PYTHONPATH": str(self._packages), "HOME": str(self.folder)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _lower_rights(self) -> Sequence[str]:
        """Return how to run a program as the account. It may still read: Python itself can be in root's home."""
        if self.account.uid is None:
            return ()
        rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        return ("setpriv", f"--reuid={self.account.uid}", f"--regid={self.account.gid}", "--clear-groups", *rights)

    def stop(self) -> None:
        """Patroni stops its PostgreSQL, and gives the leadership away, before it ends."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_PATIENCE)

    def close(self) -> None:
        while pids := self.list_pids():
            send_signal(pids, signal.SIGKILL)
            if self._process is not None:
                self._process.wait(_PATIENCE)
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresCluster(Cluster):
    """Commits wait for a synchronous standby, and only that one takes over."""

    name = "postgres-sync"
    promise = "keeps what it acknowledged: a synchronous standby has it, and no other takes over"
    freeze = 60.0
    is_synchronous = True

    _etcd: _Etcd | None = None

    def start(self) -> None:
        with keep_missing(_MISSING):
            install("patroni")
            self._etcd = _Etcd(_Etcd.found()).started()
        found = next(iter(program_folders()), None)
        if found is None:
            raise ServerMissing("PostgreSQL's programs are not installed: apt-get install postgresql, or make venv")
        if os.geteuid() == 0 and shutil.which("setpriv") is None:
            raise ServerMissing("PostgreSQL refuses to run as root, and there is no setpriv: run this as another user")
        programs = reachable(found, account=account(), copies=self.folder)
        self._servers = [
            _PatroniNode(f"p{number}", etcd=self._etcd.port, programs=programs, is_synchronous=self.is_synchronous)
            for number in range(3)
        ]
        self.nodes: list[Node] = [*self._servers]
        for server in self._servers:
            server.start()
        try:
            self.wait_until_whole(None)
        except BaseException:
            print(*((server.folder / "log").read_text()[-2000:] for server in self._servers), sep="\n", file=sys.stderr)
            raise

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        if self._etcd is not None:
            self._etcd.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read_version(self) -> str:
        with psycopg.connect(self._servers[0].url) as connection:
            server = connection.info.parameter_status("server_version") or ""
        versions = load_packages()
        return (
            f"PostgreSQL {server.partition(' ')[0]}, Patroni {versions['patroni'].version}, "
            f"etcd {versions['etcd'].version}, two standbys"
        )

    def prepare(self, run: str, folder: Path) -> Target:
        leader = self._find_leader()
        with psycopg.connect(leader.url, autocommit=True) as connection:
            connection.execute(f"create database {run}".encode())
        hosts = ",".join(f"{HOST}:{server.port}" for server in self._servers)
        return Target(backend="postgres", store=f"postgresql://postgres@{hosts}/{run}")

    def find_leader(self, target: Target) -> Node:
        return self._find_leader()

    def _find_leader(self) -> _PatroniNode:
        for member in self._read_members():
            if member["role"] == "leader":
                return next(server for server in self._servers if server.name == member["name"])
        raise LookupError("there is no leader")

    def _read_members(self) -> list[Any]:
        for server in self._servers:
            try:
                return list(server.read_rest("cluster")["members"])
            except OSError:
                continue
        raise LookupError("no Patroni answers")

    def is_whole(self, target: Target | None) -> bool:
        members = self._read_members()
        followers = [one for one in members if one["role"] != "leader" and one["state"] == "streaming"]
        behind = [one for one in followers if one.get("lag") not in (0, None)]
        awaited = [one for one in followers if one["role"] == "sync_standby"]
        answers = all(server.read_rest("patroni")["state"] == "running" for server in self._servers)
        return answers and len(followers) == 2 and not behind and bool(awaited) is self.is_synchronous


class AsynchronousPostgresCluster(PostgresCluster):
    """Commits wait for no standby."""

    name = "postgres-async"
    may_undo = True
    promise = (
        "may forget what it acknowledged: commits that no standby had received when the primary died, "
        "although their messages may have been delivered"
    )
    is_synchronous = False
