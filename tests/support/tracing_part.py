"""One of three programs that a trace goes through: `python -m tests.support.tracing_part NAME FOLDER [PORT]`.

Each writes the spans that its own SDK records to FOLDER/NAME.jsonl.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from pillarbox import Outbox
from pillarbox.brokers.http import HttpReceiver
from pillarbox.cli import main
from pillarbox.consumer import Consumer
from pillarbox.events import Types
from pillarbox.operations.opentelemetry import TracingConsumerTelemetry, publishing_span
from tests.support.web_server import WebServer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

TYPES = Types()


@TYPES.event("orders.placed", key="order_id")
@dataclass
class OrderPlaced:
    order_id: str


@TYPES.event("orders.billed", key="order_id")
@dataclass
class OrderBilled:
    order_id: str


def outbox(source: str) -> Outbox:
    return Outbox(routes="billing", source=source, types=TYPES, spans=publishing_span)


def publish(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        outbox("/shop").publish(connection, OrderPlaced("1"))


def relay(folder: Path, port: str) -> None:
    url = f"billing=http://127.0.0.1:{port}/?allow_private=true"
    sys.argv = ["pillarbox", "relay", "--store", f"sqlite:///{folder / 'shop.db'}", "--to", url, "--once"]
    main()


async def consume(folder: Path) -> None:
    """Tells its port, and handles until it is stopped."""
    receiver = HttpReceiver()
    consumer = Consumer(
        "billing", receiver=receiver, database=folder / "billing.db", types=TYPES, telemetry=TracingConsumerTelemetry()
    )

    @consumer.on(OrderPlaced)
    def bill(event: OrderPlaced, tx: sqlite3.Connection) -> None:
        outbox("/billing").publish(tx, OrderBilled(event.order_id))

    server, stopped = WebServer(receiver.app), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await server.start()
    async with consumer:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await stopped.wait()
    await server.stop()


def _on_one_line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"


def _run(part: str, folder: Path, *rest: str) -> None:
    with open(folder / f"{part}.jsonl", "a") as out:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=_on_one_line)))
        trace.set_tracer_provider(provider)
        match part:
            case "publish":
                publish(folder)
            case "relay":
                relay(folder, *rest)
            case "consume":
                asyncio.run(consume(folder))


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
