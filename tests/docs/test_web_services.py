"""The service of docs/web-services.md runs: its program is served as it is printed, on a real database."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import asyncpg
import httpx
from fastapi import FastAPI, Request

from pillarbox.message import Names
from pillarbox.relay.relay import Relay
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.postgres_server import PostgresServer, scratch_database
from tests.support.processes import end_process
from tests.support.servers import found
from tests.support.web_server import WebServer

PAGE = (Path(__file__).parents[2] / "docs" / "web-services.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"^```python\n(# shop\.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PATIENCE = 60


class Hook:
    """A web server that stands for the broker of the page."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.came = asyncio.Event()
        app = FastAPI()

        @app.post("/")
        async def take(request: Request) -> None:
            self.bodies.append(await request.body())
            loop.call_soon_threadsafe(self.came.set)

        loop = asyncio.get_running_loop()
        self.server = WebServer(app)


async def test_the_service_of_the_page_delivers_what_a_request_publishes(tmp_path: Path) -> None:
    hook = Hook()
    await hook.server.start()
    with found(PostgresServer(), environ=os.environ) as server, scratch_database(server) as url:
        await open_schema(parse_store_url(url), names=Names()).install()
        connection = await asyncpg.connect(url)
        await connection.execute("create table orders (id bigint primary key)")
        program = (
            PROGRAM.replace(
                "postgresql+asyncpg://db.example/shop", url.replace("postgresql:", "postgresql+asyncpg:", 1)
            )
            .replace("postgresql://db.example/shop", url)
            .replace("amqp://broker.example", f"{hook.server.url}/?allow_private=true")
        )
        assert "example" not in program
        (tmp_path / "shop.py").write_text(program)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "uvicorn", "shop:app", "--port", "0", cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed = ""
        try:
            assert process.stdout is not None
            async with asyncio.timeout(PATIENCE):
                while "Uvicorn running on" not in printed:
                    line = await process.stdout.readline()
                    assert line, printed
                    printed += line.decode()
                (place,) = re.findall(r"running on (\S+)", printed)
                async with httpx.AsyncClient(timeout=PATIENCE) as client:
                    answer = await client.post(f"{place}/orders/7")
                assert answer.status_code == 200, answer.text
                await hook.came.wait()
            assert await connection.fetchval("select id from orders") == 7
        finally:
            await end_process(process)
            await connection.close()
            await hook.server.stop()
    assert hook.bodies == [b'{"order_id":7,"total":"90.00"}']
    assert "INFO      the relay from postgresql://" in printed


def test_the_lines_of_the_log_on_the_page_name_the_relay_of_its_program() -> None:
    relay = Relay("postgresql://db.example/shop", {"broker": "amqp://broker.example"})

    assert f"the {relay} runs as " in PAGE
    assert f"the {relay} does not start: SchemaMissing: The store has no Pillarbox tables; run " in PAGE
