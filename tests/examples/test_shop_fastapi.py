"""Two services over PostgreSQL and RabbitMQ: an order goes round, and does so whoever is killed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aio_pika
import httpx
import psycopg
import pytest

from tests.support.cli.program import pillarbox
from tests.support.examples.example import Example, fetch_json, run_example
from tests.support.postgres_server import scratch_database
from tests.support.private_program import free_port

pytestmark = pytest.mark.timeout(300)

ORDERS: Final = 30


@dataclass(frozen=True)
class Shop:
    """Names and ports of one test's own."""

    database: str
    broker: str
    exchange: str
    orders_port: int
    shipping_port: int

    @property
    def variables(self) -> dict[str, str]:
        return {
            "SHOP_DATABASE": self.database.replace("postgresql://", "postgresql+asyncpg://"),
            "SHOP_BROKER": self.broker,
            "SHOP_EXCHANGE": self.exchange,
            "ORDERS_PORT": str(self.orders_port),
            "SHIPPING_PORT": str(self.shipping_port),
        }

    @property
    def orders_url(self) -> str:
        return f"http://127.0.0.1:{self.orders_port}/orders"

    @property
    def statuses(self) -> dict[str, str] | None:
        """Of each order; None while nobody answers."""
        found: dict[str, str] | None = fetch_json(self.orders_url)
        return found

    def parcels(self, *, example: Example) -> list[int]:
        """The order of each parcel, as soon as somebody answers."""
        url = f"http://127.0.0.1:{self.shipping_port}/parcels"
        found: list[int] = example.wait_until(lambda: fetch_json(url), "shipping answers")
        return sorted(found)

    def place(self, article: str) -> None:
        httpx.post(self.orders_url, params={"article": article}, timeout=100).raise_for_status()

    def wait_until_shipped(self, count: int, *, example: Example) -> None:
        everything = {str(number): "shipped" for number in range(1, count + 1)}
        example.wait_until(lambda: self.statuses == everything, f"{count} orders are shipped")

    def number(self, sql: str) -> int:
        with psycopg.connect(self.database) as connection:
            ((number,),) = connection.execute(sql.encode()).fetchall()
            return int(number or 0)


@pytest.fixture
def shop(postgres_url: str, rabbitmq_url: str) -> Iterator[Shop]:
    exchange = f"pillarbox-test-{secrets.token_hex(6)}"
    with scratch_database(postgres_url) as database, removed(exchange, broker=rabbitmq_url):
        yield Shop(database, rabbitmq_url, exchange, orders_port=free_port(), shipping_port=free_port())


@contextmanager
def removed(exchange: str, *, broker: str) -> Iterator[None]:
    """What the example made at the broker is gone afterwards."""

    async def remove() -> None:
        async with await aio_pika.connect(broker) as connection:
            channel = await connection.channel()
            for service in ("orders", "shipping"):
                await channel.queue_delete(f"{exchange}.{service}")
            await channel.exchange_delete(exchange)

    try:
        yield
    finally:
        asyncio.run(remove())


def test_an_order_goes_round(shop: Shop, tmp_path: Path) -> None:
    with run_example("shop_fastapi", tmp_path, **shop.variables) as example:
        example.wait_for_output(r"^orders: order 1 is placed \(teapot\)$")
        example.wait_for_output(r"^shipping: parcel 1 goes out for order 1 \(teapot\)$")
        example.wait_for_output(r"^orders: order 1 is shipped in parcel 1$")
        shop.wait_until_shipped(1, example=example)
        status = pillarbox("status", "--store", shop.database, "--schema", "orders")
        assert status.code == 0, status.err
        assert "broker" in status.out
        example.interrupt()


def test_both_services_are_killed_and_every_order_is_shipped_once(shop: Shop, tmp_path: Path) -> None:
    with run_example("shop_fastapi", tmp_path, **shop.variables) as example:
        shop.wait_until_shipped(1, example=example)
        with ThreadPoolExecutor(8) as customers:
            placing = [customers.submit(shop.place, f"cup {number}") for number in range(ORDERS)]
            example.wait_for_output(r"^shipping: parcel \d+ goes out", count=ORDERS // 3)
            example.kill("shipping")
            for placed in placing:
                placed.result()
        example.kill("orders")
        example.wait_for_output(r"^(?:orders|shipping) was ended, and starts again$", count=2)
        shop.wait_until_shipped(1 + ORDERS, example=example)
        assert shop.parcels(example=example) == [*range(1, 2 + ORDERS)]

        replayed = pillarbox(
            "messages", "replay", "--destination", "broker", "--yes", "--store", shop.database, "--schema", "orders"
        )
        assert replayed.code == 0, replayed.err
        example.wait_until(
            lambda: shop.number("select sum(duplicates) from shipping.pillarbox_inbox") > ORDERS,
            "everything has come a second time",
        )
        assert shop.parcels(example=example) == [*range(1, 2 + ORDERS)]
        assert shop.number("select count(*) from orders.pillarbox_messages where state <> 'delivered'") == 0


def test_a_database_that_is_away_is_told_in_a_sentence(tmp_path: Path) -> None:
    away = f"postgresql+asyncpg://postgres@127.0.0.1:{free_port()}/shop"
    with run_example("shop_fastapi", tmp_path, SHOP_DATABASE=away) as example:
        example.wait_for_output(r"^Error: PostgreSQL cannot be reached .*\.$")
        assert example.wait_for_exit() != 0
        assert "Traceback" not in example.output
