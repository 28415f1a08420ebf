"""One trace through three programs: the one that publishes, `pillarbox relay`, and the one that consumes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from pillarbox.message import Names
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.cli.program import environment
from tests.support.processes import end_process

PATIENCE: Final = 90.0
ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    for name in ("shop", "billing"):
        await open_schema(parse_store_url(f"sqlite:///{tmp_path / name}.db"), names=Names()).install()
    return tmp_path


@asynccontextmanager
async def part(name: str, folder: Path, *rest: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.tracing_part", name, str(folder), *rest,
        cwd=ROOT, env=environment({}), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            yield process
    finally:
        await end_process(process)


async def run(name: str, folder: Path, *rest: str) -> int:
    async with part(name, folder, *rest) as process:
        return await process.wait()


def spans(folder: Path) -> dict[str, dict[str, Any]]:
    """By name, with the program that recorded each."""
    found = {}
    for name in ("publish", "relay", "consume"):
        for line in (folder / f"{name}.jsonl").read_text().splitlines():
            span = json.loads(line)
            found[span["name"]] = span | {"program": name}
    return found


@pytest.mark.timeout(300)
async def test_a_trace_goes_through_three_programs(folder: Path) -> None:
    assert await run("publish", folder) == 0
    async with part("consume", folder) as consumer:
        assert consumer.stdout is not None
        port = (await consumer.stdout.readline()).decode().strip()
        while await run("relay", folder, port) != 0:
            pass  # it says 1 while the consumer does not take anything yet
        consumer.send_signal(signal.SIGTERM)
        assert await consumer.wait() == 0
    found = spans(folder)
    published, delivered = found["publish OrderPlaced"], found["deliver billing"]
    handled, emitted = found["process orders.placed"], found["publish OrderBilled"]
    steps = (published, delivered, handled, emitted)
    assert [step["program"] for step in steps] == ["publish", "relay", "consume", "consume"]
    assert [step["kind"].removeprefix("SpanKind.") for step in steps] == ["PRODUCER", "CLIENT", "CONSUMER", "PRODUCER"]
    assert {step["context"]["trace_id"] for step in steps} == {published["context"]["trace_id"]}
    origin = published["context"]["span_id"]
    assert [step["parent_id"] for step in steps] == [None, origin, origin, handled["context"]["span_id"]]
    assert [[link["context"]["span_id"] for link in step["links"]] for step in steps] == [[], [origin], [origin], []]
    assert delivered["attributes"]["messaging.message.id"] == handled["attributes"]["messaging.message.id"]
