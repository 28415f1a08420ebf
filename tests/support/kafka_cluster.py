"""Kafka for tests: the mock cluster that is built into librdkafka, in threads of this process, on loopback.

It speaks the protocol, so any client can use it, and it can be told to fail. It keeps nothing on disk, replicates
nothing, and does not check the sequence numbers of an idempotent producer.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self, cast

import confluent_kafka
import msgspec
from confluent_kafka import Consumer, TopicPartition

from tests.support.servers import ServerMissing

__all__ = ["INIT_PRODUCER_ID", "PRODUCE", "Arrival", "KafkaCluster", "arrivals"]

PRODUCE: Final = 0
"""The number of the request that brings records."""
INIT_PRODUCER_ID: Final = 22
"""Of the one by which an idempotent producer begins."""
_PRODUCER: Final = 0
_BROKER: Final = 1
_POINTER: Final = ctypes.c_void_p
_ARGUMENTS: Final = {
    "rd_kafka_conf_new": [],
    "rd_kafka_new": [ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t],
    "rd_kafka_destroy": [_POINTER],
    "rd_kafka_conf_set": [_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    "rd_kafka_mock_cluster_new": [_POINTER, ctypes.c_int],
    "rd_kafka_mock_cluster_destroy": [_POINTER],
    "rd_kafka_mock_cluster_bootstraps": [_POINTER],
    "rd_kafka_mock_topic_create": [_POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "rd_kafka_mock_topic_set_error": [_POINTER, ctypes.c_char_p, ctypes.c_int],
    "rd_kafka_mock_partition_set_leader": [_POINTER, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32],
    "rd_kafka_mock_broker_set_down": [_POINTER, ctypes.c_int32],
    "rd_kafka_mock_broker_set_up": [_POINTER, ctypes.c_int32],
    "rd_kafka_mock_broker_set_host_port": [_POINTER, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int],
    "rd_kafka_mock_clear_request_errors": [_POINTER, ctypes.c_int16],
    "rd_kafka_mock_push_request_errors_array": [
        _POINTER,
        ctypes.c_int16,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int),
    ],
    "rd_kafka_mock_set_controller_id": [_POINTER, ctypes.c_int32],
    "rd_kafka_mock_group_initial_rebalance_delay_ms": [_POINTER, ctypes.c_int32],
}


def _library() -> ctypes.CDLL:
    """The same library that confluent-kafka has loaded, for it keeps its mock cluster to itself."""
    home = Path(confluent_kafka.__file__).parent
    for place in (home.parent / "confluent_kafka.libs", home / ".dylibs"):
        for path in place.glob("librdkafka*"):
            library = ctypes.CDLL(str(path))
            for name, arguments in _ARGUMENTS.items():
                getattr(library, name).argtypes = arguments
            for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
                getattr(library, name).restype = _POINTER
            library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
            return library
    raise ServerMissing("the wheel of confluent-kafka brings no librdkafka")


class KafkaCluster:
    """A mock cluster of one broker. Topics that were not created do not exist."""

    def __init__(self) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        config = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(config, b"log_level", b"0", error, 512)
        self._handle = self._library.rd_kafka_new(_PRODUCER, config, error, 512)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        self.host, _, port = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode().partition(":")
        self.port = int(port)
        self._library.rd_kafka_mock_set_controller_id(self._cluster, _BROKER)
        # The first member of a group has it at once. Later ones wait for the session timeout less a second.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._cluster is not None:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._handle)
            self._cluster = None

    @property
    def address(self) -> str:
        """Where the broker itself listens."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def create(self, *topics: str, partitions: int = 1) -> None:
        for topic in topics:
            self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def break_topic(self, topic: str, code: int) -> None:
        """Answer questions about a topic with an error, or with 0 as before."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def set_leader(self, topic: str, broker: int | None = _BROKER) -> None:
        """Make a broker the leader of the first partition of a topic; None: it has no leader."""
        leader = -1 if broker is None else broker
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), 0, leader)

    def fail_next(self, *codes: int, request: int = PRODUCE) -> None:
        """Answer the next requests of this kind with these errors, one each. Nothing is written then."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(codes), errors)

    def heal(self, request: int = PRODUCE) -> None:
        """Forget the errors that are still to come."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, request)

    def stop(self) -> None:
        """Close every connection and take no new ones. What was stored stays, as on a disk."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, _BROKER)

    def start(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, _BROKER)

    def advertise(self, host: str, port: int) -> None:
        """Tell clients to come to this address instead: that of a proxy."""
        self._library.rd_kafka_mock_broker_set_host_port(self._cluster, _BROKER, host.encode(), port)


class Arrival(msgspec.Struct, frozen=True):
    """A record as a consumer gets it."""

    topic: str
    partition: int
    key: str | None
    value: bytes
    headers: dict[str, str]


async def arrivals(cluster: KafkaCluster, *topics: str) -> Sequence[Arrival]:
    """All records of these topics, read by a plain client. Within a partition in order."""
    return await asyncio.to_thread(_read, cluster.address, topics)


def _read(address: str, topics: Sequence[str]) -> list[Arrival]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "tests", "log_level": 0, "fetch.wait.max.ms": 10})
    try:
        ends = _ends(consumer, topics)
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
        found: list[Arrival] = []
        while len(found) < sum(ends.values()):
            for message in consumer.consume(num_messages=1_000, timeout=0.2):
                assert message.error() is None
                found.append(_arrival(message))
        return found
    finally:
        consumer.close()


def _ends(consumer: Consumer, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    known = {topic: consumer.list_topics(topic, timeout=20).topics[topic].partitions for topic in topics}
    places = [(topic, partition) for topic, partitions in known.items() for partition in partitions]
    marks = {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=20) for place in places}
    return {place: high - low for place, (low, high) in marks.items() if high > low}


def _arrival(message: confluent_kafka.Message) -> Arrival:
    key, headers = message.key(), cast("dict[str, bytes | None]", dict(message.headers() or []))
    return Arrival(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        key=None if key is None else key.decode(),
        value=message.value() or b"",
        headers={name: (value or b"").decode() for name, value in headers.items()},
    )
