"""Asking a store from a command: open it, ask, close it."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from pillarbox.cli.target import Target
from pillarbox.protocols import Store
from pillarbox.stores.opening import open_store

__all__ = ["asked", "by_option"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def asked(target: Target, ask: Callable[[Store], Awaitable[T]]) -> T:
    """What the store of the target answers."""

    async def run() -> T:
        store = open_store(target.url, names=target.names, asks_only=True)
        await store.open()
        try:
            return await ask(store)
        finally:
            await store.close()

    return asyncio.run(run())


def by_option(command: F) -> F:
    """Adds `--by`: who stands in the journal."""
    option = click.option(
        "--by", default=_me, show_default="you@this machine", metavar="NAME", envvar="PILLARBOX_BY", show_envvar=True,
        help="Who does this, for the journal.",
    )  # fmt: skip
    return option(command)


def _me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
