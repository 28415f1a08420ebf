"""Webhooks over TLS: who is trusted, and who is not."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pillarbox.brokers.http import HttpSettings, HttpTransport
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.certificates import Authority
from tests.support.http_endpoint import Endpoint


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), name="another authority")


@asynccontextmanager
async def serving(certificate: Path, *, clients: Authority | None = None) -> AsyncIterator[Endpoint]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    if clients is not None:
        context.load_verify_locations(clients.file)
        context.verify_mode = ssl.CERT_REQUIRED
    endpoint = Endpoint(tls=context)
    await endpoint.start()
    try:
        yield endpoint
    finally:
        await endpoint.stop()


async def loopback(_host: str, _port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def sent(settings: HttpSettings) -> Outcome:
    transport = HttpTransport(settings, lookup=loopback)
    try:
        await transport.open()
        (outcome,) = await transport.send([sample()])
        return outcome
    finally:
        await transport.close()


async def refused(settings: HttpSettings) -> TransportUnavailable:
    with pytest.raises(TransportUnavailable) as away:
        await sent(settings)
    return away.value


def named(endpoint: Endpoint, *, ca: Authority | None, verify: bool = True) -> HttpSettings:
    return HttpSettings(
        url=f"https://shop.test:{endpoint.port}/hooks",
        allow_private=True,
        ca=None if ca is None else str(ca.file),
        verify=verify,
        insecure=not verify,
    )


async def test_an_endpoint_of_a_trusted_authority(authority: Authority) -> None:
    async with serving(authority.signed("shop", alternative="DNS:shop.test")) as endpoint:
        assert await sent(named(endpoint, ca=authority)) == Outcome(delivered=True)
    assert len(endpoint.taken) == 1


async def test_an_endpoint_of_another_authority_gets_nothing(authority: Authority, stranger: Authority) -> None:
    async with serving(stranger.signed("shop", alternative="DNS:shop.test")) as endpoint:
        for trusted in (authority, None):
            away = await refused(named(endpoint, ca=trusted))
            assert not away.mid_send
            assert "cannot be trusted" in str(away)
    assert endpoint.peers == set()


async def test_an_endpoint_of_another_name_gets_nothing(authority: Authority) -> None:
    async with serving(authority.signed("other", alternative="DNS:other.test")) as endpoint:
        away = await refused(named(endpoint, ca=authority))
    assert "Hostname mismatch" in str(away)
    assert endpoint.peers == set()


async def test_an_endpoint_at_an_address_needs_a_certificate_for_it(authority: Authority) -> None:
    async with serving(authority.signed("address", alternative="IP:127.0.0.1")) as endpoint:
        settings = HttpSettings(url=endpoint.url, allow_private=True, ca=str(authority.file))
        assert await sent(settings) == Outcome(delivered=True)
    async with serving(authority.signed("shop", alternative="DNS:shop.test")) as endpoint:
        settings = HttpSettings(url=endpoint.url, allow_private=True, ca=str(authority.file))
        assert "cannot be trusted" in str(await refused(settings))


async def test_checking_can_be_switched_off(stranger: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(stranger.signed("shop", alternative="DNS:other.test")) as endpoint:
        assert await sent(named(endpoint, ca=None, verify=False)) == Outcome(delivered=True)
    assert "is not checked" in caplog.text


async def test_an_endpoint_that_asks_who_we_are(authority: Authority) -> None:
    async with serving(authority.signed("shop", alternative="DNS:shop.test"), clients=authority) as endpoint:
        anonymous = named(endpoint, ca=authority)
        await refused(anonymous)
        assert endpoint.taken == []
        ours = HttpSettings(
            url=anonymous.url,
            allow_private=True,
            ca=anonymous.ca,
            client_certificate=str(authority.signed("relay", alternative="DNS:relay.test")),
        )
        assert await sent(ours) == Outcome(delivered=True)


async def test_an_endpoint_that_speaks_no_tls() -> None:
    endpoint = Endpoint()
    await endpoint.start()
    settings = HttpSettings(url=f"https://shop.test:{endpoint.port}/hooks", allow_private=True)
    away = await refused(settings)
    await endpoint.stop()
    assert not away.mid_send


def test_files_that_hold_no_certificate(tmp_path: Path) -> None:
    file = tmp_path / "empty.pem"
    file.write_text("nothing")
    with pytest.raises(ConfigError, match="option ca "):
        HttpTransport(HttpSettings(url="https://shop.test", ca=str(file)))
    with pytest.raises(ConfigError, match="client_certificate"):
        HttpTransport(HttpSettings(url="https://shop.test", client_certificate=str(file)))


def test_an_encrypted_key_does_not_ask_at_the_terminal(authority: Authority, tmp_path: Path) -> None:
    plain, locked = authority.signed("locked", alternative="DNS:x.test"), tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-aes128", "-passout", "pass:hunter2", "-in", plain, "-out", locked],
        check=True,
        capture_output=True,
    )
    settings = HttpSettings(url="https://shop.test", client_certificate=str(plain), client_key=str(locked))
    with pytest.raises(ConfigError, match="encrypted"):
        HttpTransport(settings)
