"""Partial outages of each broker, as `tests.support.faults.partial` runs them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import aio_pika
from aiohttp import web
from nats.js.api import DiscardPolicy, RawStreamMsg

from pillarbox.brokers.factory import transport_from_url
from pillarbox.contracts.transport import Transport
from pillarbox.testing.fault_proxy import FaultProxy
from tests.support.aws_gateway import Gateway, No
from tests.support.aws_reader import REGION
from tests.support.faults.aws import SENDS, find_reader
from tests.support.faults.broker import Arrival, parse_arrival
from tests.support.faults.partial import PartialOutage, Site
from tests.support.http_endpoint import Endpoint
from tests.support.kafka_cluster import KafkaCluster, arrivals
from tests.support.mqtt_server import private_mosquitto
from tests.support.mqtt_subscriber import Subscriber
from tests.support.nats_server import private_nats, stream_named
from tests.support.rabbitmq_server import found_rabbitmq
from tests.support.rabbitmq_topology import Topology
from tests.support.redis_server import private_redis

__all__ = ["OUTAGES"]

_ROOM: Final = 5
_READER_PAUSE: Final = 0.005
_LARGE: Final = 500_000
_LARGE_COUNT: Final = 12
_SLOW: Final = 1_500_000
"""Bytes a second: the large messages together take four seconds, and the timeouts are shorter."""
_UNKNOWN_TOPIC: Final = 3


def _make(url: str, **options: object) -> Callable[[], Transport]:
    return lambda: transport_from_url(url, options=options)


def _through(url: str, proxy: FaultProxy) -> str:
    where = urlsplit(url)
    login = f"{where.username}:{where.password}@" if where.username else ""
    return where._replace(netloc=f"{login}{proxy.host}:{proxy.port}").geturl()


# --- RabbitMQ ---


@asynccontextmanager
async def _rabbitmq() -> AsyncIterator[Topology]:
    with found_rabbitmq() as url:
        async with Topology.declared(url) as topology:
            yield topology


def _amqp(topology: Topology) -> Callable[[], Transport]:
    return _make(topology.url, exchange=topology.exchange, routing_key="{topic}", timeout="2s")


async def _read_rabbitmq(topology: Topology, *read: aio_pika.abc.AbstractIncomingMessage) -> Sequence[Arrival]:
    messages = [*read, *await topology.taken()]
    return [parse_arrival(message.body, message.message_id or "") for message in messages]


@asynccontextmanager
async def _rabbitmq_full(*, is_read: bool = False) -> AsyncIterator[Site]:
    """A queue with `reject-publish` that nobody reads, or that is read slowly, from the start."""
    async with _rabbitmq() as topology:
        slow, read = await topology.small_queue(_ROOM), list[aio_pika.abc.AbstractIncomingMessage]()
        await topology.bind("free")
        await topology.bind("full", slow)
        readers, is_over = list[asyncio.Task[None]](), asyncio.Event()

        async def read_slowly(pause: float) -> None:
            async with await aio_pika.connect(topology.url) as connection:
                queue = await (await connection.channel()).get_queue(slow)
                while not is_over.is_set():
                    if (message := await queue.get(no_ack=True, fail=False)) is not None:
                        read.append(message)
                    await asyncio.sleep(pause)

        async def begin() -> None:
            if is_read:
                readers.append(asyncio.create_task(read_slowly(0.5)))

        async def end() -> None:
            readers.append(asyncio.create_task(read_slowly(_READER_PAUSE)))

        async def stop() -> None:
            is_over.set()
            await asyncio.gather(*readers)

        async def read_all() -> Sequence[Arrival]:
            await stop()
            return await _read_rabbitmq(topology, *read)

        try:
            yield Site(
                make_transport=_amqp(topology), blocked="full", free="free", begin=begin, end=end,
                read_received=read_all, room=_ROOM * 100 if is_read else _ROOM,
            )  # fmt: skip
        finally:
            await stop()


@asynccontextmanager
async def _rabbitmq_unbound() -> AsyncIterator[Site]:
    async with _rabbitmq() as topology:
        await topology.bind("free")
        await topology.bind("late")
        yield Site(
            make_transport=_amqp(topology), blocked="late", free="free",
            begin=lambda: topology.move("late", to=None), end=lambda: topology.bind("late"),
            read_received=lambda: _read_rabbitmq(topology),
        )  # fmt: skip


@asynccontextmanager
async def _rabbitmq_no_exchange() -> AsyncIterator[Site]:
    """Exchanges are named by topics, and one of them is deleted."""
    async with _rabbitmq() as topology:
        late = f"{topology.exchange}-late"
        await topology.bind("any")

        async def create() -> None:
            exchange = await topology.channel.declare_exchange(late, aio_pika.ExchangeType.TOPIC, durable=True)
            await (await topology.channel.get_queue(topology.queue)).bind(exchange, "any")

        async def delete() -> None:
            await topology.channel.exchange_delete(late)

        await create()
        try:
            yield Site(
                make_transport=_make(topology.url, exchange="{topic}", routing_key="any", timeout="2s"),
                blocked=late, free=topology.exchange, begin=delete, end=create,
                read_received=lambda: _read_rabbitmq(topology),
            )  # fmt: skip
        finally:
            await delete()


@asynccontextmanager
async def _rabbitmq_slow() -> AsyncIterator[Site]:
    async with _rabbitmq() as topology, FaultProxy(*topology.address, bytes_per_second=_SLOW) as proxy:
        url = _through(topology.url, proxy)
        await topology.bind("large")
        yield Site(
            make_transport=_make(url, exchange=topology.exchange, routing_key="{topic}", timeout="2s"),
            blocked="large", padding=_LARGE, read_received=lambda: _read_rabbitmq(topology),
        )  # fmt: skip


# --- NATS ---


@asynccontextmanager
async def _nats(*, is_full: bool = False, rate: float | None = None) -> AsyncIterator[Site]:
    """Two streams of which one is removed, or is full and discards what is new; or one behind a slow link."""
    with closing(await asyncio.to_thread(private_nats)) as server:

        async def create(name: str, **config: object) -> None:
            async with stream_named(server.url, name, **config):
                pass

        kept: list[RawStreamMsg] = []

        async def delete() -> None:
            async with stream_named(server.url, "late") as stream:
                kept.extend(await stream.messages())
                await stream.js.delete_stream("late")

        async def limit(messages: int) -> None:
            async with stream_named(server.url, "late") as stream:
                await stream.change(max_msgs=messages)

        async def read_all() -> Sequence[Arrival]:
            found = list(kept)
            for name in ("late", "free"):
                async with stream_named(server.url, name) as stream:
                    found += await stream.messages()
            return [parse_arrival(one.data or b"", (one.headers or {})["Nats-Msg-Id"]) for one in found]

        for name in ("late", "free"):
            await create(name, discard=DiscardPolicy.NEW)
        async with FaultProxy("127.0.0.1", server.port, bytes_per_second=rate) as proxy:
            site = Site(
                make_transport=_make(_through(server.url, proxy), timeout="2s", subject="{topic}"),
                blocked="late.orders", free="free.orders", read_received=read_all,
            )  # fmt: skip
            if rate is not None:
                site.free, site.padding = None, _LARGE
            elif is_full:
                site.begin, site.end = lambda: limit(1), lambda: limit(-1)
            else:
                site.begin, site.end = delete, lambda: create("late")
            yield site


# --- Kafka ---


@asynccontextmanager
async def _kafka(*, has_leader: bool = True) -> AsyncIterator[Site]:
    """A topic that the cluster does not know for a while, or whose partition has no leader.

    Not after the start: the mock cluster goes on to take records for a topic that it denies, and crashes over one for a
    partition without a leader.
    """
    with KafkaCluster() as cluster:
        cluster.create("late", "free")

        async def begin() -> None:
            if has_leader:
                cluster.break_topic("late", _UNKNOWN_TOPIC)
            else:
                cluster.set_leader("late", None)

        async def end() -> None:
            if has_leader:
                cluster.break_topic("late", 0)
            else:
                cluster.set_leader("late")

        async def read_all() -> Sequence[Arrival]:
            taken = await arrivals(cluster, "late", "free")
            return [parse_arrival(record.value, record.headers["ce_id"]) for record in taken]

        yield Site(
            make_transport=_make(cluster.url, topic="{topic}", timeout="2s"), blocked="late", free="free",
            begin=begin, end=end, read_received=read_all,
        )  # fmt: skip


# --- Redis ---


@asynccontextmanager
async def _redis() -> AsyncIterator[Site]:
    """No memory for anything."""
    with closing(await asyncio.to_thread(private_redis)) as server, closing(server.client()) as client:

        async def begin() -> None:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")

        async def end() -> None:
            client.config_set("maxmemory", "0")

        async def read_all() -> Sequence[Arrival]:
            found = [fields for name in ("late", "free") for _, fields in client.xrange(name)]
            return [parse_arrival(fields[b"data"], fields[b"ce-id"].decode()) for fields in found]

        yield Site(
            make_transport=_make(server.url, key="{topic}", timeout="2s"), blocked="late", free=None, begin=begin,
            end=end, read_received=read_all,
        )  # fmt: skip


# --- MQTT ---


@asynccontextmanager
async def _mqtt() -> AsyncIterator[Site]:
    """An access list that denies one of two topics."""
    settings = ("max_queued_messages 0", "acl_file {folder}/acl")
    everything = "topic readwrite #"
    with closing(await asyncio.to_thread(private_mosquitto, *settings, files={"acl": everything})) as broker:

        async def allow(access: str) -> None:
            broker.write("acl", access)
            await asyncio.to_thread(broker.reload)

        with Subscriber(broker.port, name="reader") as reader:
            await asyncio.to_thread(reader.subscribe, "denied/a", "open/a")

            async def read_all() -> Sequence[Arrival]:
                found = await asyncio.to_thread(reader.caught_up)
                return [parse_arrival(one.body, dict(one.user_properties)["id"]) for one in found]

            yield Site(
                make_transport=_make(broker.url, topic="{topic}", timeout="2s"), blocked="denied/a", free="open/a",
                begin=lambda: allow(f"topic deny denied/a\n{everything}"), end=lambda: allow(everything),
                read_received=read_all,
            )  # fmt: skip


# --- HTTP ---


class _Throttling(Endpoint):
    """Refuses the messages of keys that begin with `blocked`, while it is told to."""

    def __init__(self, status: int, *, retry_after: str | None) -> None:
        super().__init__()
        self.refuses = False
        self._status = status
        self._headers = {} if retry_after is None else {"retry-after": retry_after}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.refuses and request.headers.get("ce-partitionkey", "").startswith("blocked"):
            await request.read()
            return web.Response(status=self._status, headers=self._headers)
        return await super()._handle(request)

    def read(self) -> Sequence[Arrival]:
        return [parse_arrival(one.body, one.headers["ce-id"]) for one in self.taken]


@asynccontextmanager
async def _http(*, status: int, retry_after: str | None, has_two_urls: bool = False) -> AsyncIterator[Site]:
    endpoints = [_Throttling(status, retry_after=retry_after) for _ in range(2 if has_two_urls else 1)]
    for endpoint in endpoints:
        await endpoint.start()

    async def refuse(is_on: bool) -> None:
        for endpoint in endpoints:
            endpoint.refuses = is_on

    async def read_all() -> Sequence[Arrival]:
        return [arrival for endpoint in endpoints for arrival in endpoint.read()]

    makes = [_make(endpoint.url, allow_private=True) for endpoint in endpoints]
    try:
        yield Site(
            make_transport=makes[0], make_blocked_transport=makes[1] if has_two_urls else None,
            blocked="orders", free="orders", begin=lambda: refuse(True), end=lambda: refuse(False),
            read_received=read_all, load=400, others=1 if has_two_urls else 2,
        )  # fmt: skip
    finally:
        for endpoint in endpoints:
            await endpoint.stop()


@asynccontextmanager
async def _http_slow() -> AsyncIterator[Site]:
    endpoint = _Throttling(503, retry_after=None)
    await endpoint.start()

    async def read_all() -> Sequence[Arrival]:
        return endpoint.read()

    try:
        async with FaultProxy("127.0.0.1", endpoint.port, bytes_per_second=_SLOW) as proxy:
            # Few at a time: each connection hides some bytes in buffers, and the wait for a slot is no time of it.
            make = _make(_through(endpoint.url, proxy), allow_private=True, concurrency=4, timeout="3s")
            yield Site(make_transport=make, blocked="orders", padding=_LARGE, read_received=read_all)
    finally:
        await endpoint.stop()


# --- SQS and SNS ---


@asynccontextmanager
async def _aws(scheme: str, *, is_throttled: bool = False) -> AsyncIterator[Site]:
    """A queue or topic that is created late, or an account that is throttled."""
    reader = await asyncio.to_thread(find_reader)
    late, free = reader.name(), reader.name()

    def create(name: str) -> None:
        reader.queue(name)
        if scheme == "sns":
            reader.topic(name, queue=name)

    async def read_all() -> Sequence[Arrival]:
        found = [one for name in (late, free) for one in await asyncio.to_thread(reader.read, name)]
        return [parse_arrival(one.body, one.attributes["ce_id"]) for one in found]

    await asyncio.to_thread(create, free)
    async with Gateway(reader.url) as gateway:

        async def begin() -> None:
            gateway.answers[SENDS[scheme]] = No(code="ThrottlingException", status=400)

        async def end() -> None:
            gateway.answers.clear()

        url, options = f"{scheme}://key:secret@{REGION}", {"endpoint": gateway.url, "mode": "binary", "timeout": "3s"}
        site = Site(
            make_transport=_make(url, **options), blocked=late, free=free, read_received=read_all, load=50,
            end=lambda: asyncio.to_thread(create, late),
        )  # fmt: skip
        if is_throttled:
            await asyncio.to_thread(create, late)
            site.free, site.begin, site.end = None, begin, end
        yield site


_Run = Callable[[], contextlib.AbstractAsyncContextManager[Site]]


def _outage(
    broker: str, name: str, run: _Run, *, before_start: bool = False, count: int | None = None
) -> PartialOutage:
    return PartialOutage(broker=broker, name=name, run=run, before_start=before_start, count=count)


def _topology(broker: str, what: str, run: _Run, *, after: bool = True) -> list[PartialOutage]:
    both = [_outage(broker, f"no {what} before the start", run, before_start=True)]
    return [*both, _outage(broker, f"{what} removed after the start", run)] if after else both


_SLOW_LINK: Final = "slow link, large messages"
_R, _N, _K = "RabbitMQ", "NATS JetStream", "Kafka (mock cluster)"
_W, _S, _T = "Webhook", "SQS (moto)", "SNS (moto)"

OUTAGES: Final[Sequence[PartialOutage]] = (
    _outage(_R, "one full queue of two", _rabbitmq_full, before_start=True),
    _outage(_R, "full queue, slow reader", partial(_rabbitmq_full, is_read=True), before_start=True),
    *_topology(_R, "binding", _rabbitmq_unbound),
    *_topology(_R, "exchange", _rabbitmq_no_exchange),
    _outage(_R, _SLOW_LINK, _rabbitmq_slow, count=_LARGE_COUNT),
    *_topology(_K, "topic", _kafka, after=False),
    _outage(_K, "partition without a leader", partial(_kafka, has_leader=False), before_start=True),
    _outage("MQTT (Mosquitto)", "one denied topic of two", _mqtt),
    *_topology(_S, "queue", partial(_aws, "sqs"), after=False),
    _outage(_S, "throttled", partial(_aws, "sqs", is_throttled=True)),
    *_topology(_T, "topic", partial(_aws, "sns"), after=False),
    *_topology(_N, "stream", _nats),
    _outage(_N, "one full stream of two", partial(_nats, is_full=True)),
    _outage(_N, _SLOW_LINK, partial(_nats, rate=_SLOW), count=_LARGE_COUNT),
    _outage("Redis Streams", "no memory", _redis),
    _outage(_W, "a third of the keys refused with Retry-After", partial(_http, status=429, retry_after="1")),
    _outage(_W, "one URL of two answers 503", partial(_http, status=503, retry_after=None, has_two_urls=True)),
    _outage(_W, _SLOW_LINK, _http_slow, count=_LARGE_COUNT),
)
"""In the order of the table."""
