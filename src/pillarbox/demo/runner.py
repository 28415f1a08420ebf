"""Runs the demo: sets the stores up, starts the processes, kills them on schedule, and collects the result."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from pillarbox.contracts.store import Selection, Store
from pillarbox.demo import consumer, shop
from pillarbox.demo.consumer import ConsumerDatabase
from pillarbox.demo.processes import Process
from pillarbox.demo.result import Evidence, Failure, Result, compare
from pillarbox.demo.scenario import ConsumerDown, ConsumerUp, Fault, FaultSchedule, KillRelay, Progress, Scenario
from pillarbox.demo.shop import DESTINATION, ShopDatabase, open_shop_database
from pillarbox.demo.target import Endpoint, Target, open_endpoint
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.message import Message, Names, State
from pillarbox.redaction import expand_variables
from pillarbox.stores.factory import open_schema, open_store
from pillarbox.stores.urls import StoreUrl, parse_store_url

if TYPE_CHECKING:
    from pillarbox.demo.report import Display

__all__ = ["DemoResult", "Setup", "run_demo", "set_up"]

LEASE: Final = timedelta(seconds=1)
"""Short, so that taking over from a dead relay takes about a second."""
_RELAYS: Final = 2
_BATCH: Final = 50
_WINDOW: Final = 100
"""Small: after two deaths, what a relay had in flight is sent one by one."""
_OBSERVE_INTERVAL: Final = 0.15
_START_TIMEOUT: Final = 20.0
_STOP_TIMEOUT: Final = 5.0
_MOST_FAILURES: Final = 1_000


class DemoStore(msgspec.Struct, frozen=True, kw_only=True):
    """Store of the demo alone. `text` is its URL with all secrets filled in."""

    text: str
    url: StoreUrl
    names: Names

    def __repr__(self) -> str:
        return f"DemoStore({self.url})"

    @property
    def settings(self) -> dict[str, str]:
        """Return the environment variables that name it."""
        schema = {} if self.names.schema is None else {"PILLARBOX_SCHEMA": self.names.schema}
        return {"PILLARBOX_STORE": self.text} | schema


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The databases, files and target of a run, ready to use."""

    folder: Path
    store: DemoStore
    shop_database: ShopDatabase
    consumer_database: ConsumerDatabase
    consumer_file: Path
    target: Target
    endpoint: Endpoint


def choose_store(store: str | None, *, folder: Path) -> DemoStore:
    """Choose a new file, or a new schema on a server; `ConfigError` for a file that exists already."""
    text = (
        f"sqlite:///{folder / 'shop.db'}?synchronous=normal"
        if store is None
        else expand_variables(store.strip(), os.environ)
    )
    url = parse_store_url(text)
    if url.scheme != "sqlite":
        return DemoStore(text=text, url=url, names=Names(f"pillarbox_demo_{secrets.token_hex(4)}"))
    path = Path(url.path).absolute()
    if not url.path or path.exists():
        raise ConfigError("The demo makes its own tables and removes them: give --store a file that is not there yet.")
    _, mark, options = text.partition("?")
    whole = f"sqlite:///{quote(str(path))}{mark}{options}"
    return DemoStore(text=whole, url=parse_store_url(whole), names=Names())


@asynccontextmanager
async def set_up(store_url_text: str | None, *, target: Target, keep: bool) -> AsyncIterator[Setup]:
    """Make tables, files and what the target needs; remove all of it afterwards, unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="pillarbox-demo-"))
    is_ready = False
    try:
        store = choose_store(store_url_text, folder=folder)
        shop_database = open_shop_database(store.url, names=store.names)
        endpoint = open_endpoint(target)
        consumer_file = folder / "consumer.db"
        async with _make_tables(store, shop_database, keep=keep), _prepare_endpoint(endpoint):
            consumer_database = await ConsumerDatabase.create(consumer_file)
            is_ready = True
            yield Setup(
                folder=folder,
                store=store,
                shop_database=shop_database,
                consumer_database=consumer_database,
                consumer_file=consumer_file,
                target=target,
                endpoint=endpoint,
            )
            consumer_database.close()
    finally:
        if not (keep and is_ready):
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _make_tables(store: DemoStore, shop_database: ShopDatabase, *, keep: bool) -> AsyncIterator[None]:
    await open_schema(store.url, names=store.names).install()
    await shop_database.open()
    try:
        await shop_database.create()
        yield
    finally:
        if not keep:
            await shop_database.remove()
        await shop_database.close()


@asynccontextmanager
async def _prepare_endpoint(endpoint: Endpoint) -> AsyncIterator[None]:
    # Nothing is kept at a broker, even with --keep: the broker is shared, and every message in it was read.
    await endpoint.prepare()
    try:
        yield
    finally:
        await endpoint.remove()


class Processes:
    """The order service, two relays and a consumer. Leaving the block kills those that are left."""

    def __init__(self, scenario: Scenario, setup: Setup) -> None:
        self._folder = setup.folder
        # URLs go into the environment: they may hold a password, and every user can read command lines.
        store = setup.store.settings
        destination = {f"PILLARBOX_DESTINATION_{DESTINATION.upper()}_URL": setup.target.transport_url}
        options = {"lease": f"{LEASE.total_seconds():g}s", "batch": _BATCH, "window": _WINDOW, "service": "demo"}
        relay = ["--debug", "relay", *(f"--{name}={value}" for name, value in options.items())]
        self.shop = self._process("order service", shop.MODULE, shop.arguments(scenario), store)
        self.consumer = self._process(
            "consumer", consumer.MODULE, consumer.arguments(setup.consumer_file), consumer.settings(setup.target)
        )
        self.relays = [
            self._process(f"relay {number}", "pillarbox", relay, store | destination)
            for number in range(1, _RELAYS + 1)
        ]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for process in (self.shop, self.consumer, *self.relays):
                stack.callback(process.kill)

    def _process(self, name: str, module: str, arguments: Sequence[str], settings: dict[str, str]) -> Process:
        return Process(name, module=module, arguments=arguments, folder=self._folder, settings=settings)


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts, and which messages were kept as failed."""

    result: Result
    failed: Sequence[Failure]
    """What the relay keeps as failed."""
    refused: Sequence[Failure]
    """What the consumer keeps as refused."""
    is_complete: bool
    """False if messages were still under way when time ran out."""
    seconds: float


async def run_demo(scenario: Scenario, setup: Setup, display: Display) -> DemoResult:
    """Run the scenario to its end. Whatever happens, no process is left."""
    store = open_store(setup.store.url, names=setup.store.names)
    await store.open()
    try:
        with Processes(scenario, setup) as processes:
            return await _DemoRun(scenario, setup, store, processes).run(display)
    finally:
        await store.close()


class _DemoRun:
    def __init__(self, scenario: Scenario, setup: Setup, store: Store, processes: Processes) -> None:
        self._scenario = scenario
        self._setup = setup
        self._store = store
        self._processes = processes
        self._schedule = FaultSchedule(scenario)
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._kills = 0
        self._kills_while_delivering = 0
        self._delivered_at_kill = 0
        self._outages = 0
        self._consumer_is_up = False

    async def run(self, display: Display) -> DemoResult:
        display.note("the consumer starts, then two relays and the order service")
        await self._start()
        progress = await self._observe()
        while not self._schedule.is_over(progress) and progress.seconds < self._scenario.patience:
            display.show(progress)
            for fault in self._schedule.due_faults(progress):
                display.note(self._inflict(fault, progress))
            await asyncio.sleep(_OBSERVE_INTERVAL)
            progress = await self._observe()
        display.show(progress, is_last=True)
        self._stop()
        return await self._collect(is_complete=progress.is_received)

    async def _start(self) -> None:
        self._processes.consumer.start()
        self._consumer_is_up = True
        await self._wait_for_consumer()
        for relay in self._processes.relays:
            relay.start()
        await self._wait_for_relays()
        self._processes.shop.start()
        self._started = self._clock()

    async def _wait_for_relays(self) -> None:
        give_up_at = self._clock() + _START_TIMEOUT
        while self._clock() < give_up_at:
            if len(await self._list_live_relays()) == len(self._processes.relays):
                return
            await asyncio.sleep(_OBSERVE_INTERVAL)
        raise PillarboxError(
            f"The relays did not register within {_START_TIMEOUT:.0f} s; look at their logs after --keep."
        )

    async def _wait_for_consumer(self) -> None:
        give_up_at = self._clock() + _START_TIMEOUT
        while not await self._setup.endpoint.is_ready():
            self._processes.consumer.has_finished()
            if self._clock() >= give_up_at:
                raise PillarboxError(
                    f"The consumer did not start to listen within {_START_TIMEOUT:.0f} s; look at its log."
                )
            await asyncio.sleep(_OBSERVE_INTERVAL)

    def _inflict(self, fault: Fault, progress: Progress) -> str:
        """Inflict a fault, and return a line that describes it."""
        match fault:
            case KillRelay(relay):
                self._processes.relays[relay].kill()
                self._processes.relays[relay].start()
                self._kills += 1
                self._kills_while_delivering += self._consumer_is_up and progress.delivered > self._delivered_at_kill
                self._delivered_at_kill = progress.delivered
                return f"relay {relay + 1} killed with SIGKILL, and started again"
            case ConsumerDown():
                self._processes.consumer.kill()
                self._consumer_is_up = False
                self._outages += 1
                return f"consumer killed with SIGKILL; it stays down for {self._scenario.outage_seconds:.0f} s"
            case ConsumerUp():
                self._processes.consumer.start()
                self._consumer_is_up = True
                return "consumer started again"

    async def _observe(self) -> Progress:
        committed, rolled_back = await self._setup.shop_database.counts()
        states = dict.fromkeys(State, 0)
        shop_is_done = self._processes.shop.has_finished()
        for count in await self._store.counts():
            if count.destination == DESTINATION:
                states[count.state] += count.count
        return Progress(
            seconds=self._clock() - self._started,
            orders=self._scenario.orders,
            committed=committed,
            rolled_back=rolled_back,
            delivered=await self._count_delivered(),
            sending=states[State.SENDING],
            pending=states[State.PENDING],
            failed=states[State.FAILED],
            kills=self._kills,
            kills_while_delivering=self._kills_while_delivering,
            outages=self._outages,
            received=self._setup.consumer_database.count_arrived(),
            consumer_is_up=self._consumer_is_up,
            shop_is_done=shop_is_done,
            relays=await self._list_live_relays(),
        )

    async def _count_delivered(self) -> int:
        # Store.counts() leaves delivered messages out. The demo counts the rows themselves: they are the evidence.
        return await self._store.count(Selection(states=[State.DELIVERED], destination=DESTINATION))

    async def _list_live_relays(self) -> list[int]:
        registry = await self._store.registry(lease=LEASE)
        pids = {relay.pid for relay in registry.relays}
        if self._consumer_is_up and self._processes.consumer.has_finished():
            raise PillarboxError("The consumer ended unexpectedly.")
        if any(relay.has_finished() for relay in self._processes.relays):
            raise PillarboxError("A relay ended unexpectedly.")
        return [number for number, relay in enumerate(self._processes.relays) if relay.pid in pids]

    def _stop(self) -> None:
        for relay in self._processes.relays:
            relay.stop(within=_STOP_TIMEOUT)
        self._processes.shop.kill()
        self._processes.consumer.kill()

    async def _collect(self, *, is_complete: bool) -> DemoResult:
        records = await self._setup.shop_database.read_records()
        consumer_database = self._setup.consumer_database
        failed = await self._store.find(Selection(states=[State.FAILED], destination=DESTINATION), limit=_MOST_FAILURES)
        kept = [_to_failure(message) for message in failed]
        evidence = Evidence(
            committed=records.committed,
            rolled_back=records.rolled_back,
            effects=consumer_database.list_effects(),
            received=consumer_database.list_received(),
            absorbed=consumer_database.count_absorbed(),
            failed=[failure.order_id for failure in (*kept, *consumer_database.list_refused())],
            delivered=await self._count_delivered(),
            kills=self._kills,
            kills_while_delivering=self._kills_while_delivering,
            outages=self._outages,
        )
        seconds = self._clock() - self._started
        return DemoResult(
            result=compare(evidence),
            failed=kept,
            refused=consumer_database.list_refused(),
            is_complete=is_complete,
            seconds=seconds,
        )


def _to_failure(message: Message) -> Failure:
    return Failure(message.subject or "", message.key or "", message.last_error or "")
