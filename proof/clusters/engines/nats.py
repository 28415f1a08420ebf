"""NATS: three servers, and a JetStream stream with three replicas."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import nats
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from proof.clusters.cluster import HOST, Cluster, Node, Target, list_tree
from proof.clusters.engines.sqlite import make_sqlite_store
from proof.judge import NumberedRow
from tests.support.nats_server import PrivateNats
from tests.support.private_program import free_port

__all__ = ["NatsCluster"]

T = TypeVar("T")


class _NatsNode(PrivateNats):
    """One server of the cluster."""

    def __init__(self, name: str, route: int, routes: Sequence[int]) -> None:
        others = ", ".join(f"nats://{HOST}:{port}" for port in routes)
        super().__init__(
            self.found(),
            f"server_name: {name}",
            f"cluster {{ name: pillarbox, listen: {HOST}:{route}, routes: [{others}] }}",
        )
        self.name = name

    def list_pids(self) -> Sequence[int]:
        return list_tree(self.pid)

    def start(self) -> None:
        self.launch()


class NatsCluster(Cluster):
    """JetStream acknowledges a message when two of three servers have it."""

    name = "nats"
    promise = "keeps what it acknowledged: two of three servers have it on disk"
    freeze = 25.0

    def start(self) -> None:
        routes = [free_port() for _ in range(3)]
        servers = [_NatsNode(f"n{number}", route, routes) for number, route in enumerate(routes)]
        self.nodes: list[Node] = [*servers]
        self._servers = servers
        for server in servers:
            server.start()
        self.wait_until_whole(None)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def read_version(self) -> str:
        done = subprocess.run([_NatsNode.found(), "--version"], capture_output=True, text=True, check=True)
        return done.stdout.strip().replace("nats-server: v", "NATS ")

    def prepare(self, run: str, folder: Path) -> Target:
        async def create(js: JetStreamContext) -> None:
            await js.add_stream(StreamConfig(name=run, subjects=[f"{run}.>"], num_replicas=3))

        self._call(create)
        hosts = ",".join(f"{HOST}:{server.port}" for server in self._servers)
        return make_sqlite_store(folder, to=f"nats://{hosts}?stream={run}&subject={run}.{{topic}}")

    def find_leader(self, target: Target) -> Node:
        async def find(js: JetStreamContext) -> str | None:
            info = await js.stream_info(_find_stream(target))
            return None if info.cluster is None else info.cluster.leader

        name = self._call(find)
        return next(server for server in self._servers if server.name == name)

    def is_whole(self, target: Target | None) -> bool:
        if not all(server.answers() for server in self._servers):
            return False

        async def check(js: JetStreamContext) -> bool:
            if target is None:
                await js.account_info()  # answered by the leader of the meta group
                return True
            cluster = (await js.stream_info(_find_stream(target))).cluster
            replicas = [] if cluster is None else cluster.replicas or []
            return len(replicas) == 2 and all(replica.current and not replica.offline for replica in replicas)

        return self._call(check)

    def read_arrivals(self, target: Target) -> list[NumberedRow]:
        async def read(js: JetStreamContext) -> list[NumberedRow]:
            stream = _find_stream(target)
            subscription = await js.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True)
            count = (await js.stream_info(stream)).state.messages
            messages = [await subscription.next_msg(timeout=10) for _ in range(count)]
            return [msgspec.json.decode(message.data, type=NumberedRow) for message in messages]

        return self._call(read)

    def _call(self, work: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        async def run() -> T:
            async def ignore(_: Exception) -> None: ...

            urls = [server.url for server in self._servers]
            client = await nats.connect(urls, allow_reconnect=False, connect_timeout=5, error_cb=ignore)
            try:
                return await work(client.jetstream(timeout=10))
            finally:
                await client.close()

        return asyncio.run(run())


def _find_stream(target: Target) -> str:
    return (target.to or "").partition("stream=")[2].partition("&")[0]
