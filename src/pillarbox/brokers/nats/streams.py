"""Streams and durable consumers of JetStream: read, and declared."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec
import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from pillarbox.brokers.nats.errors import describe_error
from pillarbox.brokers.nats.settings import NatsReceiverSettings, NatsSettings
from pillarbox.errors import TransportUnavailable
from pillarbox.redaction import redact_line

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import ConsumerInfo

__all__ = [
    "ApiUnavailable",
    "ConsumerState",
    "JetStreamOff",
    "StreamConfig",
    "declare_stream",
    "ensure_consumer",
    "find_ack_wait",
    "find_horizon",
    "find_streams",
    "list_consumers",
    "read_stream",
]

_NO_CONSUMER: Final = 10014
_NO_STREAM: Final = 10059
_NAME_TAKEN: Final = 10058
_HORIZON_TIMEOUT: Final = 2.0
_DEFAULT_ACK_WAIT: Final = 30.0
"""Seconds: the server's own default."""


class ApiUnavailable(Exception):
    """JetStream does not answer a request: it is off, or this login may not ask. The text says which."""


class JetStreamOff(ApiUnavailable):
    """JetStream is not enabled, on the server or for this account."""


# --- streams ---


class _ApiError(msgspec.Struct, frozen=True):
    """The error in a reply."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a stream that can lose messages. Durations are nanoseconds; -1 is no limit."""

    name: str = ""
    subjects: Sequence[str] = ()
    retention: str = "limits"
    storage: str = "file"
    discard: str = "old"
    num_replicas: int = 1
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    max_age: int = 0
    duplicate_window: int = 0
    no_ack: bool = False
    sealed: bool = False
    allow_rollup_hdrs: bool = False


class _StreamState(msgspec.Struct, frozen=True, kw_only=True):
    messages: int = 0
    consumer_count: int = 0


class _StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    config: StreamConfig = StreamConfig()
    state: _StreamState = _StreamState()
    error: _ApiError | None = None


class _ConsumerConfig(msgspec.Struct, frozen=True):
    durable_name: str = ""


class _Consumer(msgspec.Struct, frozen=True):
    config: _ConsumerConfig = _ConsumerConfig()


class _ConsumerList(msgspec.Struct, frozen=True):
    """The consumers of a stream: the first page of them."""

    consumers: Sequence[_Consumer] | None = None
    error: _ApiError | None = None

    @property
    def has_durable(self) -> bool:
        return any(consumer.config.durable_name for consumer in self.consumers or ())


class _StreamNames(msgspec.Struct, frozen=True):
    streams: Sequence[str] | None = None
    error: _ApiError | None = None


R = TypeVar("R", _StreamInfo, _ConsumerList, _StreamNames)


async def find_streams(client: Client, subject: str, *, seconds: float) -> Sequence[str]:
    """Return the names of the streams that have a subject; raise `ApiUnavailable` if the server does not tell."""
    names = await _request(client, "STREAM.NAMES", {"subject": subject}, _StreamNames, seconds=seconds)
    return names.streams or ()


async def read_stream(client: Client, name: str, *, seconds: float) -> _StreamInfo | None:
    """Return a stream's settings and state; None when it does not exist."""
    info = await _request(client, f"STREAM.INFO.{name}", {}, _StreamInfo, seconds=seconds, allowed=_NO_STREAM)
    return None if info.error is not None else info


async def list_consumers(client: Client, name: str, *, seconds: float) -> _ConsumerList:
    """Return the consumers of a stream."""
    return await _request(client, f"CONSUMER.LIST.{name}", {}, _ConsumerList, seconds=seconds)


async def declare_stream(client: Client, settings: NatsSettings, *, where: str) -> None:
    """Create the stream, if it does not exist. An existing one stays as it is."""
    seconds, name = settings.timeout.total_seconds(), settings.stream or ""
    try:
        if await read_stream(client, name, seconds=seconds) is None:
            config = {
                "name": name,
                "subjects": settings.declared_subjects,
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "num_replicas": settings.replicas,
                # Runs of a key are stored together, or not at all. Servers before 2.12 do not know it.
                "allow_atomic": True,
                "duplicate_window": round(settings.duplicate_window.total_seconds() * 1_000_000_000),
            }
            # Another relay may have created it meanwhile.
            await _request(client, f"STREAM.CREATE.{name}", config, _StreamInfo, seconds=seconds, allowed=_NAME_TAKEN)
    except ApiUnavailable as error:
        raise TransportUnavailable(f"{where} did not make the stream {name!r}: {error}.") from error


# --- consumers ---


class ConsumerState(NamedTuple):
    """The progress of a durable consumer."""

    floor: int
    """All up to this number in the stream are acknowledged."""
    delivered: int
    """The highest number that was delivered."""
    unacknowledged: int
    """Messages that were delivered and are not acknowledged, over all receivers."""
    waiting: int
    """Pull requests that wait, of all receivers."""

    @classmethod
    def from_info(cls, info: ConsumerInfo) -> ConsumerState:
        floor, delivered = info.ack_floor, info.delivered
        return cls(
            floor=floor.stream_seq if floor else 0,
            delivered=delivered.stream_seq if delivered else 0,
            unacknowledged=info.num_ack_pending or 0,
            waiting=info.num_waiting or 0,
        )


async def ensure_consumer(client: Client, settings: NatsReceiverSettings, *, where: str) -> ConsumerInfo:
    """Return the durable consumer, created if `declare` is set; raise `TransportUnavailable` if it cannot be used."""
    manager, name = client.jsm(timeout=settings.timeout.total_seconds()), _name_consumer(settings)
    try:
        try:
            info: ConsumerInfo = await manager.consumer_info(settings.stream, settings.durable)
        except NotFoundError as error:
            if error.err_code != _NO_CONSUMER or not settings.declare:
                raise
            info = await manager.add_consumer(
                settings.stream,
                ConsumerConfig(
                    durable_name=settings.durable,
                    deliver_policy=DeliverPolicy.ALL,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=settings.ack_wait.total_seconds(),
                    max_deliver=-1,
                    # What waits behind a failing message of its key is unacknowledged too, and must not stop the rest.
                    max_ack_pending=-1,
                    filter_subject=settings.subject,
                ),
            )
    except NotFoundError as error:
        if error.err_code == _NO_CONSUMER:
            missing, remedy = name, "create it, or set declare=true"
        else:
            missing, remedy = f"stream {settings.stream!r}", "create it, or correct the name"
        raise TransportUnavailable(f"{where} has no {missing}: {remedy} ({describe_error(error)}).") from error
    except (nats.errors.Error, TimeoutError) as error:
        raise TransportUnavailable(
            f"{where} did not answer a question about the {name} ({describe_error(error)}): see that JetStream is "
            "enabled and that this login may use it."
        ) from error
    _check_usable(info.config, settings, where=where)
    return info


def _check_usable(config: ConsumerConfig, settings: NatsReceiverSettings, *, where: str) -> None:
    name = f"{where} has the {_name_consumer(settings)},"
    if config.deliver_subject:
        raise TransportUnavailable(f"{name} which is pushed to; delete it, or give another durable.")
    if config.ack_policy != AckPolicy.EXPLICIT:
        raise TransportUnavailable(f"{name} whose messages are not acknowledged one by one; set ack_policy explicit.")
    filters = sorted(config.filter_subjects or ([config.filter_subject] if config.filter_subject else []))
    if settings.subject is not None and filters != [settings.subject]:
        raise TransportUnavailable(f"{name} which reads other subjects; correct the option subject, or delete it.")


def _name_consumer(settings: NatsReceiverSettings) -> str:
    return f"consumer {settings.durable!r} of the stream {settings.stream!r}"


def find_ack_wait(config: ConsumerConfig) -> float:
    """Return the seconds within which the server must hear of a delivered message."""
    return float(min([config.ack_wait or _DEFAULT_ACK_WAIT, *(config.backoff or ())]))  # a backoff replaces ack_wait


async def find_horizon(client: Client, settings: NatsReceiverSettings) -> timedelta | None:
    """Return how long the stream keeps a message, if it has a limit and this login may know it."""
    # A login without the permission gets no answer at all, so this does not wait for the full timeout.
    seconds = min(_HORIZON_TIMEOUT, settings.timeout.total_seconds())
    try:
        info = await client.jsm(timeout=seconds).stream_info(settings.stream)
    except (nats.errors.Error, TimeoutError):
        return None
    return timedelta(seconds=info.config.max_age) if info.config.max_age else None


# --- the API ---


async def _request(
    client: Client, subject: str, body: object, reply: type[R], *, seconds: float, allowed: int = 0
) -> R:
    """Call the JetStream API. An error in the reply raises `ApiUnavailable`, except the `allowed` one."""
    try:
        message = await client.request(f"$JS.API.{subject}", msgspec.json.encode(body), timeout=seconds)
        decoded = msgspec.json.decode(message.data, type=reply)
    except nats.errors.NoRespondersError as error:
        raise JetStreamOff("JetStream is not enabled for this account") from error
    except nats.errors.TimeoutError as error:
        raise ApiUnavailable(f"there was no answer within {seconds:g} s; perhaps this login may not ask") from error
    except (nats.errors.Error, msgspec.DecodeError, RecursionError) as error:
        raise ApiUnavailable(redact_line(str(error))) from error
    if decoded.error is not None and decoded.error.err_code != allowed:
        raise ApiUnavailable(redact_line(f"{decoded.error.description} ({decoded.error.err_code})"))
    return decoded
