"""Webhooks against real servers: what is sent, what is made of the answer, and where nothing is ever sent."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
import standardwebhooks
from aiohttp import web

from pillarbox.brokers.http import HttpSettings, HttpTransport
from pillarbox.brokers.http.addresses import Lookup, system_lookup
from pillarbox.clock import FrozenClock
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import Secret
from pillarbox.testing.samples import sample
from tests.support.http_endpoint import Endpoint, free_port, raw_endpoint

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CANARY = "canary-0123456789-canary-0123456789"


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.start()
    yield endpoint
    await endpoint.stop()


@asynccontextmanager
async def opened(settings: HttpSettings, *, lookup: Lookup = system_lookup) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(settings, lookup=lookup)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def unasked(settings: HttpSettings, *, lookup: Lookup = system_lookup) -> AsyncIterator[HttpTransport]:
    """Opened without a ping, for servers that would not answer it."""
    transport = HttpTransport(settings, lookup=lookup)
    await transport._connection.open()
    try:
        yield transport
    finally:
        await transport.close()


def private(url: str, *, timeout: timedelta = timedelta(seconds=15)) -> HttpSettings:
    return HttpSettings(url=url, allow_private=True, timeout=timeout)


async def sent(transport: HttpTransport) -> Outcome:
    (outcome,) = await transport.send([sample()])
    return outcome


async def unavailable(transport: HttpTransport) -> TransportUnavailable:
    with pytest.raises(TransportUnavailable) as away:
        await transport.send([sample()])
    return away.value


# --- what is sent ------------------------------------------------------------------------------------


async def test_the_request(endpoint: Endpoint) -> None:
    settings = HttpSettings(
        url=f"{endpoint.url}/a%2Fb",
        allow_private=True,
        method="PUT",
        headers={"authorization": Secret("Bearer x")},
        query={"tenant": Secret("a&b=c d"), "n": Secret("1")},
    )
    async with opened(settings) as transport:
        assert await sent(transport) == Outcome(delivered=True)
    (arrival,) = endpoint.taken
    assert (arrival.method, arrival.path) == ("PUT", "/hooks/a%2Fb?tenant=a%26b%3Dc%20d&n=1")
    assert arrival.headers["authorization"] == "Bearer x"
    assert arrival.headers["user-agent"].startswith("pillarbox/")
    assert arrival.headers["content-length"] == str(len(arrival.body))
    assert "cookie" not in arrival.headers


async def test_a_url_without_a_path(endpoint: Endpoint) -> None:
    async with opened(private(f"http://127.0.0.1:{endpoint.port}")) as transport:
        assert await sent(transport) == Outcome(delivered=True)
    assert endpoint.taken[0].path == "/"


async def test_the_official_package_verifies_what_arrives(endpoint: Endpoint) -> None:
    """For both secrets, while they are being changed."""
    other = "whsec_" + "QUJD" * 8
    settings = HttpSettings(url=endpoint.url, allow_private=True, secret=(Secret(other), Secret(SECRET)))
    async with opened(settings) as transport:
        await sent(transport)
    (arrival,) = endpoint.taken
    for secret in (SECRET, other):
        standardwebhooks.Webhook(secret).verify(arrival.body, arrival.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify(arrival.body + b" ", arrival.headers)


async def test_each_attempt_is_stamped_by_the_clock(endpoint: Endpoint) -> None:
    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    settings = HttpSettings(url=endpoint.url, allow_private=True, secret=(Secret(SECRET),))
    transport = HttpTransport(settings, clock=clock)
    await transport.open()
    message = sample()
    await transport.send([message])
    clock.advance(timedelta(seconds=60))
    await transport.send([message])
    await transport.close()
    first, second = (arrival.headers for arrival in endpoint.taken)
    assert (first["webhook-timestamp"], second["webhook-timestamp"]) == ("1767225600", "1767225660")
    assert first["webhook-id"] == second["webhook-id"] == str(message.message_id)
    assert first["webhook-signature"] != second["webhook-signature"]


async def test_a_body_of_several_megabytes(endpoint: Endpoint) -> None:
    payload = bytes(range(256)) * 12_000
    async with opened(private(endpoint.url)) as transport:
        assert await transport.send([sample(payload=payload, content_type="image/png")]) == [Outcome(delivered=True)]
    assert endpoint.taken[0].body == payload


async def test_connections_are_used_again(endpoint: Endpoint) -> None:
    async with opened(private(endpoint.url)) as transport:
        for _ in range(10):
            await sent(transport)
    assert len(endpoint.peers) == 1


async def test_no_more_at_once_than_allowed(endpoint: Endpoint) -> None:
    """Nobody is answered until the first has timed out: whoever may come has come by then."""
    endpoint.moves.clear()
    settings = HttpSettings(url=endpoint.url, allow_private=True, concurrency=3, timeout=timedelta(seconds=1))
    async with opened(settings) as transport:
        sending = [asyncio.create_task(sent(transport)) for _ in range(12)]
        await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        assert len(endpoint.arrivals) <= 3
        endpoint.moves.set()
        await asyncio.gather(*sending)
    assert len(endpoint.arrivals) == 12


async def test_waiting_for_a_turn_is_no_timeout(endpoint: Endpoint) -> None:
    """The second waits as long as the first takes to time out, and then has all its own time."""
    endpoint.moves.clear()
    settings = HttpSettings(url=endpoint.url, allow_private=True, concurrency=1, timeout=timedelta(seconds=1))
    async with opened(settings) as transport:
        first, second = asyncio.create_task(sent(transport)), asyncio.create_task(sent(transport))
        assert not (await first).delivered
        endpoint.moves.set()
        assert await second == Outcome(delivered=True)


async def test_a_header_that_cannot_be_sent_rejects_the_message_and_nothing_is_sent(endpoint: Endpoint) -> None:
    async with opened(private(endpoint.url)) as transport:
        (outcome,) = await transport.send([sample(headers={"a": "b\r\nx-injected: 1"})])
    assert (outcome.delivered, outcome.rejected) == (False, True)
    assert endpoint.arrivals == []


async def test_proxies_and_logins_of_the_environment_are_not_used(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{await free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    async with opened(private(endpoint.url)) as transport:
        assert await sent(transport) == Outcome(delivered=True)


# --- what is made of the answer ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_delivered(endpoint: Endpoint, status: int) -> None:
    endpoint.answers.append(web.Response(status=status))
    async with opened(private(endpoint.url)) as transport:
        assert await sent(transport) == Outcome(delivered=True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(endpoint: Endpoint, status: int) -> None:
    endpoint.answers.append(web.Response(status=status, headers={"location": f"{endpoint.url}/elsewhere"}))
    async with opened(private(endpoint.url)) as transport:
        outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, False)
    assert len(endpoint.arrivals) == 1


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
async def test_a_failure_honours_retry_after(endpoint: Endpoint, status: int) -> None:
    endpoint.answers.append(web.Response(status=status, headers={"retry-after": "17"}))
    async with opened(private(endpoint.url)) as transport:
        outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected, outcome.retry_after) == (False, False, timedelta(seconds=17))


@pytest.mark.parametrize("status", [400, 413, 415, 422, 431])
async def test_the_message_s_own_fault(endpoint: Endpoint, status: int) -> None:
    endpoint.answers.append(web.Response(status=status))
    async with opened(private(endpoint.url)) as transport:
        outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, True)


async def test_the_health_path_decides_whether_a_ping_succeeds(endpoint: Endpoint) -> None:
    settings = HttpSettings(url=endpoint.url, allow_private=True, health="/health?deep=1")
    async with opened(settings) as transport:
        assert [(one.method, one.path) for one in endpoint.arrivals] == [("GET", "/health?deep=1")]
        endpoint.answers.append(web.Response(status=500))
        with pytest.raises(TransportUnavailable, match="500 at its health path"):
            await transport.ping()
        assert await sent(transport) == Outcome(delivered=True)
    assert endpoint.arrivals[-1].path == "/hooks"


async def test_what_is_asked_for_later_costs_no_attempt(endpoint: Endpoint) -> None:
    endpoint.answers += [web.Response(status=429), web.Response(status=503, headers={"retry-after": "5"})]
    async with opened(private(endpoint.url)) as transport:
        outcomes = [await sent(transport), await sent(transport)]
    assert [(one.not_now, one.retry_after) for one in outcomes] == [(True, None), (True, timedelta(seconds=5))]


@pytest.mark.parametrize("status", [401, 403, 405, 410])
async def test_the_endpoint_s_fault_is_an_answer_that_spends_nothing(endpoint: Endpoint, status: int) -> None:
    endpoint.answers.append(web.Response(status=status))
    async with opened(private(endpoint.url)) as transport:
        outcome = await sent(transport)
        assert await sent(transport) == Outcome(delivered=True)
    assert (outcome.delivered, outcome.not_now, outcome.rejected, outcome.unanswered) == (False, True, False, False)
    assert str(status) in (outcome.error or "")


async def test_secrets_that_an_endpoint_echoes_are_hidden(endpoint: Endpoint) -> None:
    settings = HttpSettings(
        url=endpoint.url,
        allow_private=True,
        secret=(Secret(SECRET), Secret("raw-9f8e7d6c5b4a39281706")),
        headers={"x-auth": Secret("Custom 5e4d3c2b1a0f"), "x-key": Secret("0a1b2c3d4e")},
        query={"key": Secret("77&66/55")},
    )
    secrets = (SECRET, SECRET.removeprefix("whsec_"), "raw-9f8e7d6c5b4a39281706", "5e4d3c2b1a0f", "0a1b2c3d4e",
               "77&66/55", "77%2666%2F55")  # fmt: skip
    echo = " ".join(secrets)
    async with opened(settings) as transport:
        for status in (400, 500):
            endpoint.answers.append(web.Response(status=status, text=echo))
            outcome = await sent(transport)
            assert not [secret for secret in secrets if secret in repr(outcome)]
        endpoint.answers.append(web.Response(status=401, text=echo))
        refused = repr(await sent(transport))
        assert not [secret for secret in secrets if secret in refused]


async def test_the_path_is_in_no_error(endpoint: Endpoint) -> None:
    async with opened(private(f"{endpoint.url}/{CANARY}")) as transport:
        endpoint.answers.append(web.Response(status=500))
        assert CANARY not in repr(await sent(transport))
        await endpoint.stop()
        assert CANARY not in str(await unavailable(transport))


async def test_an_endless_answer_is_not_read(endpoint: Endpoint) -> None:
    """The connection is given up, and the status counts."""

    async def endless(_reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()

    async with raw_endpoint(endless) as url, unasked(private(url)) as transport:
        outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, False)
    assert "500" in str(outcome.error)
    assert len(repr(outcome)) < 5_000


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = zlib.compress(CANARY.encode() + b"\x00" * 50_000_000)

    async def packed(_reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 500 No\r\ncontent-encoding: deflate\r\ncontent-length: %d\r\n\r\n" % len(bomb) + bomb)
        await writer.drain()

    async with raw_endpoint(packed) as url, unasked(private(url)) as transport:
        outcome = await sent(transport)
    assert "500" in str(outcome.error)
    assert CANARY not in repr(outcome)


# --- an idle connection ---


class Sleepy:
    """Answers the first request of a connection, and closes it when the next one comes."""

    def __init__(self, *, answers: int = 1000) -> None:
        self.connections = 0
        self.requests = 0
        self._answers = answers

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        self.requests += 1
        if self.connections > self._answers:
            return
        await self._read_body(reader)
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1

    async def _read_body(self, reader: Reader) -> None:
        await reader.readexactly(len(sample().payload))


async def test_an_idle_connection_that_the_server_closes_is_no_outage() -> None:
    server = Sleepy()
    async with raw_endpoint(server) as url, unasked(private(url)) as transport:
        assert await sent(transport) == Outcome(delivered=True)
        assert await sent(transport) == Outcome(delivered=True)
    assert (server.connections, server.requests) == (2, 3)


async def test_a_new_connection_that_the_server_closes_is_an_outage() -> None:
    server = Sleepy(answers=1)
    async with raw_endpoint(server) as url, unasked(private(url)) as transport:
        assert await sent(transport) == Outcome(delivered=True)
        away = await unavailable(transport)
    assert away.mid_send
    assert (server.connections, server.requests) == (2, 3)


# --- no answer ---------------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    async with unasked(private(f"http://127.0.0.1:{await free_port()}/x")) as transport:
        away = await unavailable(transport)
    assert not away.mid_send
    assert "cannot be reached" in str(away)


async def test_a_name_that_is_unknown() -> None:
    async def unknown(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with unasked(HttpSettings(url="https://shop.test/x"), lookup=unknown) as transport:
        away = await unavailable(transport)
    assert not away.mid_send
    assert "Name or service not known" in str(away)


@pytest.mark.parametrize("addresses", [[], None])
async def test_a_name_without_an_address_or_without_an_answer(addresses: list[str] | None) -> None:
    async def lookup(_host: str, _port: int) -> Sequence[str]:
        if addresses is None:
            await asyncio.Event().wait()
        return addresses or []

    settings = HttpSettings(url="https://shop.test/x", timeout=timedelta(seconds=0.3))
    async with unasked(settings, lookup=lookup) as transport:
        assert not (await unavailable(transport)).mid_send


async def _reset(writer: Writer) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _resets(_reader: Reader, writer: Writer) -> None:
    await _reset(writer)


async def _hangs_up(_reader: Reader, _writer: Writer) -> None:
    return


async def _resets_in_the_status_line(_reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 20")
    await writer.drain()
    await _reset(writer)


async def _resets_in_the_body(_reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()
    await asyncio.sleep(0.05)  # so that the half arrives before the reset drops it
    await _reset(writer)


async def _hangs_up_in_the_body(_reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()


@pytest.mark.parametrize(
    "handle", [_resets, _hangs_up, _resets_in_the_status_line, _resets_in_the_body, _hangs_up_in_the_body]
)
async def test_a_connection_that_breaks_under_way(handle: Callable[[Reader, Writer], Awaitable[None]]) -> None:
    """Also behind a 200: an answer that is not complete is none."""
    async with raw_endpoint(handle) as url, unasked(private(url)) as transport:
        away = await unavailable(transport)
    assert away.mid_send
    assert "broke" in str(away)


async def _says_nothing(reader: Reader, _writer: Writer) -> None:
    await reader.read()


async def _says_half(reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()
    await reader.read()


async def _drips(_reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("handle", [_says_nothing, _says_half, _drips])
async def test_a_timeout_is_not_delivered(handle: Callable[[Reader, Writer], Awaitable[None]]) -> None:
    settings_ = timedelta(seconds=0.4)
    async with raw_endpoint(handle) as url, unasked(private(url, timeout=settings_)) as transport:
        outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, False)
    assert "did not answer within 0.4 s" in str(outcome.error)


@pytest.mark.parametrize(
    "garbage",
    [b"SSH-2.0-OpenSSH_9\r\n\r\n", b"\x00\x01\x02\x03\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n",
     b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
     b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a chunk\r\n"],
    ids=["ssh", "binary", "no-status", "version", "status", "long-header", "chunks"],
)  # fmt: skip
async def test_garbage_is_never_delivered(garbage: bytes) -> None:
    async def says(_reader: Reader, writer: Writer) -> None:
        writer.write(garbage)
        await writer.drain()

    async with raw_endpoint(says) as url, unasked(private(url)) as transport:
        outcome = await sent(transport)
    assert (outcome.delivered, outcome.rejected) == (False, False)
    assert outcome.error is not None
    assert "is not HTTP" in outcome.error
    assert outcome.error.isprintable()


async def test_a_server_that_accepts_no_connection_is_away() -> None:
    """Its queue of new connections is full, so that connecting takes forever."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        async with unasked(private(f"http://127.0.0.1:{port}/x", timeout=timedelta(seconds=0.9))) as transport:
            away = await unavailable(transport)
        for one in waiting:
            one.close()
    assert not away.mid_send


# --- ping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 204, 302, 401, 404, 405, 500, 501])
async def test_whoever_answers_a_ping_is_there(status: int) -> None:
    async def answers(_reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()

    async with raw_endpoint(answers) as url, opened(private(url)) as transport:
        await transport.ping()


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_gateway_that_has_nobody_behind_it_is_away(status: int) -> None:
    async def answers(_reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 %d x\r\nretry-after: 5\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()

    async with raw_endpoint(answers) as url:
        transport = HttpTransport(private(url))
        with pytest.raises(TransportUnavailable) as away:
            await transport.open()
    assert away.value.retry_after == timedelta(seconds=5)


async def test_a_ping_that_is_not_answered_is_an_outage() -> None:
    async with raw_endpoint(_says_nothing) as url:
        transport = HttpTransport(private(url, timeout=timedelta(seconds=0.3)))
        with pytest.raises(TransportUnavailable):
            await transport.open()


# --- where nothing is sent ---------------------------------------------------------------------------


def leads_to(*answers: Sequence[str]) -> Lookup:
    """A name that leads somewhere else each time it is asked for, and in the end stays."""
    left = list(answers)

    async def lookup(_host: str, _port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return lookup


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::ffff:127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"], ["169.254.169.254"]],
)
async def test_a_name_that_leads_inside_is_not_connected_to(endpoint: Endpoint, addresses: list[str]) -> None:
    settings = HttpSettings(url=f"http://shop.test:{endpoint.port}/hooks", insecure=True)
    async with unasked(settings, lookup=leads_to(addresses)) as transport:
        away = await unavailable(transport)
        with pytest.raises(TransportUnavailable):
            await transport.ping()
    assert not away.mid_send
    assert "must not be connected to" in str(away)
    assert endpoint.peers == set()


async def test_localhost_is_not_connected_to(endpoint: Endpoint) -> None:
    settings = HttpSettings(url=f"http://localhost:{endpoint.port}/hooks", insecure=True)
    async with unasked(settings) as transport:
        assert "a loopback address" in str(await unavailable(transport))
    assert endpoint.peers == set()


async def test_the_address_that_was_checked_is_the_one_connected_to(endpoint: Endpoint) -> None:
    """The name exists nowhere but here, so whoever asked a second time would find nothing."""
    asked: list[str] = []

    async def lookup(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    settings = private(f"http://shop.test:{endpoint.port}/hooks")
    async with opened(settings, lookup=lookup) as transport:
        assert await sent(transport) == Outcome(delivered=True)
    assert asked == ["shop.test"]
    assert endpoint.taken[0].headers["host"] == f"shop.test:{endpoint.port}"


async def test_a_name_is_checked_again_for_every_connection(endpoint: Endpoint) -> None:
    """It led to an allowed address first, and then inside, to one that is never allowed."""
    lookup = leads_to(["127.0.0.1"], ["169.254.169.254"])
    async with opened(private(f"http://shop.test:{endpoint.port}/hooks"), lookup=lookup) as transport:
        assert await sent(transport) == Outcome(delivered=True)
        endpoint.cuts = 1  # so that the message goes again, over a new connection
        assert "a link-local address" in str(await unavailable(transport))
    assert len(endpoint.taken) == 1
