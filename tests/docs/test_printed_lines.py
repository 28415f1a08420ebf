"""Lines of the program that pages quote outside of the blocks that are run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from pillarbox.operations.monitor import NOT_GIVEN_UP
from tests.support.cli.program import PROGRAM, environment
from tests.support.docs.console_blocks import ROOT
from tests.support.processes import end_process
from tests.support.tables import SqliteTables


def mask(text: str) -> list[str]:
    return re.sub(r"127\.0\.0\.1:\d+", "<place>", re.sub(r"token=[\w-]{43}\b", "token=<token>", text)).splitlines()


async def test_the_page_of_the_dashboard_shows_its_first_lines(tmp_path: Path, sqlite_tables: SqliteTables) -> None:
    page = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    (shown,) = re.findall(r"^\$ pillarbox dashboard [^\n]*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    sqlite_tables.install(tmp_path / "shop.db")
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "dashboard", "--store", "sqlite:///shop.db", "--http", "127.0.0.1:0", cwd=tmp_path,
        env=environment({}), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    seen = ""
    try:
        async with asyncio.timeout(60):
            for stream in (process.stderr, process.stderr, process.stdout):
                seen += (await stream.readline()).decode()
    finally:
        await end_process(process)
    assert mask(shown) == mask(seen)


def test_the_page_of_delivery_quotes_why_a_message_is_not_given_up() -> None:
    assert f"\nTried 7 times, {NOT_GIVEN_UP}.\n" in (ROOT / "docs" / "delivery.md").read_text("utf-8")
