"""What can be seen of a broker's settings over MQTT, which is little: it says so, and what to set."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pillarbox.limits import MAX_PAYLOAD
from pillarbox.protocols import Finding, Severity
from pillarbox.transports.endpoints import Login
from pillarbox.transports.mqtt.connecting import greeted
from pillarbox.transports.mqtt.settings import MqttSettings
from pillarbox.transports.mqtt.wire import Wire

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties

__all__ = ["inspected"]

_DROPPED: Final = "$SYS/broker/publish/messages/dropped"
_VERSION: Final = "$SYS/broker/version"


async def inspected(settings: MqttSettings, *, login: Login, tls: ssl.SSLContext | None) -> Sequence[Finding]:
    """Findings, worst first; `TransportUnavailable` when the broker cannot be reached."""
    wire, terms = await greeted(settings, login=login, tls=tls)
    try:
        async with asyncio.timeout(settings.timeout.total_seconds()):
            statistics = await _statistics(wire)
    except TimeoutError:
        statistics = {}
    finally:
        wire.hang_up("we have seen enough")
    found = [*_dropping(statistics), *_nobody(settings), *_limited(terms), *_unseen(statistics)]
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity), reverse=True)


async def _statistics(wire: Wire) -> Mapping[str, str]:
    """What the broker publishes about itself. It sends what it has before it answers the ping."""
    seen: dict[str, str] = {}
    answered = asyncio.Event()

    def arrived(_client: object, _data: object, message: MQTTMessage) -> None:
        seen[message.topic] = message.payload.decode(errors="replace")

    wire.client.on_message = arrived
    wire.client.on_subscribe = lambda *_: wire.client.ping()
    wire.client.on_pong = answered.set
    wire.on_broken = lambda _reason: answered.set()
    wire.client.subscribe([(_VERSION, 0), (_DROPPED, 0)])
    await answered.wait()
    return seen


def _dropping(statistics: Mapping[str, str]) -> Sequence[Finding]:
    count = statistics.get(_DROPPED, "0")
    if not count.isdigit() or not int(count):
        return ()
    return (
        Finding(
            code="mqtt.messages-dropped",
            severity=Severity.WARNING,
            what=f"The broker has dropped {count} messages since it started.",
            why="It acknowledges a message, and drops it for a session whose queue is full.",
            fix="Find the subscriber that is away or slow; raise max_queued_messages (Mosquitto: 1000 by default).",
        ),
    )


def _nobody(settings: MqttSettings) -> Sequence[Finding]:
    found = []
    if settings.no_subscribers == "accept":
        found.append(
            Finding(
                code="mqtt.no-subscribers-accepted",
                severity=Severity.WARNING,
                what="The option no_subscribers is accept.",
                why="What is sent while nobody subscribes counts as delivered and is gone.",
                fix="Set no_subscribers=refuse, and let subscribers keep their session while they are away.",
            )
        )
    if settings.qos == 2:
        found.append(
            Finding(
                code="mqtt.subscribers-unseen",
                severity=Severity.WARNING,
                what="The option qos is 2, and with it Mosquitto does not say that nobody subscribes.",
                why="What is sent while nobody subscribes counts as delivered and is gone.",
                fix="Set qos=1 and let receivers deduplicate by the id, or make sure that sessions are kept.",
            )
        )
    return found


def _limited(terms: Properties | None) -> Sequence[Finding]:
    most: int | None = getattr(terms, "MaximumPacketSize", None)
    if most is None or most > MAX_PAYLOAD:
        return ()
    return (
        Finding(
            code="mqtt.packet-limit",
            severity=Severity.INFO,
            what=f"The broker takes packets of at most {most} bytes.",
            why=f"Payloads can have {MAX_PAYLOAD} bytes, and a message that is larger than the limit is rejected.",
            fix="Raise max_packet_size on the broker, or lower max_payload of the outbox.",
        ),
    )


def _unseen(statistics: Mapping[str, str]) -> Sequence[Finding]:
    found = [
        Finding(
            code="mqtt.persistence-unseen",
            severity=Severity.INFO,
            what="Whether the broker keeps messages on disk cannot be seen over MQTT.",
            why="One that keeps them in memory loses what its sessions still wait for when it dies.",
            fix="Mosquitto: persistence true, and autosave_interval 1 with autosave_on_changes true, not every 30 min.",
        ),
        Finding(
            code="mqtt.sessions-unseen",
            severity=Severity.INFO,
            what="Whether subscribers keep their session while they are away cannot be seen over MQTT.",
            why="Without one, a subscriber misses what is sent meanwhile, though it was acknowledged.",
            fix="Connect subscribers with clean_start=false, a fixed client id and a session expiry, and QoS 1 or 2.",
        ),
        Finding(
            code="mqtt.rights-unseen",
            severity=Severity.INFO,
            what="Whether this login may publish to the topics cannot be seen without publishing.",
            why="A topic that is denied delays its own messages, which fail after their attempts.",
            fix="Allow them in the broker's access list, and look for 0x87 in the journal.",
        ),
    ]
    if _VERSION not in statistics:
        found.append(
            Finding(
                code="mqtt.statistics-unseen",
                severity=Severity.INFO,
                what="The broker shows this login no statistics ($SYS/#).",
                why="Whether it has dropped messages cannot be seen.",
                fix="Allow this login to read $SYS/#, if the broker has it.",
            )
        )
    return found
