"""`pillarbox dashboard`, `relay --dashboard` and `demo --dashboard`: the page is there, and refuses what it must."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from pillarbox.cli.dashboard import parse_stores
from pillarbox.errors import ConfigError
from tests.support.cli.program import PROGRAM, environment, forbid_imports, pillarbox
from tests.support.cli.relay_process import RelayProcess


@asynccontextmanager
async def start(folder: Path, *arguments: str, **extra: str) -> AsyncIterator[RelayProcess]:
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *arguments, cwd=folder, env=environment(extra), stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield RelayProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def find_address(line: str) -> str:
    found = re.search(r"http://[\d.:]+/", line)
    assert found is not None, line
    return found[0]


def install(folder: Path, *names: str) -> None:
    for name in names:
        assert pillarbox("schema", "install", "--store", f"sqlite:///{name}.db", cwd=folder).code == 0


async def test_several_stores_are_shown_until_it_is_stopped(tmp_path: Path) -> None:
    install(tmp_path, "a", "b")
    stores = ("--store", "orders=sqlite:///a.db", "--store", "billing=sqlite:///b.db")
    async with start(tmp_path, "dashboard", *stores, "--http", "127.0.0.1:0", "--environment", "staging") as program:
        address = find_address(await program.wait_for_line("The dashboard is at"))
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
            page = await http.get("/billing/")
            assert (page.status_code, "staging" in page.text, "No message yet" in page.text) == (200, True, True)
            assert (await http.get("/orders/system")).status_code == 200
            assert (await http.get("/orders/", headers={"host": "evil.example"})).status_code == 401
        program.signal(signal.SIGTERM)
        assert await program.wait_until_ended() in (0, -signal.SIGTERM, 143)


async def test_a_relay_serves_it_beside_its_probes(tmp_path: Path) -> None:
    install(tmp_path, "a")
    arguments = ("--store", "sqlite:///a.db", "--to", "billing=memory:", "--http", "127.0.0.1:0", "--dashboard")
    async with start(tmp_path, "relay", *arguments) as program:
        address = find_address(await program.wait_for_line("the dashboard, probes and metrics are served at"))
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
            assert (await http.get("/livez")).status_code == 200
            page = await http.get("/main/destinations")
            assert "billing" in page.text
        program.signal(signal.SIGTERM)
        assert await program.wait_until_ended() == 0


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
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
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
