"""A bad day at the terminal: an outage, a poison message, and what a person sees and does until all is well again.

The screens stand in docs/screens and in docs/operating.md. `PILLARBOX_REWRITE_SCREENS=1` writes them anew.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web

from pillarbox import Outbox
from tests.support.cli import screens
from tests.support.cli.program import RunResult
from tests.support.cli.relay_process import RelayProcess, start_relay
from tests.support.cli.shop import Shop
from tests.support.cli.terminal import run_on_terminal, split_pages
from tests.support.http_endpoint import Endpoint

PATIENCE: Final = 60.0
POISON: Final = 6
CONFIG: Final = """
[store]
url = "sqlite:///shop.db"

[relay]
service = "shop"
lease = "3s"

[alerts]
oldest_warning = "1s"

[destinations.billing]
url = "http://127.0.0.1:{billing}/hooks?allow_private=true"

[destinations.mail]
url = "http://127.0.0.1:{mail}/hooks?allow_private=true"
"""


class Billing(Endpoint):
    """Knows no account for one of the orders until it is mended."""

    is_mended = False

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and not self.is_mended and json.loads(await request.read())["order"] == POISON:
            return web.Response(status=422, text="no account for this customer")
        return await super()._handle(request)


class Day:
    """The shop, its endpoints, and a person at the terminal."""

    def __init__(self, shop: Shop, billing: Billing) -> None:
        self.shop = shop
        self.billing = billing
        self._orders = 0

    def order(self, count: int) -> None:
        outbox = Outbox(routes="billing", source="/shop")
        with self.shop.connect() as tx:
            for _ in range(count):
                self._orders += 1
                placed = {"order": self._orders, "total": "12.50"}
                outbox.publish(
                    tx, placed, type="orders.placed", topic="orders", key=f"customer-{self._orders}",
                    destinations=["billing", "mail"],
                )  # fmt: skip

    async def until(self, sql: str) -> None:
        """The tables answer this with something."""
        await _until(lambda: bool(self.shop.rows(sql)), sql)

    async def run(self, *words: str) -> RunResult:
        code, seen = await run_on_terminal(*words, cwd=self.shop.folder, columns=80, PILLARBOX_BY="ann")
        return RunResult(code, seen, "")

    async def shows(self, name: str, *words: str, code: int = 0, line: str | None = None) -> None:
        """The command comes to show the screen of that name. Only for what changes nothing: it may be asked twice."""
        ends = time.monotonic() + PATIENCE
        while True:
            ran = await self.run(*words)
            screen = _page(line or " ".join(words), ran.out + ran.err)
            if ran.code == code and screens.matches_screen(name, screen):
                screens.save_screen(name, screen)
                return
            if time.monotonic() > ends:
                assert screens.mask(screen) == screens.mask(screens.read_screen(name))
                assert ran.code == code
            await asyncio.sleep(0.2)

    async def does(self, name: str, *words: str, line: str | None = None, asked: str = "", typed: str = "") -> None:
        """The command, which changes something, is run once, on a terminal, and shows that screen."""
        code, seen = await run_on_terminal(*words, cwd=self.shop.folder, asked=asked, typed=typed, PILLARBOX_BY="ann")
        screen = _page(line or " ".join(words), seen)
        screens.save_screen(name, screen)
        assert screens.mask(screen) == screens.mask(screens.read_screen(name))
        assert code == 0

    async def watches(self, name: str, *, looks: int) -> None:
        """The last page of a live screen comes to be the one of that name."""
        words = ("status", "--watch", "--interval", "300ms", "--count", str(looks))
        ends = time.monotonic() + PATIENCE
        while True:
            code, seen = await run_on_terminal(*words, cwd=self.shop.folder, columns=80)
            pages = split_pages(seen)
            assert (code, len(pages)) == (0, looks)
            screen = _page("status --watch", pages[-1])
            if screens.matches_screen(name, screen):
                screens.save_screen(name, screen)
                return
            if time.monotonic() > ends:
                assert screens.mask(screen) == screens.mask(screens.read_screen(name))


def _page(command: str, seen: str) -> str:
    return f"$ pillarbox {command}\n{seen}"


async def _until(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends, f"never came: {what}"
        await asyncio.sleep(0.05)


@pytest.fixture
async def day(shop: Shop, tmp_path: Path) -> AsyncIterator[Day]:
    billing, mail = Billing(), Endpoint()
    await billing.start()
    await mail.start()
    (tmp_path / "pillarbox.toml").write_text(CONFIG.format(billing=billing.port, mail=mail.port))
    yield Day(shop, billing)
    await billing.stop()
    await mail.stop()


@pytest.mark.timeout(300)
async def test_a_bad_day_ends_well(day: Day) -> None:
    async with start_relay(day.shop) as relay:
        await relay.wait_for_line("delivers from")
        day.order(4)
        await day.until("select 1 from pillarbox_history group by 1 having count(*) = 8")
        await day.shows("01-check-before", "check")
        await _outage(day)
        await _poison(day)
        await _mend(day, relay)
        await day.shows("13-check-after", "check")
        relay.signal(signal.SIGTERM)
        assert await relay.wait_until_ended() == 0


async def _outage(day: Day) -> None:
    await day.billing.stop()
    day.order(5)
    await day.until("select 1 from pillarbox_relay where reachable not like '%billing%'")
    await day.until("select 1 from pillarbox_history where destination = 'mail' group by 1 having count(*) = 9")
    await day.watches("02-outage-watch", looks=3)
    await day.shows("03-outage-check", "check", code=6)


async def _poison(day: Day) -> None:
    await day.billing.start()
    await day.until("select 1 from pillarbox_history where destination = 'billing' group by 1 having count(*) = 9")
    await day.until("select 1 from pillarbox_relay where reachable like '%billing%'")
    await day.shows("04-poison-status", "status")
    await day.shows("05-poison-check", "check", code=7)
    await day.shows("06-failures", "failures")
    await day.shows("07-show", "messages", "show", _failed(day), "--payload")


def _failed(day: Day) -> str:
    ((found,),) = day.shop.rows("select id from pillarbox_history where status = 'failed'")
    return str(found)


async def _mend(day: Day, relay: RelayProcess) -> None:
    failed = _failed(day)
    await day.does("08-pause", "pause", "billing", "--reason", "they open the account",
                   line="pause billing --reason 'they open the account'")  # fmt: skip
    await relay.wait_for_line("billing is paused")
    day.billing.is_mended = True
    await day.does("09-redrive", "messages", "redrive", "--error", "no account", asked="[y/N]", typed="y\n",
                   line="messages redrive --error 'no account'")  # fmt: skip
    await day.until("select 1 from pillarbox_outbox where available_at + 1100000 < 1000000 * unixepoch()")
    await day.shows("10-paused-status", "status")
    await day.does("11-resume", "resume", "billing")
    await day.until("select 1 from pillarbox_history where status = 'delivered' group by 1 having count(*) = 18")
    await day.shows("12-show-after", "messages", "show", failed)


def test_the_docs_show_every_screen_as_it_is() -> None:
    text = screens.PAGE.read_text("utf-8")
    names = sorted(path.stem for path in screens.SCREENS.glob("*.txt"))
    assert len(names) == 13
    for name in names:
        assert f"<!-- {name} -->\n```console\n{screens.read_screen(name)}```\n" in text, name
