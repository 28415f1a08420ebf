"""RabbitMQ: three nodes and a quorum queue with three members."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aio_pika
import msgspec

from proof.clusters.cluster import HOST, Cluster, Node, Target, list_tree, send_signal
from proof.clusters.engines.sqlite import make_sqlite_store
from proof.judge import NumberedRow
from tests.support.private_program import PrivateProgram, free_port
from tests.support.private_rabbitmq import _program_folders as find_program_folders
from tests.support.servers import ServerMissing

__all__ = ["RabbitmqCluster"]

_COOKIE: Final = "pillarbox-clusters"
_PATIENCE: Final = 120.0
_SETTINGS: Final = """
listeners.tcp.1 = 127.0.0.1:{port}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
cluster_formation.peer_discovery_backend = classic_config
{members}
cluster_name = pillarbox
net_ticktime = 6
cluster_partition_handling = pause_minority
disk_free_limit.absolute = 1MB
log.console = true
log.console.level = warning
log.file = false
"""


class _PortMapper(PrivateProgram):
    """epmd at a port of our own, by which the nodes find each other: the machine's own is left alone."""

    names = ("epmd",)

    def arguments(self) -> Sequence[str]:
        return "-port", str(self.port), "-address", HOST


class _RabbitmqNode:
    """One node."""

    def __init__(self, number: int, *, programs: Path, mapper: int, members: Sequence[str]) -> None:
        self.name = members[number]
        self.port, self.management, self._distribution = free_port(), free_port(), free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="pillarbox-rabbitmq-"))
        self._programs = programs
        self._mapper = mapper
        self._process: subprocess.Popen[bytes] | None = None
        lines = "\n".join(
            f"cluster_formation.classic_config.nodes.{at} = {member}" for at, member in enumerate(members, 1)
        )
        settings = _SETTINGS.format(port=self.port, management=self.management, members=lines)
        (self.folder / "rabbitmq.conf").write_text(settings)
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].")
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(_COOKIE)
        cookie.chmod(0o400)

    def list_pids(self) -> Sequence[int]:
        return list_tree(self._process.pid if self._process is not None and self._process.poll() is None else None)

    def start(self) -> None:
        if self._process is not None:
            self._process.wait(_PATIENCE)
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [self._programs / "rabbitmq-server"], cwd=self.folder, env=self._build_environment(),
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            send_signal(self.list_pids(), signal.SIGTERM)
            self._process.wait(_PATIENCE)

    def close(self) -> None:
        while pids := self.list_pids():
            send_signal(pids, signal.SIGKILL)
            time.sleep(0.05)
        if self._process is not None:
            self._process.wait(_PATIENCE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, path: str) -> Any:
        """Ask the management API."""
        request = urllib.request.Request(f"http://{HOST}:{self.management}/api/{path}")
        request.add_header("Authorization", f"Basic {base64.b64encode(b'guest:guest').decode()}")
        with urllib.request.urlopen(request, timeout=5) as reply:  # noqa: S310
            return json.loads(reply.read())

    def _build_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._mapper),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }


class RabbitmqCluster(Cluster):
    """A quorum queue confirms a message when two of three members have it on disk."""

    name = "rabbitmq"
    promise = "keeps what it confirmed: two of three members of the quorum queue have it on disk"
    freeze = 25.0
    _mapper: _PortMapper | None = None

    def start(self) -> None:
        programs = next(iter(find_program_folders()), None)
        if programs is None:
            raise ServerMissing("RabbitMQ is not installed: apt-get install rabbitmq-server")
        self._mapper = _PortMapper(_PortMapper.found()).started()
        members = [f"pillarbox{number}x{self._mapper.port}@localhost" for number in range(3)]
        self._servers = [
            _RabbitmqNode(number, programs=programs, mapper=self._mapper.port, members=members) for number in range(3)
        ]
        self.nodes: list[Node] = [*self._servers]
        for server in self._servers:
            server.start()
        self.wait_until_whole(None, within=180)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        if self._mapper is not None:
            self._mapper.close()

    def read_version(self) -> str:
        overview = self._servers[0].ask("overview")
        return f"RabbitMQ {overview['rabbitmq_version']}, Erlang {overview['erlang_version']}, three nodes"

    def prepare(self, run: str, folder: Path) -> Target:
        async def declare() -> None:
            connection = await aio_pika.connect(f"amqp://guest:guest@{HOST}:{self._servers[0].port}/")
            async with connection:
                channel = await connection.channel()
                await channel.declare_queue(run, durable=True, arguments={"x-queue-type": "quorum"})

        asyncio.run(declare())
        hosts = ",".join(f"{HOST}:{server.port}" for server in self._servers)
        return make_sqlite_store(folder, to=f"amqp://guest:guest@{hosts}/?exchange=&routing_key={run}")

    def find_leader(self, target: Target) -> Node:
        leader = self._ask_any(f"queues/%2F/{_find_queue(target)}")["leader"]
        return next(server for server in self._servers if server.name == leader)

    def is_whole(self, target: Target | None) -> bool:
        for server in self._servers:
            nodes = server.ask("nodes")
            if len(nodes) != 3 or not all(node["running"] for node in nodes):
                return False
        return target is None or len(self._ask_any(f"queues/%2F/{_find_queue(target)}")["online"]) == 3

    def read_arrivals(self, target: Target) -> list[NumberedRow]:
        return asyncio.run(self._read_queue(_find_queue(target)))

    async def _read_queue(self, name: str) -> list[NumberedRow]:
        """Read the queue until it is empty, in its order."""
        rows: list[NumberedRow] = []
        connection = await aio_pika.connect(f"amqp://guest:guest@{HOST}:{self._servers[0].port}/")
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=1_000)
            queue = await channel.declare_queue(name, passive=True)
            async with queue.iterator(timeout=5) as messages:
                try:
                    async for message in messages:
                        rows.append(msgspec.json.decode(message.body, type=NumberedRow))
                        await message.ack()
                except TimeoutError:
                    return rows
        return rows

    def _ask_any(self, path: str) -> Any:
        for server in self._servers:
            try:
                return server.ask(path)
            except OSError:
                continue
        raise LookupError("no node answers")


def _find_queue(target: Target) -> str:
    return (target.to or "").partition("routing_key=")[2]
