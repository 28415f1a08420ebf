"""`--http`: probes and metrics of a program that runs until it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from pillarbox.cli._logs import program_log
from pillarbox.operations.health import HealthApp, HealthServer

__all__ = ["http_option", "serve_app", "serve_health"]

F = TypeVar("F", bound=Callable[..., Any])


def http_option(command: F) -> F:
    """Add `--http` as the argument `http`."""
    option = click.option("--http", metavar="HOST:PORT", envvar="PILLARBOX_HTTP", show_envvar=True,
                          help="Serve /livez, /readyz and /metrics here.")  # fmt: skip
    return option(command)


@contextmanager
def serve_health(address: tuple[str, int] | None, build_app: Callable[[], HealthApp]) -> Iterator[None]:
    """Serve probes and metrics while the block runs; nothing without an address."""
    if address is None:
        yield
        return
    host, port = address
    server = HealthServer(build_app, host=host, port=port)
    server.start()
    program_log.info("probes and metrics are served at http://%s:%d", host, server.port)
    try:
        yield
    finally:
        server.stop()


@contextmanager
def serve_app(
    address: tuple[str, int],
    build_app: Callable[[], Any],
    *,
    root_path: str = "",
    on_start: Callable[[str], None],
) -> Iterator[None]:
    """Serve an ASGI app in a thread of its own while the block runs: it answers while the relay's loop hangs.

    `on_start` gets the address.
    """
    from pillarbox.dashboard.serve import BackgroundServer

    host, port = address
    server = BackgroundServer(build_app, host=host, port=port, root_path=root_path)
    server.start()
    program_log.info("the dashboard, probes and metrics are served at %s", server.address)
    on_start(server.address)
    try:
        yield
    finally:
        server.stop()
