"""The durable consumer: asked for, made if it is not there and it is ours to make, and looked at."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pillarbox.errors import TransportUnavailable
from pillarbox.receivers.nats.absence import Standing
from pillarbox.receivers.nats.connecting import said
from pillarbox.receivers.nats.settings import NatsReceiverSettings

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import ConsumerConfig, ConsumerInfo
    from nats.js.manager import JetStreamManager

__all__ = ["ack_wait_of", "horizon_of", "see_to", "standing_of"]

_BRIEFLY: Final = 2.0
"""Seconds: a login that may not ask gets no answer."""
_ACK_WAIT: Final = 30.0
"""Seconds: the server's own, where nothing is set."""


async def see_to(client: Client, settings: NatsReceiverSettings, *, where: str) -> ConsumerInfo:
    """What is known of the durable consumer, which is there; `TransportUnavailable` when it is not, or is no use."""
    from nats.errors import Error
    from nats.js.errors import NotFoundError

    manager, named = client.jsm(timeout=settings.timeout.total_seconds()), _named(settings)
    try:
        try:
            info: ConsumerInfo = await manager.consumer_info(settings.stream, settings.durable)
        except NotFoundError as error:
            if error.err_code != 10014 or not settings.declare:  # the stream is there, the consumer is not
                raise
            info = await _declared(manager, settings)
    except NotFoundError as error:
        missing = named if error.err_code == 10014 else f"stream {settings.stream!r}"
        remedy = "create it, or set declare=true" if error.err_code == 10014 else "create it, or correct the name"
        raise TransportUnavailable(f"{where} has no {missing}: {remedy} ({said(error)}).") from error
    except (Error, TimeoutError) as error:
        raise TransportUnavailable(
            f"{where} did not answer a question about the {named} ({said(error)}): see that JetStream is enabled and "
            "that this login may use it."
        ) from error
    _check_usable(info, settings, where=where)
    return info


def standing_of(info: ConsumerInfo) -> Standing:
    """What was delivered and what of it was acknowledged."""
    floor, delivered = info.ack_floor, info.delivered
    return Standing(
        floor=floor.stream_seq if floor else 0,
        delivered=delivered.stream_seq if delivered else 0,
        out=info.num_ack_pending or 0,
        waiting=info.num_waiting or 0,
    )


async def horizon_of(client: Client, settings: NatsReceiverSettings) -> timedelta | None:
    """How long the stream keeps a message, if it has a limit and this login may know it."""
    from nats.errors import Error

    seconds = min(_BRIEFLY, settings.timeout.total_seconds())
    try:
        info = await client.jsm(timeout=seconds).stream_info(settings.stream)
    except (Error, TimeoutError):
        return None
    return timedelta(seconds=info.config.max_age) if info.config.max_age else None


def ack_wait_of(config: ConsumerConfig) -> float:
    """Seconds in which the server must hear of a message in hand. A backoff takes the place of `ack_wait`."""
    return float(min([config.ack_wait or _ACK_WAIT, *(config.backoff or ())]))


async def _declared(manager: JetStreamManager, settings: NatsReceiverSettings) -> ConsumerInfo:
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    return await manager.add_consumer(
        settings.stream,
        ConsumerConfig(
            durable_name=settings.durable,
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=settings.ack_wait.total_seconds(),
            max_deliver=-1,
            filter_subject=settings.subject,
        ),
    )


def _check_usable(info: ConsumerInfo, settings: NatsReceiverSettings, *, where: str) -> None:
    from nats.js.api import AckPolicy

    config, named = info.config, f"{where} has the {_named(settings)},"
    if config.deliver_subject:
        raise TransportUnavailable(f"{named} which is pushed to; delete it, or give another durable.")
    if config.ack_policy != AckPolicy.EXPLICIT:
        raise TransportUnavailable(f"{named} whose messages are not acknowledged one by one; set ack_policy explicit.")
    filters = sorted(config.filter_subjects or ([config.filter_subject] if config.filter_subject else []))
    if settings.subject is not None and filters != [settings.subject]:
        raise TransportUnavailable(f"{named} which reads other subjects; correct the option subject, or delete it.")


def _named(settings: NatsReceiverSettings) -> str:
    return f"consumer {settings.durable!r} of the stream {settings.stream!r}"
