"""Asks JetStream about streams, and makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from pillarbox.errors import TransportUnavailable
from pillarbox.transports.nats.settings import NatsSettings
from pillarbox.transports.redaction import one_line

if TYPE_CHECKING:
    from pillarbox.transports.nats.client import Client

__all__ = [
    "ApiError",
    "Consumers",
    "StreamConfig",
    "StreamInfo",
    "StreamState",
    "Unseen",
    "declare",
    "stream_info",
    "streams_of",
]

_NO_STREAM: Final = 10059
_NAME_TAKEN: Final = 10058


class ApiError(msgspec.Struct, frozen=True):
    """JetStream's own words on why not."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Unseen(Exception):
    """JetStream does not answer this question: it is off, or this login may not ask. The text says which."""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What is set on a stream, as far as it can lose messages. Durations are nanoseconds; -1 is no limit."""

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
    max_msg_size: int = -1
    duplicate_window: int = 0
    no_ack: bool = False
    sealed: bool = False
    allow_rollup_hdrs: bool = False


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """What it holds."""

    messages: int = 0
    consumer_count: int = 0


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stream."""

    config: StreamConfig = StreamConfig()
    state: StreamState = StreamState()
    error: ApiError | None = None


class _ConsumerConfig(msgspec.Struct, frozen=True):
    durable_name: str = ""


class _Consumer(msgspec.Struct, frozen=True):
    config: _ConsumerConfig = _ConsumerConfig()


class Consumers(msgspec.Struct, frozen=True):
    """Who reads a stream: the first ones of them."""

    consumers: Sequence[_Consumer] | None = None
    error: ApiError | None = None

    @property
    def has_durable(self) -> bool:
        return any(consumer.config.durable_name for consumer in self.consumers or ())


class _Names(msgspec.Struct, frozen=True):
    streams: Sequence[str] | None = None
    error: ApiError | None = None


A = TypeVar("A", StreamInfo, Consumers, _Names)


async def streams_of(client: Client, subject: str, *, seconds: float) -> Sequence[str]:
    """The names of the streams that have a subject; `Unseen` when that cannot be found out."""
    names = await _asked(client, "STREAM.NAMES", {"subject": subject}, _Names, seconds=seconds)
    return names.streams or ()


async def stream_info(client: Client, name: str, *, seconds: float) -> StreamInfo | None:
    """What is set on a stream; None when there is none."""
    info = await _asked(client, f"STREAM.INFO.{name}", {}, StreamInfo, seconds=seconds, allowed=_NO_STREAM)
    return None if info.error is not None else info


async def consumers_of(client: Client, name: str, *, seconds: float) -> Consumers:
    """Who reads a stream."""
    return await _asked(client, f"CONSUMER.LIST.{name}", {}, Consumers, seconds=seconds)


async def declare(client: Client, settings: NatsSettings, *, where: str) -> None:
    """Make the stream, if it is not there. One that is stays as it is."""
    seconds, name = settings.timeout.total_seconds(), settings.stream or ""
    try:
        if await stream_info(client, name, seconds=seconds) is None:
            wanted = {
                "name": name,
                "subjects": settings.declared_subjects,
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "num_replicas": settings.replicas,
                "duplicate_window": round(settings.duplicate_window.total_seconds() * 1_000_000_000),
            }
            await _asked(client, f"STREAM.CREATE.{name}", wanted, StreamInfo, seconds=seconds, allowed=_NAME_TAKEN)
    except Unseen as error:
        raise TransportUnavailable(f"{where} did not make the stream {name!r}: {error}.") from error


async def _asked(
    client: Client, question: str, about: object, answer: type[A], *, seconds: float, allowed: int = 0
) -> A:
    """The API's answer. An error in it is `Unseen`, but for the one that is `allowed`."""
    import nats.errors

    try:
        message = await client.request(f"$JS.API.{question}", msgspec.json.encode(about), timeout=seconds)
        said = msgspec.json.decode(message.data, type=answer)
    except nats.errors.NoRespondersError as error:
        raise Unseen("JetStream is not enabled for this account") from error
    except nats.errors.TimeoutError as error:
        raise Unseen(f"there was no answer within {seconds:g} s; perhaps this login may not ask") from error
    except (nats.errors.Error, msgspec.DecodeError) as error:
        raise Unseen(one_line(str(error))) from error
    if said.error is not None and said.error.err_code != allowed:
        raise Unseen(one_line(f"{said.error.description} ({said.error.err_code})"))
    return said
