"""Who may connect to RabbitMQ, and whom we take for it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.private_rabbitmq import PrivateRabbitmq
from tests.support.rabbitmq_topology import Topology, opened, refusal

DELIVERED = Outcome(delivered=True)


@pytest.fixture
async def own(private_rabbitmq: PrivateRabbitmq) -> AsyncIterator[Topology]:
    async with Topology.declared(private_rabbitmq.url) as topology:
        await topology.bind("#")
        yield topology


async def test_a_wrong_password_is_an_outage_that_keeps_it_secret(
    private_rabbitmq: PrivateRabbitmq, caplog: pytest.LogCaptureFixture
) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    text = await refusal(f"amqp://limited:{canary}@127.0.0.1:{private_rabbitmq.port}/")
    assert "refuses the login" in text
    assert canary not in text
    assert canary not in caplog.text


async def test_a_missing_virtual_host_is_an_outage(private_rabbitmq: PrivateRabbitmq) -> None:
    assert "virtual host" in await refusal(f"{private_rabbitmq.url}nowhere")


async def test_no_permission_to_write_names_the_exchange_and_spends_no_attempt(own: Topology) -> None:
    host, port = own.address
    url = f"amqp://limited:canary-limited@{host}:{port}/"
    try:
        async with opened(url, exchange=own.exchange) as transport:
            outcomes = await transport.send([sample(), sample()])
    except TransportUnavailable as error:  # from 4 on, RabbitMQ does not even tell whether the exchange is there
        text = str(error)
    else:
        assert outcomes[0].missing
        text = outcomes[0].error or ""
    assert own.exchange in text
    assert "grant" in text
    assert "grant" in await refusal(url, exchange=f"{own.exchange}-new", declare="true")


async def test_tls_is_verified(private_rabbitmq: PrivateRabbitmq, own: Topology) -> None:
    url = f"amqps://guest:guest@127.0.0.1:{private_rabbitmq.tls_port}/"
    trusting = {"exchange": own.exchange, "ca": str(private_rabbitmq.authority)}
    assert "cannot be trusted" in await refusal(url, exchange=own.exchange)
    assert "cannot be trusted" in await refusal(url.replace("127.0.0.1", "localhost"), **trusting)
    async with opened(url, **trusting) as transport:
        assert await transport.send([sample(), sample()]) == [DELIVERED] * 2
    async with opened(url, exchange=own.exchange, verify="false", insecure="true") as transport:
        assert await transport.send([sample()]) == [DELIVERED]


async def test_a_certificate_can_be_the_login(private_rabbitmq: PrivateRabbitmq, own: Topology) -> None:
    url, file = f"amqps://127.0.0.1:{private_rabbitmq.tls_port}/", str(private_rabbitmq.client_certificate)
    options = {"ca": str(private_rabbitmq.authority), "client_certificate": file, "auth": "external"}
    async with opened(url, exchange=own.exchange, **options) as transport:
        assert await transport.send([sample()]) == [DELIVERED]


async def test_a_port_that_speaks_something_else_is_said(private_rabbitmq: PrivateRabbitmq) -> None:
    for port in (private_rabbitmq.management_port, private_rabbitmq.tls_port):
        text = await refusal(f"amqp://127.0.0.1:{port}/", timeout="1s")
        assert "cannot be reached" in text
