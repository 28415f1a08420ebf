"""The environment of one run: a database, the consumer, relays, and what can be done with them and seen of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pillarbox.contracts.store import Store
from pillarbox.message import PARTITIONS, SKIPPED_DESTINATION
from pillarbox.stores.factory import open_store
from proof.crash.consumer import Arrivals, ConsumerProcess
from proof.crash.judge import Evidence, StoredMessage
from proof.crash.points import KillPoint
from proof.crash.programs import RelaySpec
from proof.crash.scenarios import Scenario, Transactions
from proof.crash.steps import STEPS
from proof.databases import Database, roll_back, write
from proof.judge import NumberedRow
from proof.kill_points import Kill, KillRecord
from proof.messages import DEAD_LETTERS, DESTINATION, build_event
from proof.processes import ForkServer, Program, ProgramSpec, wait_until

__all__ = ["LEASE", "Environment"]

LEASE: Final = 1.0
"""Seconds."""
_START: Final = 20.0
_LANES: Final = """
select count(*) from pillarbox_lane join pillarbox_relay using (relay_id) where destination = ? and pid = ?
"""
_OPEN: Final = "select count(*) from pillarbox_outbox where coalesce(key, '') <> ?"
_LAPSED: Final = "the lease is lost"


class Environment:
    """Everything of one run. Leaving the block kills its processes."""

    def __init__(
        self,
        point: KillPoint,
        scenario: Scenario,
        *,
        backend: str,
        database: Database,
        folder: Path,
        consumer: ConsumerProcess,
        fork_server: ForkServer,
    ) -> None:
        self.point = point
        self.scenario = scenario
        self.backend = backend
        self.database = database
        self.folder = folder
        self._consumer = consumer
        self._fork_server = fork_server
        self._programs: list[Program] = []
        self.arrivals = Arrivals(folder.with_suffix(".arrivals"))

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()

    # --- act ---

    def start_relay(self, *, kill: Kill | None = None) -> Program:
        """Start a relay."""
        return self.start(self._build_spec(kill))

    def start(self, spec: ProgramSpec) -> Program:
        """Start a program."""
        program = self._fork_server.start(spec, log=self.folder / f"{type(spec).__name__}-{len(self._programs)}.log")
        self._programs.append(program)
        return program

    def load(self) -> None:
        """Write what the scenario begins with, and a transaction that is rolled back."""
        if self.scenario.consumer_down:
            self.arrivals.down_file.touch()
        self.write(self.scenario.load)
        roll_back(self.database, [build_event("k0", 900), build_event("never", 1)])

    def write(self, transactions: Transactions) -> None:
        """Write them, one after the other."""
        for events in transactions:
            write(self.database, events)

    def plan_kill(self, point: KillPoint, nth: int) -> Kill:
        """Plan the death of the next program."""
        return Kill(point.title, nth, str(self.folder / f"kill-{len(self._programs)}"))

    def choose_url(self) -> str:
        """Return the URL of the store. A kill between BEGIN and COMMIT needs calls that have both."""
        return self.database.url(in_transactions=STEPS[self.point].stage.is_in_transaction)

    def _build_spec(self, kill: Kill | None) -> RelaySpec:
        scenario = self.scenario
        return RelaySpec(
            backend=self.backend, store=self.choose_url(), schema=self.database.names.schema, kill=kill,
            to=f"{self._consumer.url}/{self.folder.name}.arrivals",
            arrivals=str(self.folder.with_suffix(".arrivals")),
            archive=str(self.folder / "archive") if scenario.archives else None,
            lease=LEASE, batch=scenario.batch, window=scenario.window, after_failure=scenario.after_failure,
            purges=scenario.purges, forwards=scenario.forwards, lone_cap=scenario.lone_cap,
            send_limit=None if kill is None else scenario.send_limit,
        )  # fmt: skip

    def operate(self, act: Callable[[Store], Coroutine[None, None, None]]) -> None:
        """Run what an operator does with the store."""

        async def run() -> None:
            store = open_store(self.database.url(), names=self.database.names)
            await store.open()
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(run())

    def execute(self, sql: str) -> None:
        """Change the tables behind the product's back."""
        with self.database.transaction() as handle:
            handle.execute(sql)

    # --- observe ---

    def count(self, of: str, *values: object) -> int:
        """Count rows: `count("pillarbox_claim")`."""
        return int(self.database.rows(f"select count(*) from {of}", *values)[0][0])

    @property
    def destinations(self) -> Sequence[str]:
        return [DESTINATION, SKIPPED_DESTINATION, *([DEAD_LETTERS] if self.scenario.forwards else [])]

    def owns_all(self, relay: Program) -> bool:
        """Return whether it owns every lane there is."""
        return all(self.database.rows(_LANES, name, relay.pid)[0][0] == PARTITIONS for name in self.destinations)

    def owns_any(self, relay: Program) -> bool:
        """Return whether it owns lanes of the consumer."""
        return bool(self.database.rows(_LANES, DESTINATION, relay.pid)[0][0])

    def count_failed(self) -> int:
        return self.count("pillarbox_history where status = 'failed'")

    def is_drained(self) -> bool:
        """Return whether every message is closed, except those of a held key."""
        held = self.scenario.held
        if held is None:
            return not self.count("pillarbox_outbox")
        key = held.split("/")[0]
        is_held = self.count("pillarbox_outbox where key = ? and waits = 'held'", key) == 1
        return is_held and not self.database.rows(_OPEN, key)[0][0]

    def is_closed(self, subject: str) -> bool:
        """Return whether this message is delivered or given up."""
        return bool(self.count("pillarbox_history where subject = ?", subject))

    def read_kill_record(self, kill: Kill) -> KillRecord | None:
        """Return the record of a kill; None if the point was not reached."""
        path = Path(kill.file)
        return msgspec.json.decode(path.read_bytes(), type=KillRecord) if path.exists() else None

    def wait_for_owner(self, relay: Program) -> None:
        """Wait until this relay owns every lane."""
        wait_until(lambda: self.owns_all(relay), within=_START, what="a relay owns all lanes")

    # --- collect ---

    def read_delivered(self) -> tuple[list[str], int]:
        """Return what is recorded as delivered, and when it was read."""
        rows = self.database.rows("select subject from pillarbox_history where status = 'delivered'")
        return [subject for (subject,) in rows], time.monotonic_ns()

    def collect_evidence(
        self, *, recorded: tuple[Sequence[str], int], still_failed: int, deaths: int, exit_code: int | None
    ) -> Evidence:
        """Collect the evidence, once every process has stopped."""
        archive = self.folder / "archive"
        stored = self.database.rows("select subject, state, attempts from pillarbox_messages order by id")
        return Evidence(
            committed=[
                NumberedRow(*row) for row in self.database.rows("select subject, key, number from business_row")
            ],
            arrivals=self.arrivals.read(),
            stored=[StoredMessage(*row) for row in stored],
            archived=archive.read_text().split() if archive.exists() else [],
            claims=self.count("pillarbox_claim"),
            owned_lanes=self.count("pillarbox_lane where relay_id is not null"),
            recorded=recorded[0],
            recorded_at=recorded[1],
            still_failed=still_failed,
            deaths=deaths,
            exit_code=exit_code,
            lapses=self.read_logs().count(_LAPSED),
        )

    def read_logs(self) -> str:
        """Return the logs of all programs."""
        return "".join(f"--- {program.log.name}\n{program.read_log()}" for program in self._programs)
