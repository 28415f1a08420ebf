"""Checks of a broker. Little of its settings can be read over MQTT, so the findings also list what to look at."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pillarbox.brokers.checks import report_info, report_warning, sort_findings
from pillarbox.brokers.mqtt.client import ClientLoop
from pillarbox.brokers.mqtt.connection import start_session
from pillarbox.brokers.mqtt.settings import MqttSettings
from pillarbox.brokers.settings import Login
from pillarbox.contracts.finding import Finding
from pillarbox.hosts import HostList
from pillarbox.message import MAX_PAYLOAD

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties

__all__ = ["check_broker"]

_DROPPED: Final = "$SYS/broker/publish/messages/dropped"
_VERSION: Final = "$SYS/broker/version"


async def check_broker(settings: MqttSettings, *, login: Login, tls: ssl.SSLContext | None) -> Sequence[Finding]:
    """Return findings, worst first; raise `TransportUnavailable` if the broker cannot be reached."""
    client_loop, connack = await start_session(settings, hosts=HostList(settings.endpoint.hosts), login=login, tls=tls)
    try:
        async with asyncio.timeout(settings.timeout.total_seconds()):
            statistics = await _read_statistics(client_loop)
    except TimeoutError:
        statistics = {}
    finally:
        client_loop.close("we have seen enough")
    return sort_findings(
        [
            *_check_dropped(statistics),
            *_check_subscribers(settings),
            *_check_packet_size(connack),
            *_list_unreadable(statistics),
        ]
    )


async def _read_statistics(client_loop: ClientLoop) -> Mapping[str, str]:
    """Return what the broker publishes about itself, by topic."""
    statistics: dict[str, str] = {}
    done = asyncio.Event()

    def on_message(_client: object, _data: object, message: MQTTMessage) -> None:
        statistics[message.topic] = message.payload.decode(errors="replace")

    client = client_loop.client
    client.on_message = on_message
    # The broker sends its retained messages before it answers a ping, so the pong marks their end.
    client.on_subscribe = lambda *_: client.ping()
    client.on_pong = done.set
    client_loop.on_closed = lambda _reason: done.set()
    client.subscribe([(_VERSION, 0), (_DROPPED, 0)])
    await done.wait()
    return statistics


def _check_dropped(statistics: Mapping[str, str]) -> Iterator[Finding]:
    count = statistics.get(_DROPPED, "0")
    if count.isdigit() and int(count):
        yield report_warning(
            "mqtt.messages-dropped",
            what=f"The broker has dropped {count} messages since it started.",
            why="It acknowledges a message, and drops it for a session whose queue is full.",
            fix="Find the subscriber that is away or slow; raise max_queued_messages (Mosquitto: 1000 by default).",
        )


def _check_subscribers(settings: MqttSettings) -> Iterator[Finding]:
    if settings.no_subscribers == "accept":
        yield report_warning(
            "mqtt.no-subscribers-accepted",
            what="The option no_subscribers is accept.",
            why="What is sent while nobody subscribes counts as delivered and is gone.",
            fix="Set no_subscribers=refuse, and let subscribers keep their session while they are away.",
        )
    if settings.qos == 2:
        yield report_warning(
            "mqtt.subscribers-unseen",
            what="The option qos is 2, and with it Mosquitto does not say that nobody subscribes.",
            why="What is sent while nobody subscribes counts as delivered and is gone.",
            fix="Set qos=1 and let receivers deduplicate by the id, or make sure that sessions are kept.",
        )


def _check_packet_size(connack: Properties | None) -> Iterator[Finding]:
    max_packet: int | None = getattr(connack, "MaximumPacketSize", None)
    if max_packet is not None and max_packet <= MAX_PAYLOAD:
        yield report_info(
            "mqtt.packet-limit",
            what=f"The broker takes packets of at most {max_packet} bytes.",
            why=f"Payloads can have {MAX_PAYLOAD} bytes, and a message that is larger than the limit is rejected.",
            fix="Raise max_packet_size on the broker, or lower max_payload of the outbox.",
        )


def _list_unreadable(statistics: Mapping[str, str]) -> Iterator[Finding]:
    yield report_info(
        "mqtt.persistence-unseen",
        what="Whether the broker keeps messages on disk cannot be seen over MQTT.",
        why="One that keeps them in memory loses what its sessions still wait for when it dies.",
        fix="Mosquitto: persistence true, and autosave_interval 1 with autosave_on_changes true, not every 30 min.",
    )
    yield report_info(
        "mqtt.sessions-unseen",
        what="Whether subscribers keep their session while they are away cannot be seen over MQTT.",
        why="Without one, a subscriber misses what is sent meanwhile, though it was acknowledged.",
        fix="Connect subscribers with clean_start=false, a fixed client id and a session expiry, and QoS 1 or 2.",
    )
    yield report_info(
        "mqtt.rights-unseen",
        what="Whether this login may publish to the topics cannot be seen without publishing.",
        why="A topic that is denied delays its own messages, which fail after their attempts.",
        fix="Allow them in the broker's access list, and look for 0x87 in the journal.",
    )
    if _VERSION not in statistics:
        yield report_info(
            "mqtt.statistics-unseen",
            what="The broker shows this login no statistics ($SYS/#).",
            why="Whether it has dropped messages cannot be seen.",
            fix="Allow this login to read $SYS/#, if the broker has it.",
        )
