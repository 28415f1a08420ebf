"""Redis: a master, two replicas and three sentinels. Acknowledged by the master alone, or by a replica too."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis

from proof.clusters.cluster import HOST, Cluster, Node, Target, list_tree
from proof.clusters.engines.sqlite import make_sqlite_store
from proof.judge import NumberedRow
from tests.support.private_program import PrivateProgram
from tests.support.redis_server import PrivateRedis, PrivateValkey
from tests.support.servers import ServerMissing

__all__ = ["RedisCluster", "WaitingRedisCluster"]

_MASTER = "shop"


def _find_program() -> Path:
    try:
        return PrivateRedis.found()
    except ServerMissing:
        return PrivateValkey.found()


class _RedisNode(PrivateRedis):
    """One server. Which of them is the master changes."""

    def __init__(self, *settings: str) -> None:
        super().__init__(_find_program(), *settings)
        self.name = f"{HOST}:{self.port}"

    def arguments(self) -> Sequence[str]:
        # From a file, because sentinels have the server rewrite it: a server that comes back is then a replica.
        path = self.folder / "redis.conf"
        if not path.exists():
            words = list(super().arguments())
            path.write_text("\n".join(f"{words[at][2:]} {words[at + 1]}" for at in range(0, len(words), 2)) + "\n")
        return (str(path),)

    def list_pids(self) -> Sequence[int]:
        return list_tree(self.pid)

    def start(self) -> None:
        self.launch()


class _Sentinel(PrivateProgram):
    """Watches the master, and chooses another one with its peers."""

    def __init__(self, program: Path, master: int) -> None:
        super().__init__(program)
        (self.folder / "sentinel.conf").write_text(
            f"bind {HOST}\nport {self.port}\ndir {self.folder}\n"
            f"sentinel monitor {_MASTER} {HOST} {master} 2\n"
            f"sentinel down-after-milliseconds {_MASTER} 2000\n"
            f"sentinel failover-timeout {_MASTER} 10000\n"
        )

    def arguments(self) -> Sequence[str]:
        return str(self.folder / "sentinel.conf"), "--sentinel"

    def client(self) -> Any:
        return redis.Redis(port=self.port, protocol=2, socket_timeout=3)


class RedisCluster(Cluster):
    """Acknowledged by the master alone."""

    name = "redis"
    may_undo = True
    promise = "may forget what it acknowledged: replicas have it a moment later, and the master may die before"
    freeze = 15.0
    durability = "none"

    def start(self) -> None:
        master = _RedisNode()
        self._servers = [master]
        self._sentinels: list[_Sentinel] = []
        self.nodes: list[Node] = [master]
        for _ in range(2):
            replica = _RedisNode("--replicaof", f"{HOST} {master.port}")
            self._servers.append(replica)
            self.nodes.append(replica)
        for server in self._servers:
            server.started()
        for _ in range(3):
            self._sentinels.append(_Sentinel(master.program, master.port).started())
        self.wait_until_whole(None)

    def close(self) -> None:
        for node in (*self.nodes, *getattr(self, "_sentinels", ())):
            node.close()

    def read_version(self) -> str:
        done = subprocess.run([_find_program(), "--version"], capture_output=True, text=True, check=True)
        server, _, rest = done.stdout.partition(" server v=")
        return f"{server} {rest.partition(' ')[0]} with three sentinels"

    def prepare(self, run: str, folder: Path) -> Target:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self._sentinels)
        url = f"redis+sentinel://{hosts}/{_MASTER}?key={run}&durability={self.durability}&timeout=5s"
        return make_sqlite_store(folder, to=url)

    def find_leader(self, target: Target) -> Node:
        port = self._find_port()
        return next(server for server in self._servers if server.port == port)

    def is_whole(self, target: Target | None) -> bool:
        port = self._find_port()
        roles = {server.port: server.client().role() for server in self._servers}
        followers = [
            role for at, role in roles.items() if at != port and role[0] == b"slave" and role[3] == b"connected"
        ]
        seen = [sentinel.client().sentinel_sentinels(_MASTER) for sentinel in self._sentinels]
        return roles[port][0] == b"master" and len(followers) == 2 and all(len(others) == 2 for others in seen)

    def read_arrivals(self, target: Target) -> list[NumberedRow]:
        client: Any = redis.Redis(port=self._find_port(), protocol=2)
        key = (target.to or "").partition("key=")[2].partition("&")[0]
        return [msgspec.json.decode(fields[b"data"], type=NumberedRow) for _, fields in client.xrange(key)]

    def _find_port(self) -> int:
        """Return the master's port, by the word of at least two sentinels."""
        named = [int(sentinel.client().sentinel_get_master_addr_by_name(_MASTER)[1]) for sentinel in self._sentinels]
        return next(port for port in named if named.count(port) >= 2)


class WaitingRedisCluster(RedisCluster):
    """Acknowledged when a replica has it too."""

    name = "redis-wait"
    promise = (
        "keeps what a replica has acknowledged as long as that replica takes over: sentinels choose the one that has "
        "most. Redis itself does not call that strong consistency"
    )
    may_undo = False
    durability = "wait:1"
