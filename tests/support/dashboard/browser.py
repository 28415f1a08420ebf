"""A real browser, found or named, that records what the console says; and the server that it looks at."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.store import Selection
from pillarbox.contracts.writer import Insert
from pillarbox.dashboard import Dashboard, local_user
from pillarbox.dashboard.serve import BackgroundServer
from pillarbox.message import Message, Names
from pillarbox.relay.relay import Destination, Relay
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.stores.factory import open_schema
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.testing.samples import sample
from pillarbox.writers.sqlite import SqliteWriter
from tests.support.dashboard.seed import Relaying
from tests.support.dashboard.story import MemoryWriter, Story, tell_story
from tests.support.packages import install
from tests.support.servers import ServerMissing

__all__ = ["AXE", "Shop", "find_chromium", "open_browser", "open_page", "serve_calm_story", "serve_empty_story",
           "serve_long_story", "serve_story"]  # fmt: skip

T = TypeVar("T")

AXE: Final = Path(__file__).parent / "axe" / "axe.min.js"
_VARIABLE: Final = "PILLARBOX_TEST_CHROMIUM"
_PROGRAMS: Final = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS: Final = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb",
)  # fmt: skip
TIMEOUT: Final = 60_000
"""Milliseconds: the machine may be busy, and waiting ends with the condition."""


def find_chromium() -> tuple[str, dict[str, str]]:
    """Return the path of a Chromium, and the variables that it needs; skip the test if none can be had.

    The one that a variable names; one in the path; with CI=true the pinned packages of Debian, unpacked into a cache.
    """
    if (found := os.environ.get(_VARIABLE) or next(filter(None, map(shutil.which, _PROGRAMS)), None)) is not None:
        return found, {}
    reason = "No Chromium is here"
    if os.environ.get("CI") == "true":
        try:
            folder = install("chromium")
        except ServerMissing as error:
            reason = f"No Chromium is here, and {error}"
        else:
            libraries = folder / "usr/lib/x86_64-linux-gnu"
            variables = {
                "FONTCONFIG_SYSROOT": str(folder),
                # A library that has a path of its own does not look where the program looks.
                "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'pulseaudio'}",
            }
            return str(folder / "usr/lib/chromium/chromium-headless-shell"), variables
    pytest.skip(f"{reason}: install one (apt-get install chromium), or name its program in {_VARIABLE}.")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a headless browser with a profile of its own."""
    program, variables = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=list(_ARGUMENTS), env={**os.environ, **variables}
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(browser: Browser, *, width: int = 1280, scheme: Any = "light") -> Iterator[Page]:
    """Open a page; fail at the end if the console has shown an error, or a script has raised one."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce", locale="en-GB"
    )
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    try:
        yield page
    finally:
        page.goto("about:blank")  # closes the stream, so that its end is no error
        context.close()
    assert not problems, problems


def serve_story() -> AbstractContextManager[str]:
    """Serve the bad hour of `tell_story`, whose clock stands still; yields the address of its first store."""
    return _serve(tell_story)


def serve_calm_story() -> AbstractContextManager[str]:
    """Serve an hour without trouble, whose clock stands still."""
    return _serve(partial(tell_story, is_calm=True))


def serve_empty_story() -> AbstractContextManager[str]:
    """Serve stores that nobody has used yet."""

    async def build() -> Story:
        return Story()

    return _serve(build)


def serve_long_story() -> AbstractContextManager[str]:
    """Serve a store with long names and much of everything, as systems that have grown have it."""

    async def build() -> Story:
        story = Story()
        names = ("billing", "notifications-email-eu-west-1", "customer-data-platform-events-production-eu")
        rows = [(name, number) for name in names for number in range(1_200)]
        await MemoryWriter(story.orders).insert(
            [
                sample(destination=name, key=f"customer-4711-of-the-branch-in-{number}", topic="orders.placed.v1",
                       type="com.example.orders.placed")
                for name, number in rows
            ]
        )  # fmt: skip
        relay = Relaying(story.orders, *names, service="notification-service-production", reachable=names[:1])
        await relay.start()
        for name in names:
            ids = [one.id for one in await story.orders.find(Selection(destination=name), limit=3)]
            await relay.fail(name, ids[:2], "https://hooks.example/v1/accounts answered 422 Unprocessable Entity")
            await relay.retry(name, ids[2:], "answered 503", delay=timedelta(minutes=5))
        for name in names[1:]:
            await story.orders.pause(name, by="ann.of.the.night.shift@corp.example", reason="they move their accounts")
        return story

    return _serve(build)


@contextmanager
def _serve(tell: Callable[[], Coroutine[Any, Any, Story]]) -> Iterator[str]:
    def build() -> Dashboard:
        stores = {"orders": story.orders, "billing": story.billing}
        return Dashboard(stores, authorize=local_user("ann"), environment="production")

    story = _run_apart(tell)
    server = BackgroundServer(build, host="127.0.0.1", port=0)
    server.start()
    try:
        yield f"{server.address}orders/"
    finally:
        server.stop()


def _run_apart(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread: the browser's driver has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(call())).result()


class Shop:
    """A shop on SQLite with a relay to billing and mail, in a thread, and its dashboard."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pillarbox-shop-")
        self.file = Path(self._folder.name) / "shop.db"
        self.billing = MemoryTransport()
        self.mail = MemoryTransport()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)
        self._relay: Relay | None = None
        self._server = BackgroundServer(self._build_dashboard, host="127.0.0.1", port=0)

    @property
    def address(self) -> str:
        return f"{self._server.address}shop/"

    def __enter__(self) -> Shop:
        _run_apart(open_schema(f"sqlite:///{self.file}").install)
        self._thread.start()
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        if self._relay is not None:
            self._loop.call_soon_threadsafe(self._relay.stop)
        self._thread.join(30)
        with suppress(OSError):
            self._folder.cleanup()

    def _build_dashboard(self) -> Dashboard:
        return Dashboard(
            {"shop": SqliteStore(self.file)}, authorize=local_user("ann"), interval=timedelta(milliseconds=200)
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        destinations = [
            Destination(
                lambda: self.billing, DestinationSettings(name="billing", ping_interval=timedelta(milliseconds=200))
            ),
            Destination(lambda: self.mail, DestinationSettings(name="mail")),
        ]
        settings = RelaySettings(service="shop", lease=timedelta(seconds=5), poll_interval=timedelta(milliseconds=50))
        self._relay = Relay(SqliteStore(self.file), destinations, settings=settings)
        self._loop.run_until_complete(self._relay.run())
        self._loop.close()

    def call(self, function: Callable[[], None]) -> None:
        """Call something of a transport in the relay's loop."""
        self._loop.call_soon_threadsafe(function)

    def order(self, number: int, *, destinations: tuple[str, ...] = ("billing", "mail")) -> list[Message]:
        """Commit an order, with a message for each destination."""
        messages = [
            sample(destination=name, key=f"order-{number}", payload=b'{"order":%d,"total":"12.50"}' % number)
            for name in destinations
        ]
        with closing(sqlite3.connect(self.file, timeout=30)) as connection, connection:
            SqliteWriter(connection).insert(Insert(names=Names(), messages=messages))
        return messages
