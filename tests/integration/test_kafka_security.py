"""Kafka over TLS and with a login. The mock cluster has neither, so a proxy in front of it does."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import pytest

from pillarbox.brokers.kafka import KafkaSettings, KafkaTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.redaction import Secret
from pillarbox.testing.samples import sample
from tests.support.certificates import Authority
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_door import door

_DELIVERED: Final = Outcome(delivered=True)
_TIMEOUT: Final = timedelta(seconds=2)
_CANARY: Final = "canary-4711"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), name="another authority")


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        cluster.create("orders")
        yield cluster


def tls(certificate: Path, *, clients: Authority | None = None) -> ssl.SSLContext:
    """How the broker shows who it is, and whom it asks for a certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    if clients is not None:
        context.load_verify_locations(clients.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def sent(settings: KafkaSettings) -> Outcome:
    transport = KafkaTransport(settings)
    try:
        await transport.open()
        (outcome,) = await transport.send([sample()])
        return outcome
    finally:
        await transport.close()


async def refused(settings: KafkaSettings, *, because: str = "") -> str:
    """What the refusal says. A slow client knows the cause only after a longer wait: then it is asked again."""
    told = ""
    for timeout in (_TIMEOUT, 5 * _TIMEOUT, 15 * _TIMEOUT):
        with pytest.raises(TransportUnavailable) as refused:
            await sent(msgspec.structs.replace(settings, timeout=timeout))
        told = str(refused.value)
        if because in told:
            break
    return told


async def test_a_trusted_broker_is_sent_to(cluster: KafkaCluster, authority: Authority) -> None:
    certificate = authority.signed("broker", alternative="IP:127.0.0.1")
    async with door(cluster, tls=tls(certificate)) as url:
        assert await sent(KafkaSettings(url=url, tls=True, ca=str(authority.file))) == _DELIVERED


async def test_a_broker_nobody_vouches_for_is_refused(cluster: KafkaCluster, authority: Authority) -> None:
    certificate = authority.signed("broker", alternative="IP:127.0.0.1")
    async with door(cluster, tls=tls(certificate)) as url:
        told = await refused(KafkaSettings(url=url, tls=True), because="certificate")
    assert "certificate" in told


async def test_a_broker_with_another_name_is_refused(cluster: KafkaCluster, authority: Authority) -> None:
    certificate = authority.signed("elsewhere", alternative="DNS:elsewhere.example")
    async with door(cluster, tls=tls(certificate)) as url:
        told = await refused(KafkaSettings(url=url, tls=True, ca=str(authority.file)), because="certificate")
    assert "certificate" in told


async def test_checking_can_be_switched_off(cluster: KafkaCluster, stranger: Authority) -> None:
    certificate = stranger.signed("elsewhere", alternative="DNS:elsewhere.example")
    async with door(cluster, tls=tls(certificate)) as url:
        assert await sent(KafkaSettings(url=url, tls=True, verify=False, insecure=True)) == _DELIVERED


async def test_a_client_certificate_is_shown(cluster: KafkaCluster, authority: Authority) -> None:
    certificate = authority.signed("broker", alternative="IP:127.0.0.1")
    ours = authority.signed("client", alternative="DNS:client.example")
    async with door(cluster, tls=tls(certificate, clients=authority)) as url:
        trusted = KafkaSettings(url=url, tls=True, ca=str(authority.file), client_certificate=str(ours))
        assert await sent(trusted) == _DELIVERED
        await refused(KafkaSettings(url=url, tls=True, ca=str(authority.file)))


async def test_without_tls_an_encrypted_broker_is_not_reached(cluster: KafkaCluster, authority: Authority) -> None:
    certificate = authority.signed("broker", alternative="IP:127.0.0.1")
    async with door(cluster, tls=tls(certificate)) as url:
        await refused(KafkaSettings(url=url))


def test_a_file_that_is_no_certificate_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"does not take its settings: .*ssl\.ca\.location"):
        KafkaTransport(KafkaSettings(url="kafka://broker.example", tls=True, ca=str(tmp_path / "ca.pem")))


# --- logging in ---


def _login(url: str, password: str) -> KafkaSettings:
    return KafkaSettings(url=url, user="shop", password=Secret(password), sasl="PLAIN", insecure=True)


async def test_the_login_opens_the_door(cluster: KafkaCluster) -> None:
    async with door(cluster, login=("shop", _CANARY)) as url:
        assert await sent(_login(url, _CANARY)) == _DELIVERED


async def test_a_wrong_login_is_an_outage_that_keeps_the_password_to_itself(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(cluster, login=("shop", "another")) as url:
        told = await refused(_login(url, _CANARY), because="login")
    assert "login" in told
    assert _CANARY not in told + caplog.text


async def test_without_a_login_the_door_stays_shut(cluster: KafkaCluster) -> None:
    async with door(cluster, login=("shop", _CANARY)) as url:
        await refused(KafkaSettings(url=url))
