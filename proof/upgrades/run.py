"""One mixed run: old and new programs on one store, whose schema goes up and down under load; and its judgement."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import msgspec

from proof.databases import BACKENDS, Database
from proof.processes import wait_until
from proof.upgrades.programs import Task
from proof.upgrades.releases import NEXT, NOTE, Release

__all__ = ["Result", "run_mixed"]

_ROOT: Final = Path(__file__).parents[2]
_WITHIN: Final = 120.0
_CHANGE_SECONDS: Final = 180.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a mixed run counted."""

    store: str
    changes: int
    """How often the schema was upgraded or downgraded."""
    committed: int
    lost: int
    ghosts: int
    """Messages that were delivered, and never committed."""
    out_of_order: int
    duplicates: int
    by_release: Mapping[str, int]
    """Messages that relays of each release sent."""
    filled: int
    """Messages of which the new column was filled."""
    died: Sequence[str]
    """Programs that ended by themselves, or with an error."""
    seconds: float

    @property
    def is_good(self) -> bool:
        """True if nothing was lost, order was kept, and nobody died."""
        return self.committed > 0 and not (self.lost or self.ghosts or self.out_of_order or self.died)


class _Programs:
    """Processes that this run started. It ends them, and no others."""

    def __init__(self, releases: Mapping[str, Release], database: Database, *, backend: str, folder: Path) -> None:
        self._releases = releases
        self._database = database
        self._backend = backend
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.died: list[str] = []
        self.sent = folder / "sent"
        self.sent.touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def start(self, program: str, name: str, release: str) -> None:
        notes = self.sent if program == "relay" else self._folder / f"{name}.committed"
        task = Task(
            program=program, name=name, release=release, backend=self._backend, store=self._database.url(),
            schema=self._database.names.schema, notes=str(notes),
        )  # fmt: skip
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self._releases[release].python, "-m", "proof.upgrades.programs", msgspec.json.encode(task).decode()],
                cwd=_ROOT, stdout=log, stderr=log,
            )  # fmt: skip

    def stop(self, *names: str) -> None:
        """Terminate programs and wait for them. One that ended before, or ends with an error, has died."""
        for name in names:
            if self._running[name].poll() is None:
                self._running[name].terminate()
        for name in names:
            code = self._running.pop(name).wait(timeout=60)
            if code != 0:
                self.died.append(f"{name} (exit code {code}): {self._read_end(name)}")

    def check(self) -> None:
        """Note who has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended with exit code {process.returncode}: {self._read_end(name)}")

    def change_schema(self, *words: str) -> None:
        """Run a schema command of the new release."""
        command: list[str] = [str(self._releases["new"].python), "-m", "pillarbox", "schema", *words]
        command += ["--store", self._database.url()]
        if self._database.names.schema is not None:
            command += ["--schema", self._database.names.schema]
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=_CHANGE_SECONDS, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def read_committed(self) -> list[str]:
        return [line for file in self._folder.glob("*.committed") for line in file.read_text().splitlines()]

    def read_sent(self) -> list[tuple[str, str]]:
        """Return what relays sent, with the release of each, in order."""
        return [
            (subject, release)
            for subject, _, release in (line.partition(" ") for line in self.sent.read_text().splitlines())
        ]

    def _read_end(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()[-2000:]


def run_mixed(
    backend: str, releases: Mapping[str, Release], folder: Path, *, rounds: int = 1, messages: int = 150
) -> Result:
    """Run writers and relays of both releases while the schema goes up and down `rounds` times, and up at the end.

    Between two changes, each release delivers so many messages.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        create = stack.enter_context(BACKENDS[backend].find())
        database = stack.enter_context(create(folder))
        programs = stack.enter_context(_Programs(releases, database, backend=backend, folder=folder))
        for name, release in (("old-writer", "old"), ("new-writer", "new")):
            programs.start("writer", name, release)
        for name, release in (("old-relay", "old"), ("new-relay", "new")):
            programs.start("relay", name, release)
        _wait_for_both(programs, messages)
        filled = changes = 0
        for _ in range(rounds):
            programs.change_schema("upgrade")
            _wait_for_both(programs, messages)
            filled += _count_filled(database, at_least=1)
            # A relay of the old release comes to a schema that is ahead of it.
            programs.stop("old-relay")
            programs.start("relay", "old-relay", "old")
            _wait_for_both(programs, messages)
            programs.change_schema("downgrade", "--to", str(NEXT - 1), "--yes")
            _wait_for_both(programs, messages)
            changes += 2
        programs.change_schema("upgrade")
        _wait_for_both(programs, messages)
        # Before the writers stop: a relay looks at the version once per lease, and then needs something to settle.
        filled += _count_filled(database, at_least=1)
        programs.check()
        programs.stop("old-writer", "new-writer")
        committed = Counter(programs.read_committed())
        wait_until(
            lambda: not committed.keys() - {subject for subject, _ in programs.read_sent()},
            within=_WITHIN, what="every committed message is delivered",
        )  # fmt: skip
        programs.stop("old-relay", "new-relay")
        return _judge(
            backend, committed, programs.read_sent(), changes=changes + 1, filled=filled, died=programs.died,
            seconds=time.monotonic() - began,
        )  # fmt: skip


def _wait_for_both(programs: _Programs, messages: int) -> None:
    """Wait until relays of each release have delivered so many messages more. Fail if a program ends meanwhile."""
    before = Counter(release for _, release in programs.read_sent())

    def holds() -> bool:
        programs.check()
        now = Counter(release for _, release in programs.read_sent())
        return all(now[release] >= before[release] + messages for release in ("old", "new"))

    wait_until(holds, within=_WITHIN, what=f"each release delivers {messages} messages more")


def _count_filled(database: Database, *, at_least: int) -> int:
    """Wait until the new release has filled its column, and return how often."""

    def count() -> int:
        ((found,),) = database.rows(f"select count(*) from pillarbox_history where note = '{NOTE}'")
        return int(found)

    wait_until(lambda: count() >= at_least, within=_WITHIN, what="the new release uses the new column")
    return count()


def _judge(
    store: str,
    committed: Counter[str],
    sent: Sequence[tuple[str, str]],
    *,
    changes: int,
    filled: int,
    died: Sequence[str],
    seconds: float,
) -> Result:
    last: dict[str, int] = {}
    seen: set[str] = set()
    out_of_order = 0
    for subject, _ in sent:
        if subject in seen:
            continue
        seen.add(subject)
        key, _, number = subject.partition("/")
        out_of_order += int(number) != last.get(key, 0) + 1
        last[key] = int(number)
    return Result(
        store=store, changes=changes, committed=len(committed), lost=len(committed.keys() - seen),
        ghosts=len(seen - committed.keys()), out_of_order=out_of_order, duplicates=len(sent) - len(seen),
        by_release=dict(Counter(release for _, release in sent)), filled=filled, died=died, seconds=round(seconds, 1),
    )  # fmt: skip
