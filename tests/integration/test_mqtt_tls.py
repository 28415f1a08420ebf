"""MQTT over TLS: who is trusted, and who is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pillarbox.brokers.mqtt import MqttSettings, MqttTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.certificates import Authority
from tests.support.mqtt_server import private_mosquitto
from tests.support.private_mosquitto import PrivateMosquitto


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def serving(authority: Authority, name: str, *settings: str) -> PrivateMosquitto:
    certificate = authority.signed("broker", alternative=name)
    return private_mosquitto(f"certfile {certificate}", f"keyfile {certificate}", *settings)


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[PrivateMosquitto]:
    with closing(serving(authority, "IP:127.0.0.1")) as broker:
        yield broker


def settings(
    broker: PrivateMosquitto, *, ca: Path | None = None, verify: bool = True, certificate: Path | None = None
) -> MqttSettings:
    return MqttSettings(
        url=f"mqtts://127.0.0.1:{broker.port}",
        ca=None if ca is None else str(ca),
        verify=verify,
        insecure=not verify,
        client_certificate=None if certificate is None else str(certificate),
        no_subscribers="accept",
    )


async def sent(settings: MqttSettings, *, size: int = 10) -> Outcome:
    transport = MqttTransport(settings)
    try:
        await transport.open()
        outcomes = await transport.send([sample(payload=b"x" * size) for _ in range(50)])
        return min(outcomes, key=lambda outcome: outcome.delivered)
    finally:
        await transport.close()


async def refused(settings: MqttSettings) -> str:
    with pytest.raises(TransportUnavailable) as away:
        await sent(settings)
    return str(away.value)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_broker_of_a_trusted_authority(broker: PrivateMosquitto, authority: Authority, size: int) -> None:
    assert await sent(settings(broker, ca=authority.file), size=size) == Outcome(delivered=True)


async def test_a_broker_of_a_stranger(broker: PrivateMosquitto) -> None:
    assert "cannot be trusted" in await refused(settings(broker))


async def test_a_broker_with_another_name(authority: Authority) -> None:
    with closing(serving(authority, "DNS:other.test")) as broker:
        assert "cannot be trusted" in await refused(settings(broker, ca=authority.file))


async def test_anyone_when_that_is_meant(broker: PrivateMosquitto, caplog: pytest.LogCaptureFixture) -> None:
    assert await sent(settings(broker, verify=False)) == Outcome(delivered=True)
    assert "is not checked" in caplog.text


async def test_we_show_who_we_are(authority: Authority) -> None:
    ours = authority.signed("relay", alternative="DNS:relay.test")
    guarded = serving(authority, "IP:127.0.0.1", f"cafile {authority.file}", "require_certificate true")
    with closing(guarded) as broker:
        assert await sent(settings(broker, ca=authority.file, certificate=ours)) == Outcome(delivered=True)
        await refused(settings(broker, ca=authority.file))


async def test_plain_where_tls_is_spoken(broker: PrivateMosquitto) -> None:
    assert "hung up while we connected" in await refused(MqttSettings(url=broker.url))
