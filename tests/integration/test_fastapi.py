"""The HTTP receiver mounted in a real FastAPI service under uvicorn, a process of its own: sent, killed, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx
import pytest

from pillarbox.brokers.http import HttpSettings, HttpTransport, signing
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.samples import sample
from tests.support.fastapi_service import SECRET, service
from tests.support.processes import end_process
from tests.support.writers.places import SqlitePlace

PATIENCE: Final = 60.0


@pytest.fixture
def place(tmp_sqlite: Path) -> SqlitePlace:
    place = SqlitePlace(tmp_sqlite)
    place.install()
    return place


class Service:
    """The process, and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def send(self, message: Message) -> Outcome:
        """As a relay does: signed."""
        settings = HttpSettings(
            url=f"{self.url}/hooks/orders",
            secret=(Secret(SECRET),),
            allow_private=True,
            timeout=timedelta(seconds=PATIENCE),
        )
        transport = HttpTransport(settings)
        await transport.open()
        try:
            (outcome,) = await transport.send([message])
            return outcome
        finally:
            await transport.close()

    async def orders(self) -> list[str]:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            found: list[str] = (await client.get(f"{self.url}/orders")).json()
            return found

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def running(place: SqlitePlace, *, dies: str = "never") -> AsyncIterator[Service]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.fastapi_service", str(place.path), dies, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            port = int(await process.stdout.readline())
        yield Service(process, port)
    finally:
        await end_process(process)


def order(note: str) -> Message:
    return sample(payload=b'{"note": "%s"}' % note.encode(), key=note)


async def test_a_relay_s_message_is_handled_once_and_answered_then(place: SqlitePlace) -> None:
    message = order("a")
    async with running(place) as service:
        assert await served(service, message)
        assert await service.send(message) == Outcome(delivered=True)
        assert await service.orders() == ["a"]
        service.process.send_signal(signal.SIGTERM)
        await service.ended()
    (row,) = place.query("select status, duplicates from pillarbox_inbox")
    assert (row["status"], row["duplicates"]) == ("done", 1)


async def served(service: Service, message: Message) -> bool:
    """Whether it gets delivered, through the time that the service needs to start."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(TransportUnavailable):
                if (await service.send(message)).delivered:
                    return True
            await asyncio.sleep(0.1)


async def test_what_is_not_signed_reaches_no_handler(place: SqlitePlace) -> None:
    async with running(place) as service:
        assert await served(service, order("a"))
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            answer = await client.post(f"{service.url}/hooks/orders", json={"note": "forged"})
        assert answer.status_code == 401
        assert await service.orders() == ["a"]


async def test_a_service_that_is_killed_in_its_handler_bills_once(place: SqlitePlace) -> None:
    message = order("a")
    async with running(place, dies="in the handler") as service:
        sending = asyncio.create_task(served(service, message))
        assert await service.ended() == -signal.SIGKILL
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert place.query("select note from orders") == []
    async with running(place) as service:
        assert await served(service, message)
        assert await service.orders() == ["a"]


async def test_a_service_that_is_stopped_finishes_what_it_handles(place: SqlitePlace) -> None:
    async with running(place, dies="slowly") as service:
        sending = asyncio.create_task(served(service, order("a")))
        async with asyncio.timeout(PATIENCE):
            while not place.path.with_suffix(".handling").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        service.process.send_signal(signal.SIGTERM)
        assert await sending
        await service.ended()
    assert [row["note"] for row in place.query("select note from orders")] == ["a"]


async def test_the_consumer_runs_as_long_as_the_app(place: SqlitePlace) -> None:
    """Before and after, senders are told to come again: nobody is there to handle."""
    app = service(place.path)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://shop.example") as client:
        assert (await posted(client)).status_code == 503
        async with app.router.lifespan_context(app), asyncio.timeout(PATIENCE):
            while (answer := await posted(client)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert answer.status_code == 204
        assert (await posted(client)).status_code == 503
    assert [row["note"] for row in place.query("select note from orders")] == ["a"]


async def posted(client: httpx.AsyncClient) -> httpx.Response:
    body, now = b'{"note": "a"}', datetime.now(UTC)
    key = signing.signing_key(SECRET)
    headers = {
        signing.ID: "m-1",
        signing.TIMESTAMP: str(int(now.timestamp())),
        signing.SIGNATURE: signing.sign([key], message_id="m-1", at=now, body=body),
        "content-type": "application/json",
    }
    return await client.post("/hooks/orders", content=body, headers=headers, timeout=PATIENCE)
