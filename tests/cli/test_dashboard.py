"""`pillarbox dashboard`, `relay --dashboard` and `demo --dashboard`: the page is there, and refuses what it must."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from pillarbox import Outbox
from pillarbox.cli.dashboard import parse_stores, to_public_address
from pillarbox.dashboard.settings import DashboardSettings
from pillarbox.errors import ConfigError
from tests.support.cli.program import PROGRAM, environment, forbid_imports, pillarbox
from tests.support.cli.relay_process import RelayProcess
from tests.support.processes import end_process


@asynccontextmanager
async def start(
    folder: Path, *arguments: str, program: Sequence[str] = (PROGRAM,), **extra: str
) -> AsyncIterator[RelayProcess]:
    process = await asyncio.create_subprocess_exec(
        *program, *arguments, cwd=folder, env=environment(extra), stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield RelayProcess(process)
    finally:
        await end_process(process)


def find_address(line: str) -> str:
    found = re.search(r"http://[\d.:]+/", line)
    assert found is not None, line
    return found[0]


async def read_printed(program: RelayProcess) -> str:
    assert program.process.stdout is not None
    async with asyncio.timeout(60):
        return (await program.process.stdout.readline()).decode().strip()


@asynccontextmanager
async def log_in(program: RelayProcess, address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Open the address with the token that the program prints on stdout, and nothing else there."""
    printed = await read_printed(program)
    assert re.fullmatch(re.escape(address) + r"\?token=[\w-]{43}", printed), printed
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        answer = await http.get(printed)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        yield http
    assert not any("token=" in line for line in program.lines)


def install(folder: Path, *names: str) -> None:
    for name in names:
        assert pillarbox("schema", "install", "--store", f"sqlite:///{name}.db", cwd=folder).code == 0


async def test_several_stores_are_shown_until_it_is_stopped(tmp_path: Path) -> None:
    install(tmp_path, "a", "b")
    stores = ("--store", "orders=sqlite:///a.db", "--store", "billing=sqlite:///b.db")
    async with start(tmp_path, "dashboard", *stores, "--http", "127.0.0.1:0", "--environment", "staging") as program:
        address = find_address(await program.wait_for_line("The dashboard is at"))
        async with log_in(program, address) as http:
            page = await http.get("/billing/")
            assert (page.status_code, "staging" in page.text, "No message is in this store" in page.text) == (
                200,
                True,
                True,
            )
            assert (await http.get("/orders/system")).status_code == 200
            assert (await http.get("/orders/", headers={"host": "evil.example"})).status_code == 401
            async with http.stream("GET", "/orders/live") as stream:
                assert "event: sample" in await anext(stream.aiter_text())
                program.signal(signal.SIGTERM)
                assert await program.wait_until_ended() == 0
        async with httpx.AsyncClient() as other:
            with pytest.raises(httpx.ConnectError):
                await other.get(address)
    assert "Traceback" not in "\n".join(program.lines)


async def test_a_relay_serves_it_beside_its_probes(tmp_path: Path) -> None:
    install(tmp_path, "a")
    arguments = ("--store", "sqlite:///a.db", "--to", "billing=memory:", "--http", "127.0.0.1:0", "--dashboard")
    async with start(tmp_path, "relay", *arguments) as program:
        address = find_address(await program.wait_for_line("the dashboard, probes and metrics are served at"))
        async with log_in(program, address) as http:
            assert (await http.get("/livez")).status_code == 200
            page = await http.get("/main/destinations")
            assert "billing" in page.text
        program.signal(signal.SIGTERM)
        assert await program.wait_until_ended() == 0


@pytest.mark.parametrize(("arguments", "listens"), [
    (("dashboard",), "The dashboard listens at"),
    (("relay", "--to", "billing=memory:", "--dashboard"), "the dashboard, probes and metrics are served at"),
])  # fmt: skip
async def test_the_address_that_is_printed_is_that_below_the_proxy(
    arguments: Sequence[str], listens: str, tmp_path: Path
) -> None:
    install(tmp_path, "a")
    (tmp_path / "pillarbox.toml").write_text('[store]\nurl = "sqlite:///a.db"\n[dashboard]\nroot_path = "/ops"\n')
    async with start(tmp_path, *arguments, "--http", "127.0.0.1:0") as program:
        address = find_address(await program.wait_for_line(listens))
        printed = await read_printed(program)
        assert printed.startswith("/ops/?token=")
        async with httpx.AsyncClient(base_url=address, timeout=30) as http:
            answer = await http.get(printed.removeprefix("/ops"))  # as the proxy asks
            assert (answer.status_code, answer.headers["location"]) == (303, "/ops/")
            cookie = answer.headers["set-cookie"]
            assert "; Path=/ops;" in cookie
            page = await http.get("/main/", headers={"cookie": cookie.partition(";")[0]})
            assert (page.status_code, 'href="/ops/main/messages"' in page.text) == (200, True)
            if arguments[0] == "relay":
                assert (await http.get("/livez")).status_code == 200
        program.signal(signal.SIGTERM)
        assert await program.wait_until_ended() == 0


@pytest.mark.parametrize(
    ("url", "root_path", "address"),
    [
        (None, "", "http://127.0.0.1:1/"),
        ("https://ops.example/x", "", "http://127.0.0.1:1/"),
        (None, "/x", "/x/"),
        ("https://ops.example/x/", "/x", "https://ops.example/x/"),
    ],
)
def test_people_open_it_through_the_proxy(url: str | None, root_path: str, address: str) -> None:
    settings = DashboardSettings(url=url, root_path=root_path)

    assert to_public_address("http://127.0.0.1:1/", settings) == address


async def test_a_relay_delivers_while_600_connections_to_its_page_send_half_a_request(tmp_path: Path) -> None:
    install(tmp_path, "a")
    few = ("sh", "-c", 'ulimit -n 256; exec "$@"', "sh", PROGRAM)
    arguments = ("--store", "sqlite:///a.db", "--to", "billing=memory:", "--http", "127.0.0.1:0", "--dashboard")
    async with start(tmp_path, "relay", *arguments, program=few) as program:
        address = find_address(await program.wait_for_line("the dashboard, probes and metrics are served at"))
        place = "127.0.0.1", int(address.rstrip("/").rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for number in range(600):
                line = stack.enter_context(socket.create_connection(place, timeout=60))
                with contextlib.suppress(ConnectionError):
                    line.sendall(b"" if number % 2 else b"GET / HTTP/1.1\r\n")
            with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection:
                for number in range(50):
                    with connection:
                        Outbox(routes="billing", source="/shop").publish(connection, {"n": number}, type="ticked")
                async with asyncio.timeout(60):
                    while count_delivered(connection) < 50:  # noqa: ASYNC110 - another program delivers
                        await asyncio.sleep(0.05)
            async with log_in(program, address) as http:
                assert (await http.get("/livez")).status_code == 200
                assert (await http.get("/main/")).status_code == 200
        program.signal(signal.SIGTERM)
        assert await program.wait_until_ended() == 0
    assert len(program.lines) < 20


def count_delivered(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("select count(*) from pillarbox_history where status = 'delivered'").fetchone()[0]
    return found


async def test_the_doctor_of_the_page_finds_the_users_code_as_the_command_does(tmp_path: Path) -> None:
    install(tmp_path, "a")
    (tmp_path / "billing_shop.py").write_text("from pillarbox.handlers import Handlers\nhandlers = Handlers()\n")
    (tmp_path / "pillarbox.toml").write_text(
        '[store]\nurl = "sqlite:///a.db"\n[destinations.billing]\nurl = "handlers:billing_shop:handlers"\n'
    )
    assert "CRITICAL" not in pillarbox("doctor", cwd=tmp_path).out.upper()
    async with start(tmp_path, "dashboard", "--http", "127.0.0.1:0") as program:
        address = find_address(await program.wait_for_line("The dashboard is at"))
        async with log_in(program, address) as http:
            found = (await http.get("/main/system?doctor=1&format=json")).json()["findings"]
            assert [one for one in found if one["finding"]["severity"] == "critical"] == []
            page = (await http.get("/main/destinations/billing?doctor=1&format=json")).json()
            assert [one["what"] for one in page["findings"] if one["severity"] == "critical"] == []


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["dashboard", "--store", "sqlite:///a.db", "--http", "0.0.0.0:0"], "without a login"),
    (["dashboard", "--store", "sqlite:///a.db", "--user", "ann:king:env:A"], "is no role"),
    (["dashboard", "--store", "sqlite:///a.db", "--user", "ann:owner:hunter2"], "NAME:ROLE:env:VARIABLE"),
    (["dashboard", "--store", "sqlite:///a.db", "--token", "env:NOT_SET"], "which is not set"),
    (["dashboard"], "No store is configured"),
    (["relay", "--store", "sqlite:///a.db", "--to", "memory:", "--dashboard"], "needs an address"),
    (["relay", "--store", "sqlite:///a.db", "--to", "memory:", "--dashboard", "--http", ":0", "--processes", "2"],
     "beside one relay"),
    (["relay", "--store", "sqlite:///a.db", "--to", "memory:", "--dashboard", "--http", "0.0.0.0:0"],
     "without a login"),
])  # fmt: skip
def test_what_cannot_be_served_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    ran = pillarbox(*arguments, cwd=tmp_path)

    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err
    assert "hunter2" not in ran.err
    assert "Traceback" not in ran.err


def test_without_its_packages_it_says_what_to_install(tmp_path: Path) -> None:
    path = forbid_imports(tmp_path, "starlette")

    ran = pillarbox("dashboard", "--store", "sqlite:///a.db", cwd=tmp_path, PYTHONPATH=path)
    assert (ran.code, 'pip install "pillarbox[dashboard]"' in ran.err) == (2, True)
    assert pillarbox("version", cwd=tmp_path, PYTHONPATH=path).code == 0


async def test_the_demo_shows_itself_in_the_browser(tmp_path: Path) -> None:
    async with start(tmp_path, "demo", "--orders", "60", "--seed", "7", "--dashboard", "127.0.0.1:0") as program:
        address = find_address(await program.wait_for_line("The dashboard is at"))
        async with log_in(program, address) as http:
            page = await http.get("/shop/")
            assert (page.status_code, "demo" in page.text) == (200, True)
        await program.wait_for_line("stays until Ctrl-C")
        program.signal(signal.SIGTERM)
        assert await program.wait_until_ended() == 0


def test_stores_have_names() -> None:
    assert parse_stores(["orders=sqlite:///a.db", "postgresql://u@h/db?x=y"]) == {
        "orders": "sqlite:///a.db", "main": "postgresql://u@h/db?x=y",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="Two stores are called"):
        parse_stores(["sqlite:///a.db", "sqlite:///b.db"])
