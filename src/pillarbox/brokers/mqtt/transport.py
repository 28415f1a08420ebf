"""MQTT transport: messages to an MQTT 5 broker, acknowledged one by one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from pillarbox.brokers.errors import not_open_error
from pillarbox.brokers.mqtt.checks import check_broker
from pillarbox.brokers.mqtt.connection import MqttConnection, connect
from pillarbox.brokers.mqtt.encoding import TOPIC_RULES, EncodedMessage, build_encoder
from pillarbox.brokers.mqtt.settings import MqttSettings, mqtt_settings
from pillarbox.brokers.send_batch import encode_each
from pillarbox.brokers.settings import TransportUrl
from pillarbox.brokers.templates import compile_template, describe_address
from pillarbox.brokers.tls import build_tls_context
from pillarbox.contracts.finding import Finding
from pillarbox.contracts.transport import Outcome, TransportFeatures
from pillarbox.errors import TransportUnavailable
from pillarbox.hosts import HostList
from pillarbox.message import Message
from pillarbox.tasks import cancel_all

__all__ = ["MqttTransport", "mqtt_transport"]


class MqttTransport:
    """Publishes messages as CloudEvents with QoS 1 or 2.

    Delivered means that the broker acknowledged the message with a reason code that is no failure: it has passed the
    message on to its subscribers, or keeps it for their sessions. The login is read by the constructor.
    """

    def __init__(self, settings: MqttSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name="mqtt", addresses="{" in settings.topic, ping_is_witness=True)
        self.settings = settings
        self._hosts = HostList(settings.endpoint.hosts)
        self._login = settings.login(settings.endpoint, environ=environ)
        self._tls = (
            build_tls_context(settings, transport="mqtt", where=settings.display_url) if settings.is_encrypted else None
        )
        topic = compile_template(settings.topic, option="topic", transport="mqtt", rules=TOPIC_RULES)
        self._topic = topic
        self._encode = build_encoder(topic, mode=settings.mode)
        # Not a `ReconnectingConnection`: a connection that lost one answer is replaced, but the messages that it has in
        # flight may still be answered, so it must not be closed at once.
        self._connections: list[MqttConnection] = []
        """The last one is in use. Those before it wait for their last answers."""
        self._connecting: asyncio.Task[MqttConnection] | None = None
        self._is_open = False

    def __repr__(self) -> str:
        return f"MqttTransport({self.settings!r})"

    async def open(self) -> None:
        self._is_open = True
        try:
            await self._get_connection()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._is_open = False
        if self._connecting is not None:
            await cancel_all([self._connecting])
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    async def ping(self) -> None:
        await (await self._get_connection()).ping()

    def get_address(self, message: Message) -> str | None:
        return describe_address(message, topic=self._topic)

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        encoded = encode_each(messages, self._encode)
        sendable = [one for one in encoded if isinstance(one, EncodedMessage)]
        connection = await self._get_connection()
        outcomes = await connection.send(sendable) if sendable else ()
        if outcomes and all(outcome.lost for outcome in outcomes):
            raise TransportUnavailable(outcomes[0].error or "", mid_send=True)
        if len(outcomes) == len(encoded):
            return outcomes
        remaining = iter(outcomes)
        return [next(remaining) if isinstance(one, EncodedMessage) else one for one in encoded]

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:  # noqa: ARG002 - topics have no settings here
        return await check_broker(self.settings, login=self._login, tls=self._tls)

    async def _get_connection(self) -> MqttConnection:
        """Return the live connection or open one. All callers share one attempt and its failure."""
        if not self._is_open:
            raise not_open_error("mqtt transport")
        if self._connections and self._connections[-1].is_open:
            return self._connections[-1]
        if self._connecting is None:
            self._connecting = asyncio.create_task(
                connect(self.settings, hosts=self._hosts, login=self._login, tls=self._tls)
            )
            self._connecting.add_done_callback(self._on_connected)
        connecting = self._connecting
        try:
            # Shielded: a caller that is cancelled does not end the attempt for the others.
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and not _is_being_cancelled():
                raise TransportUnavailable("The mqtt transport was closed while it connected.") from None
            raise

    def _on_connected(self, connecting: asyncio.Task[MqttConnection]) -> None:
        self._connecting = None
        if not connecting.cancelled() and connecting.exception() is None:
            live = [connection for connection in self._connections if not connection.is_closed]
            self._connections = [*live, connecting.result()]


def _is_being_cancelled() -> bool:
    """Return True if the current task is cancelled, and not only the task that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def mqtt_transport(url: TransportUrl) -> MqttTransport:
    """Build the transport for an `mqtt:` or `mqtts:` URL."""
    return MqttTransport(mqtt_settings(url))
