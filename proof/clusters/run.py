"""One failover: load, a fault, load again, and the evidence when everything has drained."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
import psycopg

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.mariadb.connection import connect
from pillarbox.stores.urls import parse_store_url
from proof.clusters.cluster import Cluster, Node, Target, send_signal
from proof.clusters.judge import Evidence, FailoverVerdict, find_pause, judge
from proof.clusters.programs import RelaySpec, WriterSpec
from proof.judge import NumberedRow
from proof.processes import ForkServer, Program, TimedOut, wait_until

__all__ = ["FAULTS", "Load", "Result", "install_tables", "run_fault"]

_START: Final = 60.0
_GOES_ON: Final = 120.0
"""Seconds until delivery must go on, and until everything must have drained."""
_NAMED: Final = 5
"""So many wrong messages are named."""
_CALM: Final = 2.0
"""Seconds of load before a fault, and after delivery went on."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How much is written. Writers end by themselves after so many transactions of two messages."""

    writers: int = 3
    keys: int = 4
    transactions: int = 3_000
    interval: float = 0.02


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one fault on one cluster."""

    cluster: str
    fault: str
    version: str
    messages: int = 0
    lost: int = 0
    ghosts: int = 0
    out_of_order: int = 0
    duplicates: int = 0
    undone: int = 0
    """Acknowledged, and taken back by a cluster that does not promise to keep it."""
    pause: float = 0.0
    """Longest time without a delivery after the fault, in seconds."""
    faults: Sequence[str] = ()
    log: str = ""

    @property
    def holds(self) -> bool:
        return not (self.lost or self.ghosts or self.out_of_order or self.faults)


# --- the faults ---

_LEADERLESS: Final = 60.0
_SUPERVISOR: Final = 2.0
"""Seconds until a supervisor starts a process that died."""


def _find_leader(cluster: Cluster, target: Target) -> Node:
    found: list[Node] = []

    def find() -> bool:
        with suppress(Exception):
            found.append(cluster.find_leader(target))
        return bool(found)

    wait_until(find, within=_LEADERLESS, what=f"{cluster.name} has a leader")
    return found[0]


def _kill_leader(cluster: Cluster, target: Target, goes_on: Callable[[], None]) -> None:
    """Kill the leader as a machine dies: all its processes at once. It comes back when delivery has gone on."""
    leader = _find_leader(cluster, target)
    send_signal(leader.list_pids(), signal.SIGKILL)
    if cluster.restarts:
        time.sleep(_SUPERVISOR)
        leader.start()
        goes_on()
    else:
        goes_on()
        leader.start()


def _freeze_leader(cluster: Cluster, target: Target, goes_on: Callable[[], None]) -> None:
    """Freeze the leader for longer than an election, and let it go on: it still takes itself for the leader."""
    leader = _find_leader(cluster, target)
    pids = leader.list_pids()
    until = time.monotonic() + cluster.freeze
    send_signal(pids, signal.SIGSTOP)
    try:
        if not cluster.restarts:
            goes_on()
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        send_signal(pids, signal.SIGCONT)


def _restart_all(cluster: Cluster, target: Target, goes_on: Callable[[], None]) -> None:
    """Restart all nodes in order, one by one, as an upgrade does. The leader is the last."""
    leader = _find_leader(cluster, target)
    for node in sorted(cluster.nodes, key=lambda node: node is leader):
        node.stop()
        node.start()
        cluster.wait_until_whole(target)
    goes_on()


Fault = Callable[[Cluster, Target, Callable[[], None]], None]
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {"kill": _kill_leader, "freeze": _freeze_leader, "rolling-restart": _restart_all}
)
"""By the name that `--faults` takes."""


# --- one run ---


def run_fault(
    cluster: Cluster, fault: str, *, folder: Path, fork_server: ForkServer, load: Load, version: str
) -> Result:
    """Run one fault on a cluster that is whole, and leave it whole."""
    folder.mkdir()
    target = cluster.prepare("run_" + fault.replace("-", "_"), folder)
    install_tables(target, load=load)
    scene = _Scene(cluster, target, folder=folder, fork_server=fork_server, load=load)
    result = Result(cluster=cluster.name, fault=fault, version=version)
    try:
        verdict, pause, messages = scene.play(FAULTS[fault])
    except TimedOut as late:
        return msgspec.structs.replace(result, faults=[str(late)], log=scene.read_logs())
    finally:
        scene.close()
    counts = verdict.verdict
    result = msgspec.structs.replace(
        result,
        messages=messages,
        lost=counts.lost,
        ghosts=counts.ghosts,
        out_of_order=counts.out_of_order,
        duplicates=counts.duplicates,
        undone=verdict.undone,
        pause=pause,
        faults=[
            *counts.faults,
            *(f"out of order: {one}" for one in counts.overtaken[:_NAMED]),
            *(f"lost: {one}" for one in verdict.missing[:_NAMED]),
        ],
    )
    return result if result.holds else msgspec.structs.replace(result, log=scene.read_logs())


class _Scene:
    """The processes and files of one run."""

    def __init__(self, cluster: Cluster, target: Target, *, folder: Path, fork_server: ForkServer, load: Load) -> None:
        self._cluster = cluster
        self._target = target
        self._folder = folder
        self._fork_server = fork_server
        self._load = load
        self._programs: list[Program] = []

    def play(self, inject: Fault) -> tuple[FailoverVerdict, float, int]:
        """Return the verdict, the longest pause in seconds, and how many messages were written."""
        relays = [self._start_relay(number) for number in range(2)]
        writers = [self._start_writer(number) for number in range(self._load.writers)]
        wait_until(lambda: len(self._read_times()) > 50, within=_START, what="messages are delivered")
        time.sleep(_CALM)
        at = time.monotonic()
        inject(self._cluster, self._target, lambda: self._wait_until_it_goes_on(at))
        self._wait_until_it_goes_on(time.monotonic())
        time.sleep(_CALM)
        for writer in writers:
            writer.terminate()
        wait_until(lambda: all(writer.has_ended for writer in writers), within=30, what="the writers stop")
        self._cluster.wait_until_whole(self._target)
        wait_until(self._is_drained, within=_GOES_ON, what="every message is delivered")
        codes = [relay.stop() for relay in relays]
        evidence = self._collect_evidence(codes)
        pause = find_pause(self._read_times(), since=at)
        return judge(evidence, may_undo=self._cluster.may_undo), pause, len(evidence.committed)

    def close(self) -> None:
        for program in self._programs:
            program.kill()

    def read_logs(self) -> str:
        return "\n".join(f"{path.name}\n{path.read_text()[-4000:]}" for path in sorted(self._folder.glob("*.log")))

    # --- processes ---

    def _start_writer(self, number: int) -> Program:
        spec = WriterSpec(
            backend=self._target.backend, store=self._target.store, schema=None, name=f"{chr(97 + number)}",
            keys=self._load.keys, transactions=self._load.transactions, interval=self._load.interval,
            journal=str(self._folder / f"writer-{number}.txt"),
        )  # fmt: skip
        return self._start(spec, f"writer-{number}")

    def _start_relay(self, number: int) -> Program:
        spec = RelaySpec(
            backend=self._target.backend, store=self._target.store, schema=None, to=self._target.to,
            arrivals=str(self._folder / "arrivals.jsonl"), journal=str(self._folder / f"relay-{number}.txt"),
        )  # fmt: skip
        return self._start(spec, f"relay-{number}")

    def _start(self, spec: WriterSpec | RelaySpec, name: str) -> Program:
        program = self._fork_server.start(spec, log=self._folder / f"{name}.log")
        self._programs.append(program)
        return program

    # --- what can be seen ---

    def _read_journal(self, pattern: str) -> Iterator[tuple[float, str, list[str]]]:
        for path in sorted(self._folder.glob(pattern)):
            for line in path.read_text().splitlines():
                at, what, *subjects = line.split()
                yield float(at), what, subjects

    def _read_times(self) -> list[float]:
        return [at for at, _, _ in self._read_journal("relay-*.txt")]

    def _wait_until_it_goes_on(self, since: float) -> None:
        """Wait until something that was written after this moment is delivered, of every writer."""

        def goes_on() -> bool:
            delivered = {subject for _, _, subjects in self._read_journal("relay-*.txt") for subject in subjects}
            written: dict[str, set[str]] = {}
            for at, what, subjects in self._read_journal("writer-*.txt"):
                if what == "acknowledged" and at > since:
                    written.setdefault(subjects[0][0], set()).update(subjects)
            return len(written) == self._load.writers and all(some & delivered for some in written.values())

        wait_until(goes_on, within=_GOES_ON, what="delivery goes on")

    def _is_drained(self) -> bool:
        with suppress(Exception), _query(self._target) as query:
            ((count,),) = query("select count(*) from pillarbox_outbox")
            return int(count) == 0
        return False

    def _collect_evidence(self, exit_codes: Sequence[int | None]) -> Evidence:
        with _query(self._target) as query:
            rows = query("select subject, number from business_row")
            ((failed,),) = query("select count(*) from pillarbox_history where status <> 'delivered'")
        committed = [NumberedRow(subject, subject.partition("/")[0], int(number)) for subject, number in rows]
        noted: dict[str, list[str]] = {"tried": [], "acknowledged": [], "delivered": []}
        for _, what, subjects in sorted(self._read_journal("*.txt")):
            noted[what] += subjects
        return Evidence(
            attempted=noted["tried"], acknowledged=noted["acknowledged"], committed=committed,
            delivered=noted["delivered"], arrivals=self._read_arrivals(), failed=int(failed), exit_codes=exit_codes,
        )  # fmt: skip

    def _read_arrivals(self) -> list[NumberedRow]:
        if self._target.to is not None:
            return self._cluster.read_arrivals(self._target)
        lines = (self._folder / "arrivals.jsonl").read_bytes().splitlines()
        return [msgspec.json.decode(line, type=NumberedRow) for line in lines]


# --- the store ---

Query = Callable[[str], Sequence[Any]]


@contextmanager
def _query(target: Target) -> Iterator[Query]:
    """Connect to the leader, and yield a function that runs a query there."""
    dsn = parse_store_url(target.store).dsn
    if target.backend == "postgres":
        dsn = f"{dsn}{'&' if '?' in dsn else '?'}target_session_attrs=read-write&connect_timeout=3"
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield (
                lambda sql: (
                    connection.execute(sql.encode()).fetchall()
                    if sql.startswith("select")
                    else [connection.execute(sql.encode())]
                )
            )
    elif target.backend == "mariadb":
        with closing(connect(dsn, timeout=10)) as connection, connection.cursor() as cursor:

            def run(sql: str) -> Sequence[Any]:
                cursor.execute(sql)
                return list(cursor.fetchall())

            yield run
    else:
        with closing(sqlite3.connect(parse_store_url(target.store).path, timeout=30)) as file, file:
            yield lambda sql: file.execute(sql).fetchall()


def install_tables(target: Target, *, load: Load) -> None:
    """Create the tables of the store, the business table, and the row of each key."""
    asyncio.run(open_schema(parse_store_url(target.store), names=Names()).install())
    key, text = ("`key`", "varchar(200)") if target.backend == "mariadb" else ("key", "text")
    keys = [f"('{chr(97 + writer)}{one}', 0)" for writer in range(load.writers) for one in range(load.keys)]
    with _query(target) as query:
        query(f"create table business_row (subject {text} primary key, {key} {text} not null, number integer not null)")
        query(f"create table key_row ({key} {text} primary key, number integer not null)")
        query(f"insert into key_row values {', '.join(keys)}")
