"""One process whose modules talk by events alone: the chain is finished, also by the process after one that died."""

from __future__ import annotations

import ast
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cli.program import pillarbox
from tests.support.examples.example import ROOT, run_example

pytestmark = pytest.mark.timeout(300)

MODULES = ("billing", "orders", "stock")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def rows(file: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file, timeout=60)) as connection:
        return connection.execute(sql).fetchall()


def test_an_order_goes_through_all_modules(file: Path, tmp_path: Path) -> None:
    with run_example("modular_monolith", tmp_path, SHOP_FILE=str(file)) as example:
        example.wait_for_output(r"^orders: order 1 is placed \(teapot\)$")
        example.wait_for_output(r"^stock: a teapot is put aside for order 1$")
        example.wait_for_output(r"^billing: invoice 1 is written for order 1$")
        example.wait_for_output(r"^orders: order 1 is complete with invoice 1$")
        example.interrupt()
    assert rows(file, "select id, article, status from orders") == [(1, "teapot", "complete")]
    assert rows(file, "select distinct correlation_id is null from pillarbox_history") == [(0,)]
    assert rows(file, "select count(distinct correlation_id) from pillarbox_history") == [(1,)]


def test_what_a_dead_process_began_is_finished_once(file: Path, tmp_path: Path) -> None:
    with run_example("modular_monolith", tmp_path, SHOP_FILE=str(file)) as example:
        example.wait_for_output(r"^stock: a teapot is put aside for order 1$")  # the transaction is still open
        os.killpg(example.process.pid, signal.SIGKILL)
    with run_example("modular_monolith", tmp_path, SHOP_FILE=str(file)) as example:
        example.wait_for_output(r"^orders: order 2 is placed")
        example.wait_until(
            lambda: rows(file, "select id, status from orders order by id") == [(1, "complete"), (2, "complete")],
            "both orders are complete",
        )
        for destination in MODULES:
            again = pillarbox(
                "messages", "replay", "--destination", destination, "--yes", "--store", f"sqlite:///{file}"
            )
            assert again.code == 0, again.err
        example.wait_until(
            lambda: rows(file, "select count(*) from pillarbox_inbox where duplicates > 0") == [(6,)],
            "everything has come a second time",
        )
        assert rows(file, "select order_id from invoices order by order_id") == [(1,), (2,)]
        assert rows(file, "select pieces from reserved") == [(2,)]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_knows_no_other(module: str) -> None:
    source = (ROOT / "examples" / "modular_monolith" / f"{module}.py").read_text()
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    own = {name.rpartition(".")[2] for name in imported if name and name.startswith("examples.")}
    assert own == {"database", "messages"}
