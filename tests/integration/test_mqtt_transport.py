"""MQTT against real brokers: what arrives, what each refusal means, and that no answer is believed too early."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.mqtt import MqttSettings, MqttTransport
from pillarbox.contracts.finding import Finding, Severity
from pillarbox.contracts.transport import Inspector, Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.message import Message
from pillarbox.redaction import Secret
from pillarbox.testing.fault_proxy import FaultProxy
from pillarbox.testing.samples import sample
from tests.support.mqtt_server import private_mosquitto
from tests.support.mqtt_subscriber import Subscriber
from tests.support.private_mosquitto import PrivateMosquitto, mosquitto_program
from tests.support.relay_behaviour.scene import until

CANARY = "canary-0123456789"
DELIVERED = Outcome(delivered=True)
SOON = timedelta(milliseconds=300)
ACL = "topic read $SYS/#\ntopic readwrite open/#\ntopic readwrite mark/#\ntopic read closed/#\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateMosquitto]:
    """Denies `closed/…`."""
    settings = ("acl_file {folder}/acl", "sys_interval 1")
    with closing(private_mosquitto(*settings, files={"acl": ACL})) as broker:
        yield broker


@pytest.fixture
def subscriber(broker: PrivateMosquitto) -> Iterator[Subscriber]:
    with Subscriber(broker.port) as subscriber:
        yield subscriber


@pytest.fixture
def place(subscriber: Subscriber) -> str:
    """Where only this test publishes, and somebody listens."""
    place = f"open/{secrets.token_hex(6)}"
    subscriber.subscribe(f"{place}/#", "closed/#")
    return place


@asynccontextmanager
async def proxied(
    broker: PrivateMosquitto, *, timeout: timedelta = timedelta(seconds=10)
) -> AsyncIterator[tuple[FaultProxy, MqttTransport]]:
    """A transport with a proxy between it and the broker."""
    async with FaultProxy("127.0.0.1", broker.port) as proxy:
        url = f"mqtt://127.0.0.1:{proxy.port}"
        async with opened(MqttSettings(url=url, timeout=timeout)) as transport:
            yield proxy, transport


@asynccontextmanager
async def opened(settings: MqttSettings) -> AsyncIterator[MqttTransport]:
    transport = MqttTransport(settings)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


async def unavailable(settings: MqttSettings) -> str:
    with pytest.raises(TransportUnavailable) as away:
        async with opened(settings):
            pass
    assert not away.value.mid_send
    return str(away.value)


def some(topic: str, count: int = 3) -> Sequence[Message]:
    return [sample(topic=topic, key=f"key-{number}") for number in range(count)]


# --- what arrives ------------------------------------------------------------------------------------


async def test_a_subscriber_that_knows_nothing_of_us(
    broker: PrivateMosquitto, subscriber: Subscriber, place: str
) -> None:
    message = sample(topic=place, key="c-1", headers={"tenant": "shop-1"}, correlation_id="request-1")
    async with opened(MqttSettings(url=broker.url)) as transport:
        assert await transport.send([message]) == [DELIVERED]
    (got,) = subscriber.caught_up()
    assert (got.topic, got.body, got.qos, got.retain) == (place, message.payload, 1, False)
    assert (got.content_type, got.correlation_data) == ("application/json", b"request-1")
    pairs = dict(got.user_properties)
    assert (pairs["id"], pairs["type"], pairs["partitionkey"]) == (str(message.message_id), "orders.placed", "c-1")
    assert (pairs["specversion"], pairs["correlationid"], pairs["tenant"]) == ("1.0", "request-1", "shop-1")


async def test_a_template(broker: PrivateMosquitto, subscriber: Subscriber, place: str) -> None:
    async with opened(MqttSettings(url=broker.url, topic=f"{place}/{{type}}/{{key}}")) as transport:
        good, bad = sample(key="c-1"), sample(key=None)
        answers = await transport.send([bad, good])
    assert answers[1] == DELIVERED
    assert answers[0].rejected
    assert "no key" in (answers[0].error or "")
    assert [got.topic for got in subscriber.caught_up()] == [f"{place}/orders.placed/c-1"]


async def test_a_retained_message_waits_for_its_subscriber(broker: PrivateMosquitto) -> None:
    topic = f"open/{secrets.token_hex(6)}"
    async with opened(MqttSettings(url=broker.url, retain=True, no_subscribers="accept")) as transport:
        assert await transport.send([sample(topic=topic)]) == [DELIVERED]
    with Subscriber(broker.port) as late:
        late.subscribe(topic)
        assert [got.retain for got in late.caught_up()] == [True]


async def test_a_batch_that_is_larger_than_the_window(
    broker: PrivateMosquitto, subscriber: Subscriber, place: str
) -> None:
    messages = some(place, 300)
    async with opened(MqttSettings(url=broker.url, window=7)) as transport:
        assert await transport.send(messages) == [DELIVERED] * 300
    arrived = [dict(got.user_properties)["id"] for got in subscriber.caught_up()]
    assert arrived == [str(message.message_id) for message in messages]


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_denied_topic_stops_no_other(
    broker: PrivateMosquitto, subscriber: Subscriber, place: str, qos: Literal[1, 2]
) -> None:
    """With QoS 2 the driver alone would call it published."""
    first, second, third = sample(topic=place), sample(topic="closed/x"), sample(topic=place)
    async with opened(MqttSettings(url=broker.url, qos=qos)) as transport:
        answers = await transport.send([first, second, third])
    assert [answer.delivered for answer in answers] == [True, False, True]
    assert not answers[1].rejected
    assert "access list (0x87)" in (answers[1].error or "")
    assert [got.topic for got in subscriber.caught_up()] == [place, place]


@pytest.mark.parametrize(
    ("policy", "expected"), [("accept", (True, False)), ("refuse", (False, False)), ("reject", (False, True))]
)
async def test_nobody_subscribes(
    broker: PrivateMosquitto, policy: Literal["accept", "refuse", "reject"], expected: tuple[bool, bool]
) -> None:
    async with opened(MqttSettings(url=broker.url, no_subscribers=policy)) as transport:
        (answer,) = await transport.send([sample(topic=f"open/nobody-{secrets.token_hex(6)}")])
    assert (answer.delivered, answer.rejected) == expected


@pytest.mark.parametrize("setting", ["max_packet_size 2000", "message_size_limit 2000"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_message_that_is_too_large_hurts_only_itself(setting: str, qos: Literal[1, 2]) -> None:
    """Said when connecting, or in the acknowledgement, where the driver alone would hang up."""
    with closing(private_mosquitto(setting)) as broker, Subscriber(broker.port) as subscriber:
        subscriber.subscribe("orders")
        large = sample(payload=b"x" * 3_000)
        async with opened(MqttSettings(url=broker.url, qos=qos)) as transport:
            answers = await transport.send([sample(), large, sample()])
            connection = transport._connections[-1]
            assert await transport.send([sample()]) == [DELIVERED]
            assert transport._connections == [connection]
        assert [answer.delivered for answer in answers] == [True, False, True]
        assert answers[1].rejected
        assert len(subscriber.caught_up()) == 3


# --- login -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateMosquitto]:
    """Lets in only `teller`."""
    program = mosquitto_program("mosquitto_passwd") or shutil.which("mosquitto_passwd")
    if program is None:
        pytest.skip("There is no mosquitto_passwd; install Mosquitto.")
    passwords = Path(tmp_path_factory.mktemp("mosquitto")) / "passwords"
    subprocess.run([program, "-c", "-b", str(passwords), "teller", CANARY], check=True, capture_output=True)
    files = {"passwords": passwords.read_text()}
    with closing(private_mosquitto("password_file {folder}/passwords", files=files)) as broker:
        yield broker


async def test_a_login_in_the_url_or_in_options(guarded: PrivateMosquitto) -> None:
    place = f"127.0.0.1:{guarded.port}"
    async with opened(MqttSettings(url=f"mqtt://teller:{CANARY}@{place}")) as transport:
        await transport.ping()
    async with opened(MqttSettings(url=f"mqtt://{place}", user="teller", password=Secret(CANARY))) as transport:
        await transport.ping()


@pytest.mark.parametrize("login", ["teller:wrong", f"stranger:{CANARY}", "teller", ""])
async def test_a_wrong_login_is_an_outage(guarded: PrivateMosquitto, login: str) -> None:
    url = f"mqtt://{login}@127.0.0.1:{guarded.port}" if login else guarded.url
    said = await unavailable(MqttSettings(url=url))
    assert "refused the connection" in said
    assert "check user, password" in said
    assert CANARY not in said
    assert "wrong" not in said


# --- connections -------------------------------------------------------------------------------------


async def test_nobody_is_there() -> None:
    said = await unavailable(MqttSettings(url="mqtt://127.0.0.1:9"))
    assert said == (
        "mqtt://127.0.0.1:9 cannot be reached (Connection refused): check that it runs, and the URL's host and port."
    )


async def test_a_name_that_does_not_exist() -> None:
    assert "cannot be reached" in await unavailable(MqttSettings(url="mqtt://no-such-host.invalid"))


async def test_the_first_broker_that_answers_is_used(broker: PrivateMosquitto) -> None:
    async with opened(MqttSettings(url=f"mqtt://127.0.0.1:9,127.0.0.1:{broker.port}")) as transport:
        await transport.ping()


async def test_a_lost_acknowledgement_is_no_delivery(
    broker: PrivateMosquitto, subscriber: Subscriber, place: str
) -> None:
    """The broker has it, and we do not know: it is sent again, with the same id."""
    message = sample(topic=place)
    async with proxied(broker) as (proxy, transport):
        proxy.drop_answers()
        sending = asyncio.create_task(transport.send([message]))
        await until(subscriber.caught_up)
        proxy.cut()
        with pytest.raises(TransportUnavailable) as cut:
            await sending
        assert cut.value.mid_send
        proxy.heal()
        assert await transport.send([message]) == [DELIVERED]
    assert {dict(got.user_properties)["id"] for got in subscriber.caught_up()} == {str(message.message_id)}
    assert len(subscriber.arrived) == 2


async def test_a_broker_that_hangs(broker: PrivateMosquitto, place: str) -> None:
    async with proxied(broker, timeout=SOON) as (proxy, transport):
        proxy.hang()
        assert (
            await transport.send(some(place))
            == [
                Outcome(
                    False,
                    f"no answer within 0.3 s from mqtt://127.0.0.1:{proxy.port}",
                    unanswered=True,
                    not_now=True,
                )
            ]
            * 3
        )
        with pytest.raises(TransportUnavailable, match="while we connected") as away:
            await transport.send(some(place))
        assert not away.value.mid_send
        with pytest.raises(TransportUnavailable):
            await transport.ping()
        proxy.heal()
        assert await transport.send(some(place)) == [DELIVERED] * 3


async def test_a_ping_that_is_not_answered(broker: PrivateMosquitto) -> None:
    async with proxied(broker, timeout=SOON) as (proxy, transport):
        proxy.hang()
        with pytest.raises(TransportUnavailable, match="did not answer a ping"):
            await transport.ping()
        proxy.heal()
        await transport.ping()


async def test_many_sends_share_one_way_back(broker: PrivateMosquitto, place: str) -> None:
    """After an outage all hear the same answer: nobody queues up to try for himself."""
    async with proxied(broker) as (proxy, transport):
        proxy.cut()
        await asyncio.gather(*(transport.send(some(place)) for _ in range(20)), return_exceptions=True)
        answers = await asyncio.gather(*(transport.send(some(place)) for _ in range(20)))
        assert all(answer == [DELIVERED] * 3 for answer in answers)
        assert proxy.connections == 1


async def test_closing_while_it_connects(broker: PrivateMosquitto) -> None:
    async with FaultProxy("127.0.0.1", broker.port) as proxy:
        proxy.hang()
        transport = MqttTransport(MqttSettings(url=f"mqtt://127.0.0.1:{proxy.port}"))
        opening = asyncio.create_task(transport.open())
        async with asyncio.timeout(30):
            await proxy.requested.wait()
        await transport.close()
        with pytest.raises(TransportUnavailable, match="closed while it connected"):
            await opening


# --- inspecting --------------------------------------------------------------------------------------


async def inspected(settings: MqttSettings) -> dict[str, Finding]:
    transport = transport_from_url(settings.url)
    assert isinstance(transport, Inspector)
    found = await MqttTransport(settings).inspect(topics=["orders"])
    assert all(finding.what and finding.why and finding.fix for finding in found)
    return {finding.code: finding for finding in found}


async def test_what_cannot_be_seen_is_said(broker: PrivateMosquitto) -> None:
    with Subscriber(broker.port) as subscriber:
        subscriber.subscribe("$SYS/broker/version", "$SYS/broker/publish/messages/dropped")
        await until(lambda: len(subscriber.arrived) == 2)  # published a moment after the start
    found = await inspected(MqttSettings(url=broker.url))
    assert set(found) == {"mqtt.persistence-unseen", "mqtt.sessions-unseen", "mqtt.rights-unseen"}
    assert {finding.severity for finding in found.values()} == {Severity.INFO}


async def test_settings_that_lose_messages() -> None:
    settings = ("acl_file {folder}/acl", "max_packet_size 5000")
    with closing(private_mosquitto(*settings, files={"acl": "topic readwrite open/#"})) as broker:
        found = await inspected(MqttSettings(url=broker.url, no_subscribers="accept", qos=2))
    assert found["mqtt.no-subscribers-accepted"].severity is Severity.WARNING
    assert found["mqtt.subscribers-unseen"].severity is Severity.WARNING
    assert "5000" in found["mqtt.packet-limit"].what
    assert "mqtt.statistics-unseen" in found


async def test_a_broker_that_drops_messages() -> None:
    """A session that is away has a short queue; the broker acknowledges what it then drops."""
    with closing(private_mosquitto("max_queued_messages 1", "sys_interval 1")) as broker:
        with Subscriber(broker.port, name="away") as subscriber:
            subscriber.subscribe("orders")
        async with opened(MqttSettings(url=broker.url)) as transport:
            assert await transport.send(some("orders", 10)) == [DELIVERED] * 10
        with Subscriber(broker.port) as subscriber:
            subscriber.subscribe("$SYS/broker/publish/messages/dropped")
            await until(lambda: subscriber.arrived and subscriber.arrived[-1].body != b"0")
        found = await inspected(MqttSettings(url=broker.url))
    assert found["mqtt.messages-dropped"].severity is Severity.WARNING


async def test_nobody_to_inspect() -> None:
    with pytest.raises(TransportUnavailable):
        await inspected(MqttSettings(url="mqtt://127.0.0.1:9"))
