"""`pillarbox demo` over real brokers, and what it makes there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis

from pillarbox.brokers.factory import transport_from_url
from pillarbox.demo.target import Target, open_endpoint, parse_target
from pillarbox.errors import ConfigError, TransportUnavailable
from pillarbox.testing.samples import sample
from tests.support.cli.demo import (
    ORDERS,
    check_result,
    list_processes,
    needs_proc,
    run_demo,
    start_demo,
    wait_for_output,
)
from tests.support.nats_server import NatsServer
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer
from tests.support.servers import Server, found

STORES = {"amqp": "postgresql", "nats": "sqlite", "redis": "postgresql"}


@pytest.fixture(params=["rabbitmq", "nats", "redis"])
def broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a broker that others use too."""
    servers: dict[str, Server] = {"rabbitmq": RabbitmqServer(), "nats": NatsServer(), "redis": RedisServer()}
    with found(servers[request.param], environ=os.environ) as url:
        yield url


def test_the_demo_over_a_broker(broker: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = STORES[broker.partition(":")[0]]
    place = ["--store", request.getfixturevalue("postgres_url")] if store == "postgresql" else []
    ran = run_demo("--seed", "5", "--json", *place, "--to", broker, folder=tmp_path)

    check_result(ran)
    assert ran.err.startswith(f"Pillarbox demo: {ORDERS} orders from {store} over ")
    assert list(tmp_path.iterdir()) == []


async def test_what_is_made_at_a_broker_is_removed(broker: str) -> None:
    target = parse_target(broker)
    endpoint = open_endpoint(target)
    assert not await is_there(target)

    await endpoint.prepare()
    assert await is_there(target)
    assert await endpoint.is_ready()

    await endpoint.remove()
    assert not await is_there(target)


async def is_there(target: Target) -> bool:
    """Whether a relay would find what it is to send to."""
    transport = transport_from_url(target.transport_url)
    if target.kind == "redis":
        async with Redis.from_url(target.receiver_url.partition("?")[0]) as client:
            return bool(await client.exists(target.name))
    try:
        await transport.open()
        outcomes = await transport.send([sample(topic="orders")])
    except TransportUnavailable:
        return False
    finally:
        await transport.close()
    return outcomes[0].delivered


@pytest.mark.parametrize("url", ["amqp://app:geheim@127.0.0.1:1/", "nats://app:geheim@127.0.0.1:1",
                                 "redis://app:geheim@127.0.0.1:1"])  # fmt: skip
def test_a_broker_that_is_not_there(url: str, tmp_path: Path) -> None:
    ran = run_demo("--to", url, folder=tmp_path)

    assert ran.code == 3
    assert "cannot be used for the demo" in ran.sentence
    assert "geheim" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_the_demo_sets_itself() -> None:
    with pytest.raises(ConfigError, match="sets exchange itself"):
        parse_target("amqp://127.0.0.1/?timeout=5s&exchange=mine")

    assert "?timeout=5s&exchange=pillarbox-demo-" in parse_target("amqp://127.0.0.1/?timeout=5s").transport_url


def read_command_lines(folder: Path) -> list[str]:
    """The command lines of the processes that work below this folder."""
    lines = []
    for pid in list_processes(folder):
        with suppress(OSError):  # it has ended meanwhile
            lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    return [line for line in lines if line]


@needs_proc
def test_a_password_is_in_no_command_line(tmp_path: Path) -> None:
    """The environment of a process is its user's alone; its command line is everybody's."""
    to = "http://127.0.0.1?headers.authorization=Bearer-geheim"
    with start_demo("--to", to, folder=tmp_path) as (process, stderr):
        wait_for_output(stderr, "consumer killed")
        lines: list[str] = []
        while len(lines) < 2:  # some of them are being killed and started again
            lines = read_command_lines(tmp_path)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert not [line for line in lines if "geheim" in line]
