"""What the NATS transport finds on streams that can lose messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.nats import NatsTransport
from pillarbox.brokers.nats.checks import check_permissions, check_stream
from pillarbox.brokers.nats.streams import StreamConfig
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.transport import Inspector, Outcome
from pillarbox.testing.samples import sample
from tests.support.nats_server import NatsServer, private_nats, stream_at
from tests.support.servers import found

ALWAYS = {"nats.few-replicas", "nats.sync-interval-unseen"}
"""On a single server there is no way round the first."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with found(NatsServer(), environ=os.environ) as url:
        yield url


async def inspected(url: str, *topics: str, **options: object) -> Sequence[Finding]:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, NatsTransport)
    assert isinstance(transport, Inspector)
    await transport.open()
    try:
        return await transport.inspect(topics=topics)
    finally:
        await transport.close()


async def found_on(url: str, **config: Any) -> dict[str, Severity]:
    async with stream_at(url, **config) as stream:
        findings = await inspected(url, f"{stream.name}.orders")
    return {finding.code: finding.severity for finding in findings if finding.code not in ALWAYS}


@pytest.mark.parametrize(
    ("config", "code", "severity"),
    [
        ({"storage": StorageType.MEMORY}, "nats.memory-storage", Severity.WARNING),
        ({"max_msgs": 5}, "nats.discard-old", Severity.CRITICAL),
        ({"max_bytes": 5_000}, "nats.discard-old", Severity.CRITICAL),
        ({"max_msgs_per_subject": 1}, "nats.discard-old", Severity.CRITICAL),
        ({"max_age": 3600.0}, "nats.max-age", Severity.WARNING),
        ({"retention": RetentionPolicy.INTEREST}, "nats.interest-without-consumers", Severity.CRITICAL),
        ({"no_ack": True}, "nats.no-ack", Severity.CRITICAL),
        ({"duplicate_window": 1.0}, "nats.short-duplicate-window", Severity.INFO),
        ({"allow_rollup_hdrs": True}, "nats.rollup", Severity.INFO),
    ],
)
async def test_a_stream_that_can_lose(url: str, config: dict[str, Any], code: str, severity: Severity) -> None:
    assert await found_on(url, **config) == {code: severity}


async def test_a_stream_that_refuses_loses_nothing(url: str) -> None:
    assert await found_on(url, max_msgs=5, discard=DiscardPolicy.NEW) == {}


async def test_interest_of_a_durable_consumer(url: str) -> None:
    async with stream_at(url, retention=RetentionPolicy.INTEREST) as stream:
        await stream.js.add_consumer(stream.name, ConsumerConfig(durable_name="mail", deliver_subject="x.mail"))
        findings = await inspected(url, f"{stream.name}.orders")
    assert {finding.code for finding in findings} == ALWAYS


async def test_why_interest_is_told(url: str) -> None:
    """It acknowledges, and keeps nothing."""
    async with stream_at(url, retention=RetentionPolicy.INTEREST) as stream:
        transport = transport_from_url(url)
        await transport.open()
        assert await transport.send([sample(topic=f"{stream.name}.orders")]) == [Outcome(delivered=True)]
        await transport.close()
        assert await stream.messages() == []


async def test_a_topic_that_no_stream_has(url: str) -> None:
    findings = await inspected(url, "nobody.has.this")
    assert findings[0].code == "nats.no-stream"
    assert findings[0].severity is Severity.CRITICAL
    assert "'nobody.has.this'" in findings[0].what


async def test_a_topic_that_another_stream_has(url: str) -> None:
    async with stream_at(url) as stream:
        findings = await inspected(url, f"{stream.name}.orders", stream="another")
    assert findings[0].code == "nats.other-stream"


async def test_subjects_that_cannot_be_foreseen(url: str) -> None:
    findings = await inspected(url, "orders", subject="x.{key}")
    assert {finding.code for finding in findings} == {"nats.subjects-unknown", "nats.sync-interval-unseen"}


async def test_what_this_login_may_not_see() -> None:
    settings = "authorization { users = [ { user: u, password: p, permissions: { publish: { deny: '$JS.API.>' } } } ] }"
    with closing(private_nats(settings)) as server:
        findings = await inspected(f"nats://u:p@127.0.0.1:{server.port}", "orders", timeout="500ms")
    assert {finding.code for finding in findings} == {"nats.streams-unseen", "nats.sync-interval-unseen"}
    assert {finding.severity for finding in findings} == {Severity.INFO}


async def test_a_server_without_jetstream() -> None:
    with closing(private_nats("jetstream: false")) as server:
        findings = await inspected(server.url, "orders")
    assert (findings[0].code, findings[0].severity) == ("nats.no-jetstream", Severity.CRITICAL)


def test_rights_that_the_server_does_not_tell_are_a_note() -> None:
    (finding,) = check_permissions(["orders"], None)
    assert (finding.code, finding.severity) == ("nats.permissions-unseen", Severity.INFO)


def test_sealed_and_replicated() -> None:
    codes = {finding.code for finding in check_stream(StreamConfig(sealed=True, num_replicas=3))}
    assert codes == {"nats.sealed", "nats.short-duplicate-window"}
