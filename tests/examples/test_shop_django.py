"""A Django shop and NATS: an order is packed, also when the broker was away while people ordered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli.program import environment
from tests.support.examples.example import ROOT, Example, fetch_json, run_example
from tests.support.nats_server import PrivateNats, private_nats
from tests.support.private_program import free_port

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def nats() -> Iterator[PrivateNats]:
    with closing(private_nats()) as server:
        yield server


class Shop:
    """Names and ports of one test's own."""

    def __init__(self, folder: Path, broker: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.variables = {"SHOP_FILE": str(folder / "shop.db"), "SHOP_BROKER": broker, "SHOP_PORT": str(port)}

    def post(self, path: str) -> None:
        httpx.post(f"{self.url}{path}", timeout=100).raise_for_status()

    def wait_for_parcels(self, *parcels: dict[str, Any], example: Example) -> None:
        wanted = {"parcels": [*parcels]}
        example.wait_until(lambda: fetch_json(f"{self.url}/parcels") == wanted, f"the parcels are {parcels}")

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "examples.shop_django.manage", *arguments],
            check=False, capture_output=True, text=True, cwd=ROOT, env=environment(self.variables), timeout=100,
        )  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path, nats: PrivateNats) -> Shop:
    return Shop(tmp_path, nats.url)


def parcel(order_id: int, article: str, status: str) -> dict[str, Any]:
    return {"order_id": order_id, "article": article, "status": status}


def test_an_order_is_packed(shop: Shop, tmp_path: Path) -> None:
    with run_example("shop_django", tmp_path, **shop.variables) as example:
        example.wait_for_output(r"^shop: order 1 is placed \(teapot\)$")
        example.wait_for_output(r"^warehouse: a teapot is packed for order 1$")
        shop.wait_for_parcels(parcel(1, "teapot", "packed"), example=example)
        status = shop.manage("pillarbox", "status")
        assert status.returncode == 0, status.stderr
        assert "broker" in status.stdout
        example.interrupt()


def test_people_order_while_the_broker_is_away(shop: Shop, nats: PrivateNats, tmp_path: Path) -> None:
    with run_example("shop_django", tmp_path, **shop.variables) as example:
        shop.wait_for_parcels(parcel(1, "teapot", "packed"), example=example)
        nats.stop()
        shop.post("/orders?article=cup")
        shop.post("/orders/2/cancel")
        shop.post("/orders/1/cancel")
        nats.start()
        shop.wait_for_parcels(parcel(1, "teapot", "unpacked"), parcel(2, "cup", "unpacked"), example=example)
        assert example.output.index("cup is packed") < example.output.index("order 2 is unpacked")


def test_its_migrations_are_complete(shop: Shop) -> None:
    made = shop.manage("makemigrations", "--check", "--dry-run")
    assert made.returncode == 0, made.stdout + made.stderr


def test_a_broker_that_is_away_at_the_start_is_told_in_a_sentence(shop: Shop, tmp_path: Path) -> None:
    shop.variables["SHOP_BROKER"] = f"nats://127.0.0.1:{free_port()}"
    with run_example("shop_django", tmp_path, **shop.variables) as example:
        example.wait_for_output(r"^Error: NATS at .* cannot be reached .*\.$")
        assert example.wait_for_exit() != 0
