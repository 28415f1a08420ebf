"""SQLite, HTTP, SQLite, HTTP, SQLite. No server is needed but those that die."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chain.effects import make_table
from chain.lines.line import Line
from chain.orders import ConsumerOrder, RelayOrder
from crash.backends import Place, sqlite

__all__ = ["line"]


@contextmanager
def line(folder: Path) -> Iterator[Line]:
    """Three files, and two ports of its own."""
    with ExitStack() as stack:
        make = stack.enter_context(sqlite.served())
        a, b, c = (stack.enter_context(make(_made(folder / name))) for name in "abc")
        at_b, at_c = (stack.enter_context(_reserved()) for _ in range(2))
        for place in (b, c):
            make_table(place, backend="sqlite")
        yield Line(a=a, b=b, c=c, roles=_roles(a, b, c, at_b=at_b, at_c=at_c))


def _roles(a: Place, b: Place, c: Place, *, at_b: int, at_c: int) -> dict[str, Any]:
    return {
        "relay A": RelayOrder(**_at(a), to=_url(at_b)),
        "consumer B": ConsumerOrder(**_at(b), name="b", port=at_b, onward=True),
        "relay B": RelayOrder(**_at(b), to=_url(at_c)),
        "consumer C": ConsumerOrder(**_at(c), name="c", port=at_c, onward=False),
    }


def _at(place: Place) -> dict[str, Any]:
    return {"backend": "sqlite", "store": place.url(), "schema": None}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/?allow_private=true&timeout=5s"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _reserved() -> Iterator[int]:
    """A port that nobody else is given while its consumer is dead: bound, and never listened at."""
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holding.bind(("127.0.0.1", 0))
        yield holding.getsockname()[1]
