"""What `inspect` finds on a real broker: badly set exchanges and queues, and what it cannot see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.transport import Inspector
from pillarbox.errors import TransportUnavailable
from tests.support.private_rabbitmq import PrivateRabbitmq
from tests.support.rabbitmq_topology import Topology, opened, transport_at


@pytest.fixture
async def own(private_rabbitmq: PrivateRabbitmq) -> AsyncIterator[Topology]:
    async with Topology.declared(private_rabbitmq.url) as topology:
        yield topology


@pytest.fixture
def api(private_rabbitmq: PrivateRabbitmq) -> str:
    return private_rabbitmq.management_url


async def inspected(topology: Topology, *topics: str, **options: object) -> dict[str, Finding]:
    """By code, without the prefix."""
    async with opened(topology.url, **{"exchange": topology.exchange, **options}) as transport:
        assert isinstance(transport, Inspector)
        found: Sequence[Finding] = await transport.inspect(topics=topics)
    assert list(found) == sorted(found, key=lambda finding: list(Severity).index(finding.severity), reverse=True)
    assert all(finding.what and finding.why and finding.fix for finding in found)
    return {finding.code.removeprefix("rabbitmq."): finding for finding in found}


async def test_a_safe_topology_has_no_findings(own: Topology, api: str) -> None:
    dead_letters = {"x-dead-letter-exchange": "d", "x-dead-letter-strategy": "at-least-once"}
    limit: dict[str, int | str] = {"x-max-length": 10, "x-overflow": "reject-publish"}
    await own.declare_queue(f"{own.queue}-safe", {"x-queue-type": "quorum", **dead_letters, **limit})
    await own.bind("orders.#", f"{own.queue}-safe")
    assert await inspected(own, "orders.eu", management=api) == {}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"x-max-length": 10}, "queue-drops"),
        ({"x-max-length-bytes": 10, "x-overflow": "drop-head"}, "queue-drops"),
        ({"x-message-ttl": 1000}, "queue-expires-messages"),
        ({"x-expires": 600_000}, "queue-deletes-itself"),
        ({"x-queue-type": "quorum"}, "queue-delivery-limit"),
        ({"x-queue-type": "quorum", "x-dead-letter-exchange": "d"}, "dead-letter-at-most-once"),
    ],
)
async def test_a_queue_that_can_lose_is_found(
    own: Topology, api: str, arguments: dict[str, int | str], code: str
) -> None:
    name = f"{own.queue}-bad"
    await own.declare_queue(name, arguments)
    await own.bind("orders", name)
    found = await inspected(own, "orders", management=api)
    assert found[code].severity is Severity.WARNING
    assert name in found[code].what


async def test_a_topic_that_leads_nowhere_is_found(own: Topology, api: str) -> None:
    await own.bind("orders.*")
    found = await inspected(own, "orders.eu", "payments", management=api)
    assert found["unroutable"].severity is Severity.CRITICAL
    assert "'payments'" in found["unroutable"].what


async def test_queues_behind_another_exchange_are_found(own: Topology, api: str) -> None:
    second = await own.channel.declare_exchange(f"{own.exchange}-second", "fanout", auto_delete=True)
    await second.bind(own.exchange, "orders")
    await own.declare_queue(f"{own.queue}-bad", durable=False)
    await (await own.channel.get_queue(f"{own.queue}-bad")).bind(second)
    assert "queue-not-durable" in await inspected(own, "orders", management=api)


async def test_an_alternate_exchange_is_found(own: Topology, api: str) -> None:
    await own.channel.exchange_delete(own.exchange)
    await own.declare_exchange(**{"alternate-exchange": "somewhere"})
    found = await inspected(own, "orders", management=api)
    assert "'somewhere'" in found["alternate-exchange"].what
    assert "unroutable" not in found


async def test_without_the_api_only_existence_is_seen_and_that_is_said(own: Topology) -> None:
    found = await inspected(own, "orders")
    assert set(found) == {"not-inspected"}
    assert found["not-inspected"].severity is Severity.INFO
    assert "management" in found["not-inspected"].fix


async def test_missing_exchanges_and_queues_are_found_over_amqp(own: Topology) -> None:
    found = await inspected(own, "no-such", exchange="{topic}")
    assert found["exchange-missing"].severity is Severity.CRITICAL
    found = await inspected(own, "no-such", own.queue, exchange="")
    assert found["queue-missing"].severity is Severity.CRITICAL
    assert "'no-such'" in found["queue-missing"].what
    assert "queue-missing" not in await inspected(own, own.queue, exchange="")


@pytest.mark.parametrize("login", ["limited:canary-limited@", "limited:canary-wrong@"])
async def test_what_the_login_may_not_see_is_said(own: Topology, api: str, login: str) -> None:
    found = await inspected(own, "orders", management=api.replace("//", f"//{login}"))
    assert "monitoring" in found["not-inspected"].what
    assert "canary" not in repr(found)


async def test_an_api_that_is_away_is_said(own: Topology, private_rabbitmq: PrivateRabbitmq) -> None:
    found = await inspected(own, "orders", management=f"http://127.0.0.1:{private_rabbitmq.port}", timeout="5s")
    assert "cannot be asked" in found["not-inspected"].what


async def test_looking_changes_nothing_and_needs_the_broker(own: Topology, api: str) -> None:
    await inspected(own, "orders", management=api)
    assert await own.taken() == []
    with pytest.raises(TransportUnavailable):
        await transport_at(own.url, exchange=own.exchange).inspect(topics=["orders"])
