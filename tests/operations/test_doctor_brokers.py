"""The doctor at real brokers. What each transport looks for there is tested with the transport."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

import pytest

from pillarbox import Outbox
from pillarbox.contracts.finding import Severity
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.mqtt_server import MqttServer
from tests.support.nats_server import NatsServer
from tests.support.operations.doctor import codes, diagnose, finding, install, severities
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer
from tests.support.servers import Server, found

CRITICAL = Severity.CRITICAL
CANARY = "c4nary-s3cret"
SERVERS: dict[str, Server] = {
    "rabbitmq": RabbitmqServer(), "nats": NatsServer(), "redis": RedisServer(), "mqtt": MqttServer(),
}  # fmt: skip
OPTIONS = {"amqp": "exchange=amq.topic&routing_key={topic}"}


@pytest.fixture(params=SERVERS)
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a broker that others use too."""
    with found(SERVERS[request.param], environ=os.environ) as url:
        yield url


def told(url: str, *, login: str | None = None, place: str | None = None) -> str:
    """As a destination, perhaps with another login or at another place."""
    parts = urlsplit(url)
    hosts = f"{parts.hostname}:{parts.port}" if place is None else place
    at, _, own = parts.netloc.rpartition("@")
    who = (own and at if login is None else login) or ""
    netloc = f"{who}@{hosts}" if who else hosts
    return parts._replace(netloc=netloc, query=OPTIONS.get(parts.scheme, "")).geturl()


async def test_a_broker_that_is_there_is_reached_and_looked_at(broker: str) -> None:
    report = await diagnose("memory://", {"broker": told(broker)})

    assert not [code for code in codes(report, "destination broker") if code.startswith("destination.")]


@pytest.mark.parametrize("broker", ["nats"], indirect=True)
async def test_it_is_asked_about_the_topics_that_wait(broker: str, tmp_sqlite: Path) -> None:
    """Whether a stream takes them can only be asked of a topic, and the topics are in the store."""
    await install(f"sqlite:///{tmp_sqlite}")
    topic = f"orders-{token_hex(4)}"
    with closing(sqlite3.connect(tmp_sqlite)) as connection, connection:
        Outbox(routes="broker", source="/shop").publish(connection, {}, type="orders.placed", topic=topic)
    report = await diagnose(f"sqlite:///{tmp_sqlite}", {"broker": broker})

    assert severities(report, "destination broker")["nats.no-stream"] is CRITICAL
    assert topic in finding(report, "nats.no-stream").what


@pytest.mark.parametrize("broker", ["rabbitmq", "redis"], indirect=True)  # the others let everybody in
async def test_a_login_that_is_refused(broker: str) -> None:
    report = await diagnose("memory://", {"broker": told(broker, login=f"nobody:{CANARY}")})

    assert severities(report, "destination broker") == {"destination.unreachable": CRITICAL}
    assert CANARY not in str(report)


async def test_a_broker_that_hangs_is_given_up(broker: str) -> None:
    parts = urlsplit(broker)
    async with FaultProxy(parts.hostname or "", parts.port or 0) as proxy:
        proxy.hang()
        url = told(broker, place=f"{proxy.host}:{proxy.port}")
        report = await diagnose("memory://", {"broker": url}, within=timedelta(seconds=1))

    assert severities(report, "destination broker") == {"destination.no-answer": CRITICAL}


async def test_nobody_there(broker: str) -> None:
    url = told(broker, place="127.0.0.1:1", login=f"nobody:{CANARY}")
    report = await diagnose("memory://", {"broker": url})

    assert severities(report, "destination broker") == {"destination.unreachable": CRITICAL}
    assert CANARY not in str(report)
