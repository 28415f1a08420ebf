"""The outbox is the only way to publish, and no broker is part of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pillarbox
from pillarbox import Outbox

_WRITE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise RuntimeError(f"a write reached for the network: {event} {arguments}")

sys.addaudithook(refuse)

import sqlite3
from pillarbox import Outbox

outbox = Outbox.from_config()
connection = sqlite3.connect("shop.db")
for number in range(100):
    outbox.publish(connection, {"n": number}, type="orders.placed", key="k")
connection.commit()
print(connection.execute("select count(*), count(distinct destination) from pillarbox_outbox").fetchone())
print(sorted(name for name in sys.modules if name.startswith(("pillarbox.brokers", "pillarbox.relay"))))
"""


def test_a_write_needs_no_broker_and_loads_none(tmp_path: Path) -> None:
    """So a broker that is slow, dead or restarting cannot slow or fail it."""
    (tmp_path / "pillarbox.toml").write_text(
        '[store]\nurl = "sqlite:///shop.db"\n[outbox]\nsource = "/shop"\ndefault = ["bus", "hooks"]\n'
        '[destinations.bus]\nurl = "amqp://127.0.0.1:1"\n[destinations.hooks]\nurl = "https://gone.invalid/hooks"\n'
    )
    subprocess.run([sys.executable, "-m", "pillarbox", "schema", "install"], cwd=tmp_path, check=True, timeout=120)
    ran = subprocess.run(
        [sys.executable, "-c", _WRITE], cwd=tmp_path, check=True, timeout=120, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == ["(200, 2)", "[]"]


def test_whatever_publishes_takes_a_transaction_first() -> None:
    ways = [
        (name, method)
        for kind in (getattr(pillarbox, name) for name in pillarbox.__all__)
        if inspect.isclass(kind)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if name.split("_")[0] in ("publish", "send", "emit", "dispatch")
    ]
    assert {name for name, _ in ways} == {"publish", "send"}
    for name, method in ways:
        assert method.__qualname__ == f"Outbox.{name}"
        first = list(inspect.signature(method).parameters.values())[1]
        assert (first.name, first.default) == ("tx", inspect.Parameter.empty)
    assert {name for name, method in ways if method in (Outbox.publish, Outbox.send)} == {"publish", "send"}
