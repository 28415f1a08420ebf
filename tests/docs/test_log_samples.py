"""The log of `pillarbox relay` on the pages is what it writes: same lines, other times, ids and addresses."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.support.cli.program import PROGRAM, environment
from tests.support.cli.relay_process import RelayProcess
from tests.support.docs.console_blocks import ROOT
from tests.support.http_endpoint import Endpoint
from tests.support.processes import end_process
from tests.support.tables import SqliteTables

_MASKS = (
    (r"^\S+Z ", ""),
    (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<id>"),
    (r"\(https?://\S+\)", "(<url>)"),
    (r"(?:sqlite|postgresql)://\S+", "<store>"),
    (r"\b\d+ lanes", "<lanes>"),
)


def read_samples(page: str) -> list[list[str]]:
    """Return the log lines of each block of a page, masked."""
    blocks = re.findall(r"^```console\n\$ pillarbox relay\b[^\n]*\n(.*?)^```", (ROOT / page).read_text("utf-8"),
                        re.MULTILINE | re.DOTALL)  # fmt: skip
    return [[mask(line) for line in block.splitlines()] for block in blocks]


def mask(line: str) -> str:
    for pattern, word in _MASKS:
        line = re.sub(pattern, word, line)
    return line.rstrip()


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


@asynccontextmanager
async def run_relay(folder: Path, *arguments: str) -> AsyncIterator[RelayProcess]:
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "relay", *arguments, cwd=folder, env=environment({}),
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield RelayProcess(process)
    finally:
        await end_process(process)


async def wait_for_lines(relay: RelayProcess, shown: Sequence[str]) -> list[str]:
    """Read until all lines of the page came; return all that came, masked."""
    missing = set(shown)
    while missing:
        missing.discard(mask(await relay.wait_for_line("\n")))
    return [mask(line) for line in relay.lines]


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["one", "two-processes"])
async def test_the_page_of_the_relay_shows_its_first_lines(
    arguments: Sequence[str], tmp_path: Path, sqlite_tables: SqliteTables, endpoint: Endpoint
) -> None:
    one, several = read_samples("docs/relay.md")
    shown = several if arguments else one
    sqlite_tables.install(tmp_path / "shop.db")
    to = f"billing={endpoint.url}?allow_private=true"
    async with run_relay(tmp_path, "--store", "sqlite:///shop.db", "--to", to, *arguments) as relay:
        seen = await wait_for_lines(relay, shown)
    assert set(seen) <= set(shown)
    assert seen[0] == shown[0]


async def test_the_page_of_many_stores_shows_real_lines(
    tmp_path: Path, sqlite_tables: SqliteTables, endpoint: Endpoint
) -> None:
    (shown,) = read_samples("docs/many-stores.md")
    for name in ("orders", "billing"):
        sqlite_tables.install(tmp_path / f"{name}.db")
    with closing(sqlite3.connect(tmp_path / "directory.db")) as connection:
        connection.execute("create table tenants (name text)")
    (tmp_path / "pillarbox.toml").write_text(f"""
        [stores.orders]
        url = "sqlite:///orders.db"
        [stores.billing]
        url = "sqlite:///billing.db"
        [tenants]
        store = "sqlite:///{{tenant}}.db"
        directory = "sqlite:///directory.db"
        query = "select name from tenants"
        [destinations.mail]
        url = "{endpoint.url}?allow_private=true"
    """)
    async with run_relay(tmp_path) as relay:
        seen = await wait_for_lines(relay, shown)
    assert seen[0] == shown[0]
