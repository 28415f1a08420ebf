"""`pillarbox consume`: the first program of the page on consumers, over Redis, with its probes and metrics."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from pillarbox.brokers import transport_from_url
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.cli.program import PROGRAM, environment, pillarbox
from tests.support.redis_server import RedisServer
from tests.support.servers import found

PAGE: Final = (Path(__file__).parents[2] / "docs" / "consumers.md").read_text("utf-8")
URL: Final = "redis://127.0.0.1:6379?stream=orders&group=billing&declare=true"
PATIENCE: Final = 100.0


class Running:
    """The program of the page while it runs, and what it serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = int(self.until(lambda: re.findall(r"served at http://127.0.0.1:(\d+)", "".join(self.log)))[0])

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def until(self, ask: Callable[[], list[str]]) -> list[str]:
        ends = time.monotonic() + PATIENCE
        while not (found := ask()):
            assert time.monotonic() < ends, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.05)
        return found

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def becomes(self, path: str, code: int) -> str:
        return self.until(lambda: [body for status, body in [self.get(path)] if status == code])[0]

    def counts(self, line: str) -> None:
        self.until(lambda: [one for one in self.get("/metrics")[1].splitlines() if one == line])


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    with found(RedisServer(), environ=os.environ) as url:
        place = urlsplit(url)
        async with FaultProxy(place.hostname or "127.0.0.1", place.port or 6379) as proxy:
            yield proxy


@contextmanager
def run_the_page(folder: Path, url: str) -> Iterator[Running]:
    (program,) = re.findall(r"```python\n(# billing\.py\n.*?)```", PAGE, re.DOTALL)
    assert URL in program
    (folder / "billing.py").write_text(program.replace(URL, url))
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    install, consume = (line.split()[1:] for line in commands.splitlines())
    assert pillarbox(*install, cwd=folder).code == 0
    with subprocess.Popen(
        [PROGRAM, *consume, "--http", "127.0.0.1:0"], cwd=folder, stderr=subprocess.PIPE, text=True, env=environment({})
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


async def test_it_handles_once_and_serves_probes_and_metrics(tmp_path: Path, proxy: FaultProxy) -> None:
    stream = f"orders-{uuid4().hex[:8]}"
    server = f"redis://{proxy.host}:{proxy.port}"
    transport = transport_from_url(f"{server}?key={stream}")
    await transport.open()
    order = sample(type="orders.placed", topic="orders", payload=b'{"order_id":1,"total":"5.00"}')
    await transport.send([order])
    with run_the_page(tmp_path, f"{server}?stream={stream}&group=billing&declare=true") as running:
        await asyncio.to_thread(running.becomes, "/readyz", 200)
        await asyncio.to_thread(running.becomes, "/livez", 200)
        await asyncio.to_thread(running.counts, 'inbox_handled_total{consumer="billing"} 1.0')
        await transport.send([order])
        await asyncio.to_thread(running.counts, 'inbox_duplicates_total{consumer="billing"} 1.0')
        await transport.close()
        await proxy.down()
        body = await asyncio.to_thread(running.becomes, "/readyz", 503)
        assert json.loads(body)["reasons"][0].startswith("the broker ")
        await asyncio.to_thread(running.becomes, "/livez", 200)
        await proxy.up()
        await asyncio.to_thread(running.becomes, "/readyz", 200)
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.process.wait, PATIENCE) == 0


async def test_a_database_that_is_away_makes_it_unready_and_does_not_end_it(tmp_path: Path, proxy: FaultProxy) -> None:
    stream = f"orders-{uuid4().hex[:8]}"
    with run_the_page(
        tmp_path, f"redis://{proxy.host}:{proxy.port}?stream={stream}&group=billing&declare=true"
    ) as running:
        await asyncio.to_thread(running.becomes, "/readyz", 200)
        (tmp_path / "billing.db").rename(tmp_path / "gone.db")
        (tmp_path / "billing.db").mkdir()
        body = await asyncio.to_thread(running.becomes, "/readyz", 503)
        assert json.loads(body)["reasons"][0].startswith("the database cannot be reached")
        await asyncio.to_thread(running.becomes, "/livez", 200)
        (tmp_path / "billing.db").rmdir()
        (tmp_path / "gone.db").rename(tmp_path / "billing.db")
        await asyncio.to_thread(running.becomes, "/readyz", 200)
