"""A plain script and a signed webhook: it arrives, also when the partner was away, and nothing else is believed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.support.cli.program import environment, pillarbox
from tests.support.examples.example import ROOT, Example, run_example
from tests.support.private_program import free_port

pytestmark = pytest.mark.timeout(300)


class Shop:
    """The example, and the script that belongs to it."""

    def __init__(self, example: Example, *, file: Path, port: int) -> None:
        self.example = example
        self.store = f"sqlite:///{file}"
        self.hooks = f"http://127.0.0.1:{port}/hooks"
        self._environ = environment({"SHOP_FILE": str(file)})

    def place(self, *articles: str) -> None:
        """As the README says, from another terminal."""
        script = [sys.executable, "-m", "examples.webhook_script.place", *articles]
        subprocess.run(script, check=True, cwd=ROOT, env=self._environ, stdout=subprocess.DEVNULL, timeout=100)

    def until_it_arrived(self, order_id: int, article: str) -> None:
        body = f'{{"order_id":{order_id},"article":"{article}"}}'
        self.example.wait_for_output(f"^partner: orders.placed {re.escape(body)}$")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    file, port = tmp_path / "shop.db", free_port()
    variables = {"SHOP_FILE": str(file), "PARTNER_PORT": str(port), "PILLARBOX_RELAY_LEASE": "2s"}
    with run_example("webhook_script", tmp_path, **variables) as example:
        yield Shop(example, file=file, port=port)


def test_what_the_script_wrote_arrives_signed_and_nothing_else_is_believed(shop: Shop) -> None:
    shop.until_it_arrived(1, "teapot")
    forged = httpx.post(shop.hooks, json={"order_id": 2, "article": "everything"}, timeout=100)
    assert forged.status_code == 401
    shop.example.wait_for_output("^partner: refused. A webhook has no webhook-id header")
    assert "everything" not in shop.example.output
    status = pillarbox("status", "--store", shop.store)
    assert status.code == 0, status.err
    assert "partner" in status.out
    shop.example.interrupt()


def test_whoever_is_killed_every_order_arrives(shop: Shop) -> None:
    shop.until_it_arrived(1, "teapot")
    shop.example.kill("partner")
    shop.place("cup", "saucer")
    shop.example.kill("relay")
    shop.place("spoon")
    for order_id, article in ((2, "cup"), (3, "saucer"), (4, "spoon")):
        shop.until_it_arrived(order_id, article)
    shop.example.terminate()


def test_a_program_that_cannot_run_ends_the_example(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        variables = {"SHOP_FILE": str(tmp_path / "shop.db"), "PARTNER_PORT": str(other.getsockname()[1])}
        with run_example("webhook_script", tmp_path, **variables) as example:
            example.wait_for_output("^partner ended with 1, and the example with it")
            assert example.wait_for_exit() != 0
