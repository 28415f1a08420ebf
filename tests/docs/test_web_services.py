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
from pillarbox.stores.factory import open_schema
from pillarbox.stores.urls import parse_store_url
from tests.support.postgres_server import PostgresServer, scratch_database
from tests.support.processes import end_process
from tests.support.servers import found
from tests.support.web_server import WebServer

PAGE = (Path(__file__).parents[2] / "docs" / "web-services.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"^```python\n(# shop\.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RUNS, WITHOUT_TABLES = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
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


def write_program(folder: Path, *, url: str, broker: str) -> None:
    program = (
        PROGRAM.replace("postgresql+asyncpg://db.example/shop", url.replace("postgresql:", "postgresql+asyncpg:", 1))
        .replace("postgresql://db.example/shop", url)
        .replace("amqp://broker.example", broker)
    )
    assert "example" not in program
    (folder / "shop.py").write_text(program)


async def start_service(folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "shop:app", "--port", "0", cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


def mask(printed: str, *, url: str) -> list[str]:
    """Write the lines of a service as the page has them, with its store and without its random id."""
    text = printed.replace(str(parse_store_url(url)), "postgresql://db.example/shop")
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text).splitlines()


async def test_the_service_of_the_page_delivers_what_a_request_publishes(tmp_path: Path) -> None:
    hook = Hook()
    await hook.server.start()
    with found(PostgresServer(), environ=os.environ) as server, scratch_database(server) as url:
        await open_schema(parse_store_url(url), names=Names()).install()
        connection = await asyncpg.connect(url)
        await connection.execute("create table orders (id bigint primary key)")
        write_program(tmp_path, url=url, broker=f"{hook.server.url}/?allow_private=true")
        process = await start_service(tmp_path)
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
    shown = mask(RUNS, url=url)
    seen = [line for line in mask(printed, url=url) if line in shown]
    assert seen == shown, printed


async def test_without_tables_the_service_ends_with_the_line_of_the_page(tmp_path: Path) -> None:
    with found(PostgresServer(), environ=os.environ) as server, scratch_database(server) as url:
        write_program(tmp_path, url=url, broker="memory:")
        process = await start_service(tmp_path)
        try:
            async with asyncio.timeout(PATIENCE):
                printed, _ = await process.communicate()
        finally:
            await end_process(process)
    lines = mask(printed.decode(), url=url)
    (shown,) = WITHOUT_TABLES.splitlines()
    assert shown in lines, printed.decode()
    assert process.returncode
