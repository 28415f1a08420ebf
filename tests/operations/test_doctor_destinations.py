"""The doctor at destinations: reached or not, asked about their settings, and never waited for in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import pytest

from pillarbox.brokers.memory import MemoryTransport
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.transport import Transport
from pillarbox.errors import TransportUnavailable
from pillarbox.operations.doctor import TimeLimit, examine_destination
from tests.support.http_endpoint import Endpoint, free_port
from tests.support.operations.doctor import codes, diagnose, finding, severities

CRITICAL = Severity.CRITICAL
CANARY = "c4nary-s3cret"
SOON = timedelta(milliseconds=300)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    made.moves.set()
    await made.stop()


async def examined(transport: Transport, topics: Sequence[str] = (), *, within: timedelta) -> Sequence[Finding]:
    async def known() -> Sequence[str]:
        return topics

    return await examine_destination(lambda: transport, topics=known, limit=TimeLimit(within))


async def test_an_endpoint_that_answers_is_fine_and_gets_no_message(endpoint: Endpoint) -> None:
    report = await diagnose("memory://", {"hooks": f"{endpoint.url}?allow_private=true"})

    assert codes(report, "destination hooks") == []
    assert endpoint.arrivals == []


async def test_nobody_there_and_the_others_are_looked_at_all_the_same(endpoint: Endpoint) -> None:
    url = f"http://127.0.0.1:{await free_port()}/{CANARY}?allow_private=true&query.t={CANARY}"
    report = await diagnose("memory://", {"gone": url, "hooks": f"{endpoint.url}?allow_private=true"})

    assert severities(report, "destination gone") == {"destination.unreachable": CRITICAL}
    assert codes(report, "destination hooks") == []
    assert CANARY not in str(report)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"https://a.example/?nonsense={CANARY}", "destination.misconfigured"),
        (f"nonsense://{CANARY}", "destination.misconfigured"),
        (f"https://a.example/?secret=env:{CANARY}", "destination.misconfigured"),
    ],
)
async def test_what_a_relay_would_not_start_with(url: str, code: str) -> None:
    report = await diagnose("memory://", {"hooks": url})

    assert severities(report, "destination hooks") == {code: CRITICAL}
    assert "Destination hooks cannot be served" in finding(report, code).what


async def test_a_transport_asks_about_the_topics_that_the_store_knows() -> None:
    asked: list[Sequence[str]] = []

    class Curious(MemoryTransport):
        async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:
            asked.append(topics)
            return [Finding(code="x.y", severity=Severity.INFO, what="a", why="b", fix="c")]

    found = await examined(Curious(), ["orders", "returns"], within=timedelta(seconds=30))

    assert ([one.code for one in found], asked) == (["x.y"], [["orders", "returns"]])


async def test_a_memory_destination_forgets() -> None:
    assert severities(await diagnose("memory://"), "destination orders") == {"memory.forgets": Severity.WARNING}


# --- trouble in a transport ----------------------------------------------------------------------


async def forever() -> None:
    await asyncio.Event().wait()


async def stubborn() -> None:
    """Does not mind being cancelled, the first time."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


@pytest.mark.parametrize("hangs", [forever, stubborn])
@pytest.mark.parametrize("method", ["open", "ping", "inspect", "close"])
async def test_what_hangs_is_given_up(hangs: Callable[..., object], method: str) -> None:
    transport = MemoryTransport()
    setattr(transport, method, lambda **_: hangs())
    found = await examined(transport, within=SOON)

    told = {one.code: one for one in found}
    if method in ("open", "ping"):
        assert list(told) == ["destination.no-answer"]
        assert "within 0.3 s" in told["destination.no-answer"].what
    elif method == "inspect":
        assert told["destination.not-inspected"].severity is Severity.WARNING
    else:
        assert list(told) == ["memory.forgets"]


@pytest.mark.parametrize("error", [TransportUnavailable("it went away"), ValueError("of a stranger")])
@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("open", "destination.unreachable"),
        ("ping", "destination.unreachable"),
        ("inspect", "destination.not-inspected"),
    ],
)
async def test_what_fails_is_told_whatever_it_is(method: str, code: str, error: Exception) -> None:
    async def fail(**_: object) -> None:
        raise error

    transport = MemoryTransport()
    setattr(transport, method, fail)
    (found,) = await examined(transport, within=timedelta(seconds=30))

    assert found.code == code
    assert str(error) in found.what


async def test_everything_is_looked_at_at_once() -> None:
    """An endpoint that answers nobody before all three have asked."""
    met = asyncio.Barrier(3)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await met.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?allow_private=true&timeout=50s"
    report = await diagnose("memory://", dict.fromkeys("abc", url), within=timedelta(seconds=60))
    server.close()

    assert [codes(report, f"destination {name}") for name in "abc"] == [[], [], []]
