"""How the program ends when something is wrong: one sentence, a documented code, no traceback, no secret."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.support.cli.program import PROGRAM, environment, forbid_imports, pillarbox
from tests.support.private_postgres import PrivatePostgres

CANARY = "c4nary-p4ssw0rd"


@pytest.fixture
def dead_port() -> Iterator[int]:
    """Bound and never listened on: whoever connects is refused."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--store", "shop.db"], 2, "write sqlite:///shop.db"),
        (["--store", "sqlite://shop.db"], 2, "three slashes"),
        (["--store", "sqlite://"], 2, "names no file"),
        (
            ["--store", "oracle://127.0.0.1/shop"],
            2,
            "mariadb://, memory://, mysql://, postgres://, postgresql:// or sqlite://",
        ),
        (["--store", "postgresql://127.0.0.1:many/shop"], 2, "cannot be read"),
        (["--store", "sqlite:///shop.db?colour=red"], 2, "no option 'colour'"),
        (["--store", "postgresql://app:${NOT_SET}@127.0.0.1/shop"], 2, "${NOT_SET}"),
        (["--store", "memory://"], 2, "schema commands do not apply"),
        (["--store", "sqlite:///shop.db", "--prefix", "a b"], 2, "table prefix 'a b' is not usable"),
        (["--store", "sqlite:///shop.db", "--schema", "mail"], 2, "SQLite has no schemas"),
        (["--store", "sqlite:///no/such/folder/shop.db"], 3, "cannot be"),
    ],
)
def test_a_wrong_url_or_name_is_one_sentence(tmp_path: Path, arguments: list[str], code: int, expected: str) -> None:
    ran = pillarbox("schema", "install", *arguments, cwd=tmp_path)

    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_variable_that_is_not_set_is_named_with_the_key_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text(
        '[stores.eu]\nurl = "postgresql://app:${EU_PASSWORD}@db/shop"\n'
        '[destinations.billing]\nurl = "https://${BILLING_HOST}/hooks"\n'
        '[consumers.mail]\nreceiver = "amqp://${BROKER}"\nhandlers = "a:b"\n'
    )
    of_store = pillarbox("status", cwd=tmp_path).sentence
    assert of_store.startswith("stores.eu.url in pillarbox.toml refers to ${EU_PASSWORD}")
    with_variables = {"PILLARBOX_STORE": "postgresql://${NOBODY}@db/shop", "EU_PASSWORD": "x"}
    of_variable = pillarbox("status", cwd=tmp_path, **with_variables).sentence
    assert of_variable.startswith("PILLARBOX_STORE refers to ${NOBODY}")
    of_flag = pillarbox("status", "--store", "a=postgresql://${NOBODY}@db/shop", cwd=tmp_path).sentence
    assert of_flag.startswith("--store a refers to ${NOBODY}")
    of_destination = pillarbox("relay", cwd=tmp_path, EU_PASSWORD="x").sentence
    assert "destinations.billing.url in pillarbox.toml refers to ${BILLING_HOST}" in of_destination


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stauts"], "No such command 'stauts'. Did you mean 'status'?"),
        (["messages", "lst"], "Did you mean 'list'?"),
        (["status", "--wach"], "Did you mean '--watch'?"),
        (["xyzzy"], "`pillarbox --help` lists them."),
        (["messages", "list", "--state", "faild"], "Did you mean 'failed'?"),
        (["messages", "list", "--state", "Failed"], "Did you mean 'failed'?"),
        (["check", "-o", "promtheus"], "Did you mean 'prometheus'?"),
    ],
)
def test_a_misspelled_command_or_option_gets_the_nearest(words: list[str], said: str) -> None:
    ran = pillarbox(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["messages", "list", "--limit", "many"], "'many' is not a whole number"),
        (["messages", "list", "--after", "x"], "'x' is not a whole number"),
        (["messages", "list", "--since", "2026-02-01", "--until", "2026-01-01"], "--since must be before --until"),
        (["messages", "defer", "1", "--for", "2020-01-01"], "'2020-01-01' is not in the future"),
        (["messages", "defer", "1", "--for", "0"], "'0' is not in the future"),
        (["messages", "discard", "1", "--reason", " "], "a reason is needed"),
        (["inbox", "discard", "m1", "--reason", ""], "a reason is needed"),
        (["relay", "--to", "1a=memory:"], "The destination '1a' is not usable"),
        (["relay", "--to", "=memory:"], "The destination '' is not usable"),
        (["init", "--to", "a b=memory:"], "The destination 'a b' is not usable"),
    ],
)
def test_a_wrong_value_says_what_to_write(words: list[str], said: str, tmp_path: Path) -> None:
    store = ["--store", "sqlite:///shop.db"]
    ran = pillarbox(*words, *store, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://h:99999", "The port 99999 in the rabbitmq transport's URL is not between 1 and 65535"),
        ("kafka://h:0", "The port 0 in the kafka transport's URL is not between 1 and 65535"),
        ("nats://h:99999", "The port 99999 in the nats transport's URL"),
        ("redis://h:99999/0", "The port 99999 in the redis transport's URL"),
        ("mqtt://h:99999", "The port 99999 in the mqtt transport's URL"),
        ("https://h:99999/x", "The port in the endpoint's URL is not a number between 1 and 65535"),
        ("amqp://h?exchnge=a", "Did you mean exchange?\n"),
        ("https://h/x?batch=abc", "The option batch of the http transport must be true or false."),
        ("https://h/x?concurrency=abc", "The option concurrency of the http transport must be a whole number."),
        ("mqtt://h?qos=7", "The option qos of the mqtt transport is one of 1 or 2."),
    ],
)
def test_a_wrong_url_of_a_destination_says_what_to_write(url: str, said: str, tmp_path: Path) -> None:
    ran = pillarbox("relay", "--store", "sqlite:///shop.db", "--to", f"a={url}", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_a_destination_without_a_url_says_where_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "pillarbox.toml").write_text('[destinations.mail]\nulr = "memory:"\n')
    ran = pillarbox("relay", "--store", "sqlite:///shop.db", cwd=tmp_path)
    assert 'write url = "…" under [destinations.mail], where it says ulr' in ran.sentence


def test_missing_tables_end_with_four(tmp_path: Path) -> None:
    ran = pillarbox("schema", "verify", "--store", "sqlite:///none.db", cwd=tmp_path)

    assert ran.code == 4
    assert "run `pillarbox schema install`" in ran.sentence


def test_wrong_usage_ends_with_two() -> None:
    for arguments in (["schema", "install"], ["schema", "instal"], ["schema", "install", "--colour"], ["--colour"]):
        ran = pillarbox(*arguments)
        assert (ran.code, ran.out, "Traceback" in ran.err) == (2, "", False)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("postgresql", "asyncpg, or psycopg 3.2 or newer with libpq, which is not installed: run pip install"),
        ("postgresql+asyncpg", 'asyncpg, which is not installed: run pip install "pillarbox[postgres]"'),
        ("postgresql+psycopg", 'with libpq, which is not installed: run pip install "pillarbox[psycopg]"'),
    ],
)
def test_a_missing_driver_says_what_to_install(tmp_path: Path, scheme: str, expected: str) -> None:
    path = forbid_imports(tmp_path, "asyncpg", "psycopg")

    ran = pillarbox("schema", "install", "--store", f"{scheme}://127.0.0.1/shop", PYTHONPATH=path)

    assert ran.code == 2
    assert expected in ran.sentence


def test_a_driver_that_was_asked_for_is_not_replaced_by_another(tmp_path: Path) -> None:
    path = forbid_imports(tmp_path, "asyncpg")

    ran = pillarbox("schema", "install", "--store", "postgresql+asyncpg://127.0.0.1/shop", PYTHONPATH=path)

    assert ran.code == 2
    assert "needs the package asyncpg, which" in ran.sentence


def test_a_driver_that_cannot_be_imported_says_what_to_install(tmp_path: Path) -> None:
    """psycopg without libpq is there, and yet is not."""
    path = forbid_imports(tmp_path, "psycopg", error="ImportError('no pq wrapper available')")

    ran = pillarbox("schema", "install", "--store", "postgresql+psycopg://127.0.0.1/shop", PYTHONPATH=path)

    assert ran.code == 2
    assert 'pip install "pillarbox[psycopg]"' in ran.sentence


@pytest.mark.parametrize("store", ["postgresql://", "sqlite://"])
def test_printing_needs_no_driver_and_no_rich(tmp_path: Path, store: str) -> None:
    path = forbid_imports(tmp_path, "asyncpg", "psycopg", "aiosqlite", "sqlalchemy", "aiohttp", "rich")

    assert pillarbox("schema", "sql", "--store", store, PYTHONPATH=path).code == 0
    assert pillarbox("schema", "grants", "--store", "postgresql://", "--writer", "w", PYTHONPATH=path).code == 0
    assert pillarbox("version", PYTHONPATH=path).code == 0


def test_a_server_that_is_not_there_ends_with_three(dead_port: int) -> None:
    ran = pillarbox("schema", "verify", "--store", f"postgresql://app:{CANARY}@127.0.0.1:{dead_port}/shop")

    assert ran.code == 3
    assert "cannot be reached" in ran.sentence
    assert CANARY not in ran.err


def test_a_database_that_is_not_there_ends_with_three(postgres_url: str) -> None:
    ran = pillarbox("schema", "verify", "--store", urlsplit(postgres_url)._replace(path="/no_such").geturl())

    assert ran.code == 3
    assert '"no_such" does not exist' in ran.sentence


def test_a_wrong_password_ends_with_three(private_postgres: Callable[[], PrivatePostgres]) -> None:
    server = private_postgres()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create role app login password 'right'")
        (server.data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        connection.execute("select pg_reload_conf()")
    url = f"postgresql://app:${{PW}}@127.0.0.1:{server.port}/postgres"

    wrong = pillarbox("schema", "verify", "--store", url, PW=CANARY)
    right = pillarbox("schema", "verify", "--store", url, PW="right")

    assert wrong.code == 3
    assert "refused the login" in wrong.sentence
    assert CANARY not in wrong.err
    assert right.code == 4


def test_what_nobody_expected_is_one_sentence_and_debug_tells_the_rest(tmp_path: Path) -> None:
    path = forbid_imports(tmp_path, "asyncpg", error=f"RuntimeError('boom at postgresql://a:{CANARY}@h/d')")
    arguments = ("schema", "install", "--store", "postgresql://127.0.0.1/shop")

    plain = pillarbox(*arguments, PYTHONPATH=path)
    debug = pillarbox("--debug", *arguments, PYTHONPATH=path)

    assert (plain.code, debug.code) == (1, 1)
    assert "RuntimeError: boom at postgresql://a:***@h/d" in plain.sentence
    assert "--debug" in plain.sentence
    assert "Traceback" in debug.err
    assert CANARY not in plain.err + debug.err.replace(f"RuntimeError('boom at postgresql://a:{CANARY}", "")


def test_no_run_shows_a_password(tmp_path: Path, postgres_url: str, dead_port: int) -> None:
    place = urlsplit(postgres_url)
    login = f"{place.username or 'postgres'}:{CANARY}@{place.hostname}:{place.port}{place.path}"
    urls = [
        f"postgresql://{login}",
        f"postgresql+asyncpg://{login}?sslpassword={CANARY}",
        f"postgresql://nobody:{CANARY}@127.0.0.1:{dead_port}/x",
        f"postgresql://{login}?colour={CANARY}",
        f"postgresql://a:{CANARY}/{CANARY}@127.0.0.1/x",
        f"postgresql://a:{CANARY}#{CANARY}@127.0.0.1/x",
        f"postgresql://127.0.0.1:{CANARY}/x",
        f"mysql://a:{CANARY}@127.0.0.1/x",
        f"a:{CANARY}@127.0.0.1/x",
        f"sqlite://a:{CANARY}@127.0.0.1/x",
    ]
    for url in urls:
        ran = pillarbox("--debug", "schema", "downgrade", "--to", "0", PILLARBOX_STORE=url, cwd=tmp_path)
        assert ran.code in (0, 2, 3)
        assert CANARY not in ran.out + ran.err


def test_interrupting_ends_with_130_and_no_traceback(postgres_url: str, postgres_schema: str) -> None:
    options = ["--store", postgres_url, "--schema", postgres_schema]
    pillarbox("schema", "install", *options)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"lock table {postgres_schema}.pillarbox_schema in access exclusive mode".encode())
        with subprocess.Popen(
            [PROGRAM, "schema", "verify", *options], stderr=subprocess.PIPE, text=True, env=environment({})
        ) as program:
            _wait_until_it_waits(postgres_url)
            program.send_signal(signal.SIGINT)
            _, err = program.communicate(timeout=60)

    assert (program.returncode, err.strip()) == (130, "Interrupted.")


def _wait_until_it_waits(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while (
            connection.execute(
                "select from pg_locks where not granted and database = (select oid from pg_database"
                " where datname = current_database())"
            ).fetchone()
            is None
        ):
            connection.execute("select pg_sleep(0.05)")


def test_a_reader_that_went_away_is_no_news() -> None:
    reader, writer = os.pipe()
    os.close(reader)

    ran = subprocess.run(
        [PROGRAM, "schema", "sql", "--store", "sqlite://"],
        check=False, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment({}),
    )  # fmt: skip
    os.close(writer)

    assert (ran.returncode, ran.stderr) == (1, "")
