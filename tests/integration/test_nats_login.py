"""Who is let in by NATS, what they may do there, and what nobody gets to read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.nats import NatsTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.certificates import Authority
from tests.support.nats_keys import Key, credentials
from tests.support.nats_server import PrivateNats, private_nats

CANARY = "canary-4711"
DECLARED = {"stream": "S", "declare": True, "subject": "S.{topic}"}
USERS = f"""authorization {{ users = [
  {{ user: shop, password: "{CANARY}" }}
  {{ user: reader, password: p, permissions: {{ publish: {{ deny: "S.secret" }} }} }}
  {{ user: deaf, password: p, permissions: {{ subscribe: ["own.>"] }} }}
] }}"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateNats]:
    with closing(private_nats(USERS)) as server:
        yield server


@asynccontextmanager
async def opened(server: PrivateNats, *, login: str = "", **options: object) -> AsyncIterator[NatsTransport]:
    url = f"nats://{login}{'@' if login else ''}localhost:{server.port}"
    transport = transport_from_url(url, options={**DECLARED, "timeout": "5s", **options})
    assert isinstance(transport, NatsTransport)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def sent(server: PrivateNats, *, login: str = "", topic: str = "orders", **options: object) -> Outcome:
    async with opened(server, login=login, **options) as transport:
        (outcome,) = await transport.send([sample(topic=topic)])
        return outcome


async def refusal(server: PrivateNats, *, login: str = "", topic: str = "orders", **options: object) -> str:
    with pytest.raises(TransportUnavailable) as refused:
        await sent(server, login=login, topic=topic, **options)
    assert not refused.value.mid_send
    return str(refused.value)


# --- logins ---


async def test_a_user_and_a_password(server: PrivateNats) -> None:
    assert (await sent(server, login=f"shop:{CANARY}")).delivered
    assert (await sent(server, user="shop", password=CANARY)).delivered


async def test_a_wrong_password_is_an_outage_and_not_repeated(
    server: PrivateNats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = await refusal(server, login=f"shop:{CANARY}-wrong")
    assert "refuses the login" in text
    assert CANARY not in text
    assert CANARY not in caplog.text


async def test_no_login_is_an_outage(server: PrivateNats) -> None:
    assert "refuses the login" in await refusal(server)


async def test_a_token() -> None:
    with closing(private_nats(f'authorization {{ token: "{CANARY}" }}')) as server:
        assert (await sent(server, token=CANARY)).delivered
        assert (await sent(server, login=CANARY)).delivered
        assert CANARY not in await refusal(server, token=f"{CANARY}-wrong")


async def test_a_key() -> None:
    user, stranger = Key("user"), Key("user")
    with closing(private_nats(f"authorization {{ users = [ {{ nkey: {user.public} }} ] }}")) as server:
        assert (await sent(server, nkey=user.seed)).delivered
        text = await refusal(server, nkey=stranger.seed)
    assert "refuses the login" in text
    assert stranger.seed not in text


async def test_credentials(tmp_path: Path) -> None:
    operator, system, account, user = Key("operator"), Key("account"), Key("account"), Key("user")
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "imports": -1, "exports": -1, "wildcards": True}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    account_jwt = operator.jwt(account, limits={**limits, **storage})
    system_jwt = operator.jwt(system, limits=limits)
    user_jwt = account.jwt(user, subs=-1, data=-1, payload=-1)
    file = tmp_path / "user.creds"
    file.write_text(credentials(user, user_jwt))
    settings = (
        f"operator: {operator.jwt(operator)}",
        "resolver: MEMORY",
        f"system_account: {system.public}",
        f"resolver_preload: {{ {account.public}: {account_jwt}, {system.public}: {system_jwt} }}",
    )
    with closing(private_nats(*settings)) as server:
        assert (await sent(server, credentials=str(file))).delivered
        assert "refuses the login" in await refusal(server)


def test_the_seed_of_somebody_else_than_a_user() -> None:
    with pytest.raises(ConfigError, match="not the seed of a user"):
        transport_from_url("nats://a", options={"nkey": Key("account").seed})


def test_a_file_without_credentials(tmp_path: Path) -> None:
    file = tmp_path / "empty.creds"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="no user JWT"):
        transport_from_url("nats://a", options={"credentials": str(file)})


# --- permissions ---


async def test_a_subject_that_is_forbidden_blocks_its_address(server: PrivateNats) -> None:
    outcome = await sent(server, login="reader:p", topic="secret")
    assert (outcome.delivered, outcome.missing) == (False, True)
    assert "does not let this user publish to 'S.secret'" in (outcome.error or "")


async def test_the_doctor_sees_what_this_login_may_not_publish_and_reaches_nobody(server: PrivateNats) -> None:
    await sent(server, login=f"shop:{CANARY}")  # declares the stream
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    client = await nats.connect(server.url, user="shop", password=CANARY)
    before = (await client.jetstream().stream_info("S")).state.messages
    await client.subscribe("S.>", cb=hear)
    await client.flush()
    for login, denied in (("reader:p", ["S.secret"]), (f"shop:{CANARY}", [])):
        async with opened(server, login=login) as transport:
            findings = await transport.inspect(topics=["orders", "secret"])
            assert [one.what for one in findings if one.code == "nats.no-permission"] == [
                f"This login may not publish to {subject!r}." for subject in denied
            ]
            assert not [one for one in findings if one.code == "nats.permissions-unseen"]
            assert (await transport.send([sample()]))[0].delivered, "and the connection works on"
    await client.flush()
    assert heard == ["S.orders", "S.orders"], "the messages that were sent, and no probe"
    assert (await client.jetstream().stream_info("S")).state.messages == before + 2
    await client.close()


async def test_a_server_that_does_not_refuse_the_probe_is_told(
    server: PrivateNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.brokers.nats.transport._REFUSED_REPLY", "no.reserved.subject")
    async with opened(server, login=f"shop:{CANARY}") as transport:
        findings = await transport.inspect(topics=["orders"])
    assert "nats.permissions-unseen" in [one.code for one in findings]


async def test_no_subject_can_end_its_command(server: PrivateNats) -> None:
    async with opened(server, login="reader:p") as transport:
        findings = await transport.inspect(topics=["a 0\r\n\r\nPUB S.orders", "*", "secret"])
        assert [one.code for one in findings].count("nats.no-permission") == 1
        assert (await transport.send([sample()]))[0].delivered


async def test_a_subject_that_is_forbidden_hurts_no_other(server: PrivateNats) -> None:
    async with opened(server, login="reader:p") as transport:
        good, bad = await transport.send([sample(), sample(topic="secret")])
        assert good.delivered
        assert bad.missing
        assert (await transport.send([sample()]))[0].delivered


async def test_acknowledgements_that_cannot_be_heard_are_an_outage(server: PrivateNats) -> None:
    text = await refusal(server, login="deaf:p", declare=False)
    assert "listen for acknowledgements" in text
    assert "option inbox" in text
    await sent(server, login=f"shop:{CANARY}")
    assert (await sent(server, login="deaf:p", declare=False, inbox="own")).delivered


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def serving(authority: Authority, name: str, *, more: str = "") -> PrivateNats:
    file = authority.signed("broker", alternative=name)
    return private_nats(f'tls {{ cert_file: "{file}", key_file: "{file}", {more} }}')


async def test_a_certificate_is_checked(authority: Authority) -> None:
    with closing(serving(authority, "DNS:localhost")) as server:
        for tls in (True, False):  # encrypted in any case: this server demands it
            assert (await sent(server, tls=tls, ca=str(authority.file))).delivered
            assert "cannot be trusted" in await refusal(server, tls=tls)
        assert (await sent(server, tls=True, verify=False, insecure=True)).delivered


async def test_a_name_is_checked(authority: Authority) -> None:
    with closing(serving(authority, "DNS:elsewhere.test")) as server:
        text = await refusal(server, tls=True, ca=str(authority.file))
    assert "localhost" in text
    assert "cannot be trusted" in text


async def test_the_server_may_want_to_know_us(authority: Authority) -> None:
    own = authority.signed("relay", alternative="DNS:relay.test")
    with closing(serving(authority, "DNS:localhost", more=f'ca_file: "{authority.file}", verify: true')) as server:
        await refusal(server, tls=True, ca=str(authority.file))
        assert (await sent(server, tls=True, ca=str(authority.file), client_certificate=str(own))).delivered


async def test_a_login_is_not_sent_in_the_clear() -> None:
    """Anyone in between can say that there is no TLS."""
    heard, is_over = bytearray(), asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1000, "headers": true}\r\n')
        while chunk := await reader.read(1000):
            heard.extend(chunk)
            writer.write(b"PONG\r\n")
        writer.close()
        is_over.set()

    listening = await asyncio.start_server(impostor, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    transport = transport_from_url(f"nats://shop:{CANARY}@127.0.0.1:{port}?tls=true&timeout=5s")
    with pytest.raises(TransportUnavailable, match="secure connection"):
        await transport.open()
    await asyncio.wait_for(is_over.wait(), 30)
    listening.close()
    assert heard == b""
