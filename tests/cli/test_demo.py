"""`pillarbox demo`: the real thing, with few orders; and its judge, with evidence that was tampered with."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import psycopg
import pytest

from pillarbox.demo.consumer import ConsumerDatabase
from pillarbox.demo.result import Evidence, Order, compare
from pillarbox.demo.scenario import (
    POISON,
    ConsumerDown,
    ConsumerUp,
    FaultSchedule,
    KillRelay,
    Progress,
    Scenario,
    plan_orders,
)
from tests.support.cli.demo import (
    FIELDS,
    ORDERS,
    check_result,
    list_processes,
    needs_proc,
    read_progress,
    run_demo,
    start_demo,
    wait_for_output,
)
from tests.support.cli.program import PROGRAM, environment, forbid_imports, pillarbox
from tests.support.mariadb_server import connected

# --- the judge -----------------------------------------------------------------------------------


def evidence() -> Evidence:
    """Two customers; order d is poison; message 3 came twice."""
    return Evidence(
        committed=[Order("a", "x", 1), Order("b", "y", 1), Order("c", "x", 2), Order("d", "x", 3), Order("e", "x", 4)],
        rolled_back=["r"],
        effects=["a", "b", "c", "e"],
        received=["1", "2", "3", "3", "5"],
        absorbed=1,
        failed=["d"],
        delivered=4,
        kills=7,
        kills_while_delivering=6,
        outages=1,
    )


def test_a_clean_run_holds() -> None:
    result = compare(evidence())

    assert result.holds
    assert msgspec.to_builtins(result) == dict(zip(FIELDS, (5, 1, 4, 4, 0, 0, 0, 5, 1, 1, 7, 6, 1, 1), strict=True))


@pytest.mark.parametrize(
    ("effects", "lost", "ghosts", "out_of_order"),
    [
        pytest.param(["a", "c", "e"], 1, 0, 0, id="dropped"),
        pytest.param([], 4, 0, 0, id="nothing-arrived"),
        pytest.param(["a", "b", "r", "c", "e"], 0, 1, 0, id="rolled-back-yet-applied"),
        pytest.param(["a", "b", "z", "c", "e"], 0, 1, 0, id="from-nowhere"),
        pytest.param(["a", "b", "c", "c", "e"], 0, 1, 0, id="applied-twice"),
        pytest.param(["a", "b", "c", "e", "a"], 0, 1, 0, id="applied-again-later"),
        pytest.param(["c", "b", "a", "e"], 0, 0, 1, id="overtaken"),
        pytest.param(["e", "a", "b", "c"], 0, 0, 2, id="one-overtook-two"),
        pytest.param(["b", "c", "r", "a", "a"], 1, 2, 1, id="everything-wrong"),
    ],
)
def test_a_broken_run_does_not_hold(effects: list[str], lost: int, ghosts: int, out_of_order: int) -> None:
    result = compare(msgspec.structs.replace(evidence(), effects=effects))

    assert (result.lost, result.ghosts, result.out_of_order) == (lost, ghosts, out_of_order)
    assert not result.holds


def test_keys_do_not_wait_for_each_other_and_what_follows_a_failed_one_is_in_order() -> None:
    result = compare(msgspec.structs.replace(evidence(), effects=["a", "c", "e", "b"]))

    assert result.holds


def test_the_poison_one_alone_may_fail() -> None:
    assert not compare(msgspec.structs.replace(evidence(), effects=["a", "b", "c"], failed=["d", "e"])).holds


# --- the story -----------------------------------------------------------------------------------


def test_a_seed_is_a_story() -> None:
    story = list(plan_orders(Scenario(orders=500, seed=3)))
    committed = [attempt for attempt in story if attempt.commits]

    assert story == list(plan_orders(Scenario(orders=500, seed=3)))
    assert story != list(plan_orders(Scenario(orders=500, seed=4)))
    assert len({attempt.order_id for attempt in story}) == len(story)
    assert len(committed) == 500
    assert 10 < len(story) - len(committed) < 100
    assert [number for number, attempt in enumerate(committed) if attempt.amount == POISON] == [125]


def test_a_relay_is_killed_only_when_it_has_something_to_lose() -> None:
    script = FaultSchedule(Scenario(orders=300, seed=1))

    assert not due_faults(script, seconds=1.0, delivered=0, relays=[0, 1])
    assert not due_faults(script, seconds=1.1, delivered=10, relays=[])
    assert due_faults(script, seconds=1.2, delivered=10, relays=[1]) == [KillRelay(1)]
    assert not due_faults(script, seconds=1.3, delivered=200, relays=[0, 1])
    assert not due_faults(script, seconds=9.0, delivered=19, relays=[0, 1])
    assert due_faults(script, seconds=9.1, delivered=20, relays=[0]) == [KillRelay(0)]


def test_relays_are_killed_during_the_outage_too_and_left_in_peace_at_the_end() -> None:
    script = FaultSchedule(Scenario(orders=300, seed=1))

    assert due_faults(script, seconds=1.0, delivered=0, committed=120, relays=[]) == [ConsumerDown()]
    assert due_faults(script, seconds=1.1, delivered=0, relays=[0]) == [KillRelay(0)]
    assert due_faults(script, seconds=2.2, delivered=0, relays=[0]) == [KillRelay(0)]
    assert due_faults(script, seconds=9.0, delivered=0, relays=[]) == [ConsumerUp()]
    late = progress(
        seconds=19.0, delivered=200, committed=300, kills=6, kills_while_delivering=3, relays=[0], pending=100,
        shop_is_done=True,
    )  # fmt: skip
    assert not list(script.due_faults(late))
    assert not script.is_over(late)
    assert script.is_over(msgspec.structs.replace(late, delivered=299, failed=1, received=299, pending=0))


def test_kills_go_on_until_enough_of_them_hit_a_delivery() -> None:
    script = FaultSchedule(Scenario(orders=2_000, seed=1))
    due_faults(script, seconds=1.0, delivered=0, committed=2_000, relays=[])
    due_faults(script, seconds=9.0, delivered=0, relays=[])
    late = progress(seconds=19.0, delivered=1_500, committed=2_000, kills=30, kills_while_delivering=11, relays=[0],
                    pending=500, shop_is_done=True)  # fmt: skip

    assert list(script.due_faults(late)) == [KillRelay(0)]
    assert not list(script.due_faults(msgspec.structs.replace(late, seconds=29.0, kills_while_delivering=12)))


def test_it_is_not_over_while_messages_wait_at_a_broker() -> None:
    script = FaultSchedule(Scenario(orders=300, seed=1))
    list(script.due_faults(progress(seconds=1.0, delivered=0, committed=120, relays=[])))
    list(script.due_faults(progress(seconds=9.0, delivered=0, relays=[])))
    sent = progress(seconds=19.0, delivered=300, committed=300, kills=3, relays=[0], received=299, shop_is_done=True)

    assert sent.is_delivered
    assert not script.is_over(sent)
    assert script.is_over(msgspec.structs.replace(sent, received=300))


def due_faults(
    script: FaultSchedule, *, seconds: float, delivered: int, relays: list[int], committed: int = 0
) -> list[object]:
    return list(script.due_faults(progress(seconds=seconds, delivered=delivered, relays=relays, committed=committed)))


def progress(
    *,
    seconds: float,
    delivered: int,
    relays: list[int],
    committed: int = 0,
    kills: int = 0,
    kills_while_delivering: int = 0,
    pending: int = 0,
    failed: int = 0,
    received: int = 0,
    shop_is_done: bool = False,
) -> Progress:
    return Progress(
        seconds=seconds, orders=300, committed=committed, rolled_back=0, delivered=delivered, sending=0,
        pending=pending, failed=failed, kills=kills,
        kills_while_delivering=kills_while_delivering, outages=0, received=received, consumer_is_up=True,
        shop_is_done=shop_is_done, relays=relays,
    )  # fmt: skip


async def test_a_commit_of_the_consumer_does_not_delay_the_director(tmp_path: Path) -> None:
    file = tmp_path / "consumer.db"
    database = await ConsumerDatabase.create(file)
    with closing(database), closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin exclusive")
        other.execute("insert into receipt (message_id) values ('1')")
        assert database.count_arrived() == 0


# --- the whole -----------------------------------------------------------------------------------


def test_relays_are_killed_in_the_middle_of_deliveries_and_the_inbox_absorbs_the_repeats(tmp_path: Path) -> None:
    """A run long enough for the kills that the page promises. Everything is read from what the program prints."""
    ran = pillarbox("demo", "--orders", "1200", "--json", cwd=tmp_path, TMPDIR=str(tmp_path))

    result = json.loads(ran.out.splitlines()[-1])
    lines = read_progress(ran)
    delivered = [line["delivered"] for line in lines]
    assert ran.code == 0, ran
    assert result["kills_while_delivering"] >= 10
    assert result["absorbed"] == result["duplicates"] > 0
    assert delivered == sorted(delivered)
    assert len(set(delivered)) >= 5
    assert all(line["delivered"] <= line["committed"] for line in lines)
    assert delivered[-1] == result["delivered"] == result["committed"] - result["failed"] == 1199


def test_the_demo_on_sqlite_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = run_demo("--seed", "5", "--json", folder=tmp_path)

    check_result(ran)
    assert "consumer killed with SIGKILL" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_demo_on_postgresql_leaves_nothing_behind(postgres_url: str, tmp_path: Path) -> None:
    ran = run_demo("--seed", "5", "--json", "--store", postgres_url, folder=tmp_path)

    check_result(ran)
    assert list(tmp_path.iterdir()) == []
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select 1 from pg_namespace where nspname like 'pillarbox_demo%'").fetchall() == []


def test_the_demo_on_mariadb_leaves_nothing_behind(mariadb_url: str, tmp_path: Path) -> None:
    ran = run_demo("--seed", "5", "--json", "--store", mariadb_url, folder=tmp_path)

    check_result(ran)
    assert list(tmp_path.iterdir()) == []
    with closing(connected(mariadb_url)) as connection, connection.cursor() as cursor:
        assert cursor.execute("show databases like 'pillarbox_demo%'") == 0


# --- looking at it, and stopping it --------------------------------------------------------------


def test_what_is_kept_can_be_looked_at_on_a_terminal(tmp_path: Path) -> None:
    with screen() as (terminal, drawn):
        ran = subprocess.run(
            [PROGRAM, "demo", "--orders", str(ORDERS), "--keep"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            env=environment({"TMPDIR": str(tmp_path), "TERM": "xterm"}),
            timeout=90,
        )

    assert "│ relays killed" in b"".join(drawn).decode()
    assert re.search(r"^lost +0 ", ran.stdout, re.MULTILINE)
    assert ran.stdout.endswith("Nothing lost, nothing invented, nothing out of order.\n")
    assert ran.returncode == 0
    assert "422" in shown_by_the_printed_command(ran.stdout)
    (folder,) = tmp_path.iterdir()
    assert {"shop.db", "consumer.db", "relay-1.log", "relay-2.log"} <= {path.name for path in folder.iterdir()}


@contextmanager
def screen() -> Iterator[tuple[int, list[bytes]]]:
    """A terminal to write to, and what was drawn on it."""
    ours, terminal = pty.openpty()
    drawn: list[bytes] = []
    reader = threading.Thread(target=lambda: drawn.extend(pieces(ours)))
    reader.start()
    try:
        yield terminal, drawn
    finally:
        os.close(terminal)
        reader.join()
        os.close(ours)


def shown_by_the_printed_command(result: str) -> str:
    (line,) = (line for line in result.splitlines() if line.startswith("  sqlite3 "))
    _, path, query = shlex.split(line)
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute(query).fetchall())


def pieces(ours: int) -> Iterator[bytes]:
    with suppress(OSError):  # how Linux says that the terminal was closed
        while piece := os.read(ours, 10_000):
            yield piece


def test_a_consumer_that_forgets_what_it_did_is_found_out(tmp_path: Path) -> None:
    with start_demo("--json", folder=tmp_path) as (process, stderr):
        wait_for_output(stderr, "the consumer starts")
        (consumer_database,) = tmp_path.glob("*/consumer.db")
        with closing(sqlite3.connect(consumer_database, timeout=30)) as connection:
            connection.executescript(
                "create trigger forget after insert on effect when new.id = 20 "
                "begin delete from effect where id = new.id; end"
            )
        out, _ = process.communicate(timeout=90)

    result = json.loads(out.splitlines()[-1])
    assert (process.returncode, result["lost"], result["effects"]) == (1, 1, ORDERS - 2)


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    with start_demo(folder=tmp_path) as (process, stderr):
        wait_for_output(stderr, "consumer killed")
        comes_true(lambda: len(list_processes(tmp_path)) >= 2)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)

    assert (process.returncode, err.splitlines()[-1]) == (130, "Interrupted.")
    assert list_processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_proc
def test_killed_in_the_middle_no_process_is_left(tmp_path: Path) -> None:
    with start_demo(folder=tmp_path) as (process, stderr):
        wait_for_output(stderr, "consumer killed")
        comes_true(lambda: len(list_processes(tmp_path)) >= 2)
        process.kill()
        process.communicate(timeout=60)

    comes_true(lambda: list_processes(tmp_path) == [])


def comes_true(condition: Callable[[], bool]) -> None:
    until_when = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_when
        time.sleep(0.05)


# --- wrong usage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--store", "sqlite:///there.db"], "not there yet"),
        (["--store", "memory://"], "sqlite://, postgresql:// and mysql://"),
        (["--to", "https://127.0.0.1/orders"], "http://127.0.0.1:PORT"),
        (["--to", "http://example.com/orders"], "127.0.0.1 or localhost"),
        (["--to", "http://127.0.0.1:99999/"], "between 1 and 65535"),
    ],
)
def test_what_the_demo_cannot_use_is_said_in_a_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "there.db").touch()
    ran = run_demo(*arguments, "--keep", folder=tmp_path)

    assert ran.code == 2
    assert words in ran.sentence
    assert [path.name for path in tmp_path.iterdir()] == ["there.db"]


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    ran = run_demo("--store", "postgresql://nobody:geheim@127.0.0.1:1/nothing", folder=tmp_path)

    assert ran.code == 3
    assert "geheim" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_the_store_of_other_commands_is_not_touched(tmp_path: Path) -> None:
    """Whoever has configured a store for production does not want the demo there."""
    ran = pillarbox("demo", "--to", "tcp:", PILLARBOX_STORE="nonsense", TMPDIR=str(tmp_path))

    assert "http://" in ran.sentence


def test_a_missing_extra_is_named_before_anything_starts(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    ran = pillarbox("demo", PYTHONPATH=forbid_imports(modules, "aiohttp"), TMPDIR=str(tmp_path))

    assert (ran.code, "pillarbox[http]" in ran.sentence) == (2, True)


ROOT = Path(__file__).parents[2]
OTHER_PACKAGES = (
    "pymysql", "asyncpg", "psycopg", "aiosqlite", "sqlalchemy", "pamqp", "confluent_kafka", "nats", "redis", "paho",
    "aiobotocore", "prometheus_client", "opentelemetry", "faststream", "uvloop", "pydantic", "django",
)  # fmt: skip


def test_it_needs_no_more_than_its_two_extras(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    ran = pillarbox(
        "demo", "--orders", "10", "--json", PYTHONPATH=forbid_imports(modules, *OTHER_PACKAGES), TMPDIR=str(tmp_path)
    )

    assert ran.code == 0, ran.err
    assert json.loads(ran.out.splitlines()[-1])["lost"] == 0


def test_make_installs_these_two_alone_and_says_so(tmp_path: Path) -> None:
    """A dry run in a folder where nothing is installed yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    # As a person runs it: under `make test` a make of its own would print its folders too.
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    planned = subprocess.run(
        ["make", "-n", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True, env=environ
    ).stdout

    installs = [line for line in planned.splitlines() if "pip install" in line]
    assert len(installs) == 1
    assert installs[0].endswith("-c .venv-demo/pins.txt -e '.[http,cli]'")
    assert "-q" not in installs[0]
    assert 'echo "Installing what the demo needs into .venv-demo' in planned
    assert ".venv-demo/bin/pillarbox demo" in planned.splitlines()[-1]


def test_the_program_is_a_module_too() -> None:
    ran = subprocess.run([sys.executable, "-m", "pillarbox", "--version"], check=True, capture_output=True, text=True)

    assert ran.stdout.startswith("pillarbox ")
