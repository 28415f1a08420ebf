"""The order service, a process of its own: commits orders with their messages, and rolls some back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec

from pillarbox.demo.result import Order
from pillarbox.demo.scenario import PlannedOrder, Scenario, plan_orders
from pillarbox.errors import ConfigError
from pillarbox.events import Types
from pillarbox.message import Names
from pillarbox.outbox import Outbox
from pillarbox.stores.postgres.connection import map_errors
from pillarbox.stores.postgres.driver import Connection, load_driver
from pillarbox.stores.urls import StoreUrl, parse_store_url

__all__ = [
    "CONSUMER",
    "DESTINATION",
    "MODULE",
    "NO_SYNC",
    "AcceptedOrder",
    "MariadbShop",
    "OrderPlaced",
    "PostgresShop",
    "RolledBack",
    "ShopDatabase",
    "ShopRecords",
    "SqliteShop",
    "arguments",
    "build_event",
    "build_outbox",
    "open_shop_database",
]

DESTINATION: Final = "orders"
CONSUMER: Final = "demo"
_TYPES: Final = Types()


@_TYPES.event("demo.order_placed", topic="orders", key="customer", subject="order_id")
class OrderPlaced(msgspec.Struct, frozen=True):
    """An order was placed. Orders of one customer are delivered in order."""

    order_id: str
    customer: str
    number: int
    amount: int


class AcceptedOrder(msgspec.Struct, frozen=True):
    """The event as the consumer reads it: no amount below 1 is valid."""

    order_id: str
    customer: str
    number: int
    amount: Annotated[int, msgspec.Meta(ge=1)]


def build_outbox(names: Names) -> Outbox:
    """Build the outbox of the order service."""
    return Outbox(routes=DESTINATION, source="/demo/shop", schema=names.schema, prefix=names.prefix, types=_TYPES)


def build_event(order: PlannedOrder, *, number: int) -> OrderPlaced:
    return OrderPlaced(order.order_id, order.customer, number, order.amount)


class RolledBack(Exception):
    """Raised in the middle of a transaction, after publishing."""


class ShopRecords(msgspec.Struct, frozen=True):
    """The committed orders, and those that were rolled back."""

    committed: Sequence[Order]
    rolled_back: Sequence[str]


class ShopDatabase(Protocol):
    """The tables of the order service: customers, orders, and which orders were rolled back."""

    writers: int
    """How many transactions to run at once."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Close the connections."""

    async def create(self) -> None:
        """Create the tables."""

    async def remove(self) -> None:
        """Remove the tables, and everything else that the demo made in the store."""

    async def place(self, order: PlannedOrder) -> None:
        """Write the order and publish it, in one transaction that commits or is rolled back."""

    async def counts(self) -> tuple[int, int]:
        """Return how many orders are committed, and how many were rolled back."""

    async def read_records(self) -> ShopRecords:
        """Return all records."""


def open_shop_database(url: StoreUrl, *, names: Names) -> ShopDatabase:
    """Return the shop's database beside this store, not yet open; `ConfigError` for a store the demo cannot use."""
    match url.scheme:
        case "sqlite":
            return SqliteShop(url.path, names=names)
        case "postgresql":
            return PostgresShop(url, names=names)
        case "mysql":
            return MariadbShop(url, names=names)
    raise ConfigError(f"The demo runs on sqlite://, postgresql:// and mysql:// stores, not on {url.scheme}://.")


NO_SYNC: Final = "pragma synchronous = normal"
"""A commit does not wait for the disk: it outlives every process that is killed, though not a power cut."""

_SQLITE_TABLES: Final = """
create table shop_customer (name text primary key, orders integer not null);
create table shop_order (order_id text primary key, customer text not null, number integer not null,
    amount integer not null);
create table shop_rolled_back (order_id text primary key);
"""
_SQLITE_NEXT_NUMBER: Final = """
insert into shop_customer values (?, 1) on conflict (name) do update set orders = orders + 1 returning orders
"""


class SqliteShop:
    """Runs one transaction at a time. Calls block: the process does nothing but place orders."""

    writers = 1

    def __init__(self, path: str, *, names: Names) -> None:
        self._path = Path(path)
        self._outbox = build_outbox(names)
        self._connection: sqlite3.Connection | None = None

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "open() comes first"  # noqa: S101
        return self._connection

    async def open(self) -> None:
        self._connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        self._connection.execute(NO_SYNC)

    async def close(self) -> None:
        self._open.close()

    async def create(self) -> None:
        self._open.executescript(_SQLITE_TABLES)

    async def remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    async def place(self, order: PlannedOrder) -> None:
        try:
            self._open.execute("begin immediate")
            with self._open:
                self._write(order)
                if not order.commits:
                    raise RolledBack
        except RolledBack:
            self._open.execute("insert into shop_rolled_back values (?)", (order.order_id,))

    def _write(self, order: PlannedOrder) -> None:
        (number,) = self._open.execute(_SQLITE_NEXT_NUMBER, (order.customer,)).fetchone()
        row = (order.order_id, order.customer, number, order.amount)
        self._open.execute("insert into shop_order values (?, ?, ?, ?)", row)
        self._outbox.publish(self._open, build_event(order, number=number))

    async def counts(self) -> tuple[int, int]:
        (committed,) = self._open.execute("select count(*) from shop_order").fetchone()
        (rolled_back,) = self._open.execute("select count(*) from shop_rolled_back").fetchone()
        return committed, rolled_back

    async def read_records(self) -> ShopRecords:
        orders = self._open.execute("select order_id, customer, number from shop_order").fetchall()
        rolled_back = self._open.execute("select order_id from shop_rolled_back").fetchall()
        return ShopRecords([Order(*row) for row in orders], [order_id for (order_id,) in rolled_back])


_WRITERS: Final = 4
_POOL_TIMEOUT: Final = 60.0
_POSTGRES_TABLES: Final = """
create table shop.customer (name text primary key, orders integer not null);
create table shop.orders (order_id text primary key, customer text not null, number integer not null,
    amount integer not null);
create table shop.rolled_back (order_id text primary key);
"""
# Writers of one customer wait here for each other, so the ids of their messages follow the order of their commits.
_POSTGRES_NEXT_NUMBER: Final = """
insert into shop.customer as customer values ($1, 1)
on conflict (name) do update set orders = customer.orders + 1 returning orders
"""
_COUNTS: Final = "select (select count(*) from shop.orders), (select count(*) from shop.rolled_back)"


class PostgresShop:
    """Runs several transactions at once. A lock on the customer's row puts the orders of a customer in order."""

    writers = _WRITERS

    def __init__(self, url: StoreUrl, *, names: Names) -> None:
        self._url = url
        self._driver = load_driver(url.driver)
        assert names.schema is not None, "the demo has a schema of its own"  # noqa: S101
        self._schema = names.schema
        self._outbox = build_outbox(names)
        self._pool: Any = None

    async def open(self) -> None:
        with map_errors(self._driver):
            self._pool = await self._driver.create_pool(
                self._url.dsn, size=_WRITERS, timeout=_POOL_TIMEOUT, settings=None
            )

    async def close(self) -> None:
        await self._pool.close()

    async def create(self) -> None:
        async with self._borrow() as connection:
            await connection.execute(self._sql(_POSTGRES_TABLES))

    async def remove(self) -> None:
        async with self._borrow() as connection:
            await connection.execute(f'drop schema "{self._schema}" cascade')

    async def place(self, order: PlannedOrder) -> None:
        async with self._borrow() as connection:
            try:
                async with connection.transaction(isolation="read_committed"):
                    await self._write(connection, order)
                    if not order.commits:
                        raise RolledBack
            except RolledBack:
                await connection.execute(self._sql("insert into shop.rolled_back values ($1)"), order.order_id)

    async def _write(self, connection: Connection, order: PlannedOrder) -> None:
        number = await connection.fetchval(self._sql(_POSTGRES_NEXT_NUMBER), order.customer)
        row = (order.order_id, order.customer, number, order.amount)
        await connection.execute(self._sql("insert into shop.orders values ($1, $2, $3, $4)"), *row)
        await self._outbox.publish(self._driver.unwrap(connection), build_event(order, number=number))

    async def counts(self) -> tuple[int, int]:
        async with self._borrow() as connection:
            committed, rolled_back = await connection.fetchrow(self._sql(_COUNTS))
        return committed, rolled_back

    async def read_records(self) -> ShopRecords:
        async with self._borrow() as connection:
            orders = await connection.fetch(self._sql("select order_id, customer, number from shop.orders"))
            rolled_back = await connection.fetch(self._sql("select order_id from shop.rolled_back"))
        return ShopRecords([Order(*row) for row in orders], [row[0] for row in rolled_back])

    def _borrow(self) -> AbstractAsyncContextManager[Connection]:
        acquired: AbstractAsyncContextManager[Connection] = self._pool.acquire(timeout=_POOL_TIMEOUT)
        return acquired

    def _sql(self, statement: str) -> str:
        """Return the statement with the demo's schema instead of `shop`."""
        return statement.replace("shop.", f'"{self._schema}".')


T = TypeVar("T")

_TIMEOUT: Final = 30.0
_MARIADB_TABLES: Final = (
    "create table shop.customer (name varchar(100) primary key, orders integer not null)",
    "create table shop.orders (order_id varchar(100) primary key, customer varchar(100) not null, "
    "number integer not null, amount integer not null)",
    "create table shop.rolled_back (order_id varchar(100) primary key)",
)
# Writers of one customer wait here for each other, so the ids of their messages follow the order of their commits.
_MARIADB_NEXT_NUMBER: Final = "insert into shop.customer values (%s, 1) on duplicate key update orders = orders + 1"
_NUMBER: Final = "select orders from shop.customer where name = %s"


class MariadbShop:
    """Runs several transactions at once. A lock on the customer's row puts the orders of a customer in order."""

    writers = _WRITERS

    def __init__(self, url: StoreUrl, *, names: Names) -> None:
        # Imported here: it needs its driver, and a demo on another store does not.
        from pillarbox.stores.mariadb.connection import connect, map_errors

        self._connect, self._map_errors = connect, map_errors
        self._url = url
        assert names.schema is not None, "the demo has a database of its own"  # noqa: S101
        self._schema = names.schema
        self._outbox = build_outbox(names)
        self._connections: list[Any] = []
        self._idle: asyncio.Queue[Any] = asyncio.Queue()

    async def open(self) -> None:
        for _ in range(_WRITERS):
            connection = await asyncio.to_thread(self._connect, self._url.dsn, timeout=_TIMEOUT)
            self._connections.append(connection)
            self._idle.put_nowait(connection)

    async def close(self) -> None:
        for connection in self._connections:
            with suppress(Exception):
                connection.close()

    async def create(self) -> None:
        def work(connection: Any) -> None:
            for table in _MARIADB_TABLES:
                self._fetch(connection, table)

        await self._run(work)

    async def remove(self) -> None:
        await self._run(lambda connection: self._fetch(connection, f"drop database `{self._schema}`"))

    async def place(self, order: PlannedOrder) -> None:
        await self._run(lambda connection: self._place(connection, order))

    def _place(self, connection: Any, order: PlannedOrder) -> None:
        connection.begin()
        try:
            self._write(connection, order)
            if not order.commits:
                raise RolledBack
            connection.commit()
        except RolledBack:
            connection.rollback()
            self._fetch(connection, "insert into shop.rolled_back values (%s)", order.order_id)

    def _write(self, connection: Any, order: PlannedOrder) -> None:
        self._fetch(connection, _MARIADB_NEXT_NUMBER, order.customer)
        ((number,),) = self._fetch(connection, _NUMBER, order.customer)
        row = (order.order_id, order.customer, number, order.amount)
        self._fetch(connection, "insert into shop.orders values (%s, %s, %s, %s)", *row)
        self._outbox.publish(connection, build_event(order, number=number))

    async def counts(self) -> tuple[int, int]:
        ((committed, rolled_back),) = await self._run(lambda connection: self._fetch(connection, _COUNTS))
        return committed, rolled_back

    async def read_records(self) -> ShopRecords:
        def work(connection: Any) -> ShopRecords:
            orders = self._fetch(connection, "select order_id, customer, number from shop.orders")
            rolled_back = self._fetch(connection, "select order_id from shop.rolled_back")
            return ShopRecords([Order(*row) for row in orders], [row[0] for row in rolled_back])

        return await self._run(work)

    async def _run(self, work: Callable[[Any], T]) -> T:
        connection = await self._idle.get()
        try:
            with self._map_errors():
                return await asyncio.to_thread(work, connection)
        finally:
            self._idle.put_nowait(connection)

    def _fetch(self, connection: Any, sql: str, *values: object) -> list[Any]:
        """Run a statement with the demo's database instead of `shop`, and return its rows."""
        with connection.cursor() as cursor:
            cursor.execute(sql.replace("shop.", f"`{self._schema}`."), values or None)
            return list(cursor.fetchall())


MODULE: Final = "pillarbox.demo.shop"


def arguments(scenario: Scenario) -> list[str]:
    """Return the arguments of this program. The store goes by the environment: its URL may hold a password."""
    return [msgspec.json.encode(scenario).decode()]


async def run(scenario: Scenario, database: ShopDatabase) -> None:
    """Place all orders of the scenario, at its pace."""
    await database.open()
    orders = _pace(plan_orders(scenario), pace=scenario.pace)
    lock = asyncio.Lock()

    async def write() -> None:
        while (order := await _take_next(orders, lock)) is not None:
            await database.place(order)

    async with asyncio.TaskGroup() as writers:
        for _ in range(database.writers):
            writers.create_task(write())
    await database.close()


async def _take_next(orders: AsyncIterator[PlannedOrder], lock: asyncio.Lock) -> PlannedOrder | None:
    async with lock:
        return await anext(orders, None)


async def _pace(orders: Iterator[PlannedOrder], *, pace: float) -> AsyncIterator[PlannedOrder]:
    """Yield the orders at this pace. After a delay it catches up."""
    clock = asyncio.get_running_loop().time
    started = clock()
    for number, order in enumerate(orders):
        await asyncio.sleep(max(0.0, started + number / pace - clock()))
        yield order


def main(scenario: str) -> None:
    environ = os.environ
    database = open_shop_database(
        parse_store_url(environ["PILLARBOX_STORE"]), names=Names(environ.get("PILLARBOX_SCHEMA"))
    )
    asyncio.run(run(msgspec.json.decode(scenario, type=Scenario), database))


if __name__ == "__main__":
    main(*sys.argv[1:])
