"""Who is let in by Redis, what they may do there, and what nobody gets to read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.certificates import Authority
from tests.support.redis_server import PrivateRedis, RedisServer, private_redis
from tests.support.servers import ServerMissing, missing

CANARY = "canary-4711"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with closing(private_redis()) as server, closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", f">{CANARY}", "~shop:*", "+@all")
        client.execute_command("CONFIG", "SET", "requirepass", CANARY)
        yield server


async def sent(url: str, *, topic: str = "shop:orders", **options: object) -> Outcome:
    transport = transport_from_url(url, options={"timeout": "5s"} | options)
    await transport.open()
    try:
        (outcome,) = await transport.send([sample(topic=topic)])
        return outcome
    finally:
        await transport.close()


async def refusal(url: str, *, topic: str = "shop:orders", **options: object) -> str:
    with pytest.raises(TransportUnavailable) as refused:
        await sent(url, topic=topic, **options)
    assert not refused.value.mid_send
    return str(refused.value)


async def test_a_password_alone_is_the_default_users(server: PrivateRedis) -> None:
    assert (await sent(f"redis://:{CANARY}@127.0.0.1:{server.port}")).delivered


async def test_a_user_and_a_password(server: PrivateRedis) -> None:
    assert (await sent(f"redis://shop:{CANARY}@127.0.0.1:{server.port}")).delivered
    assert (await sent(server.url, user="shop", password=CANARY)).delivered


async def test_no_login_is_an_outage(server: PrivateRedis) -> None:
    assert "refuses the login" in await refusal(server.url)


async def test_a_wrong_password_is_an_outage_and_not_repeated(
    server: PrivateRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = await refusal(f"redis://shop:{CANARY}-wrong@127.0.0.1:{server.port}")
    assert "refuses the login" in text
    assert CANARY not in text
    assert CANARY not in caplog.text


async def test_a_stream_that_is_forbidden_blocks_its_address(server: PrivateRedis) -> None:
    outcome = await sent(f"redis://shop:{CANARY}@127.0.0.1:{server.port}", topic="other")
    assert (outcome.delivered, outcome.missing) == (False, True)
    text = outcome.error or ""
    assert "'other'" in text
    assert "NOPERM" in text


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class _Encrypted(PrivateRedis):
    """Speaks TLS at its port, and nothing else."""

    def arguments(self) -> list[str]:
        words = list(super().arguments())
        words[words.index("--port")] = "--tls-port"
        return [*words, "--port", "0"]


def serving(authority: Authority, name: str, *, known: bool = False) -> _Encrypted:
    file = str(authority.signed("broker", alternative=name))
    files = ("--tls-cert-file", file, "--tls-key-file", file, "--tls-ca-cert-file", str(authority.file))
    try:
        return _Encrypted(_Encrypted.found(), *files, "--tls-auth-clients", "yes" if known else "no").started()
    except ServerMissing as reason:
        missing(RedisServer(), reason=str(reason), environ=os.environ)


def place(server: PrivateRedis) -> str:
    return f"rediss://localhost:{server.port}"


async def test_a_certificate_is_checked(authority: Authority) -> None:
    with closing(serving(authority, "DNS:localhost")) as server:
        assert (await sent(place(server), ca=str(authority.file))).delivered
        assert "cannot be trusted" in await refusal(place(server))
        assert (await sent(place(server), verify=False, insecure=True)).delivered


async def test_a_name_is_checked(authority: Authority) -> None:
    with closing(serving(authority, "DNS:elsewhere.test")) as server:
        text = await refusal(place(server), ca=str(authority.file))
    assert "cannot be trusted" in text
    assert "localhost" in text


async def test_only_the_given_authority_is_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", name="other authority")
    with closing(serving(authority, "DNS:localhost")) as server:
        assert "cannot be trusted" in await refusal(place(server), ca=str(other.file))


async def test_the_server_may_want_to_know_us(authority: Authority) -> None:
    own = str(authority.signed("relay", alternative="DNS:relay.test"))
    with closing(serving(authority, "DNS:localhost", known=True)) as server:
        await refusal(place(server), ca=str(authority.file))
        assert (await sent(place(server), ca=str(authority.file), client_certificate=own)).delivered


async def test_a_server_without_tls(server: PrivateRedis) -> None:
    """It waits for the rest of what it takes for a command."""
    assert "speaks TLS" in await refusal(place(server), timeout="300ms")
