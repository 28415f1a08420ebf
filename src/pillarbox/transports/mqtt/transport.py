"""Messages to an MQTT 5 broker, acknowledged one by one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from pillarbox.errors import MessageRejected, TransportUnavailable
from pillarbox.message import Message
from pillarbox.protocols import Finding, Outcome, TransportFeatures
from pillarbox.transports.mqtt.connecting import linked
from pillarbox.transports.mqtt.inspecting import inspected
from pillarbox.transports.mqtt.link import Link
from pillarbox.transports.mqtt.publications import Publication, publisher
from pillarbox.transports.mqtt.settings import MqttSettings, mqtt_settings
from pillarbox.transports.templates import address
from pillarbox.transports.tls import tls_context
from pillarbox.transports.urls import TransportUrl

__all__ = ["MqttTransport", "mqtt_transport"]


class MqttTransport:
    """Publishes messages as CloudEvents with QoS 1 or 2.

    Delivered means that the broker acknowledged the message with a reason code that is no failure: it has it, and has
    passed it on to whoever subscribes, or keeps it for their sessions. The login is read when this is made.
    """

    def __init__(self, settings: MqttSettings, *, environ: Mapping[str, str] = os.environ) -> None:
        self.features = TransportFeatures(name="mqtt")
        self.settings = settings
        self._login = settings.login(settings.endpoint, environ=environ)
        self._tls = tls_context(settings, transport="mqtt", where=settings.shown) if settings.is_encrypted else None
        self._publish = publisher(address(settings.topic, option="topic", transport="mqtt"), mode=settings.mode)
        self._links: list[Link] = []
        """The last is in use; those before it wait for their last answers."""
        self._connecting: asyncio.Task[Link] | None = None
        self._is_open = False

    def __repr__(self) -> str:
        return f"MqttTransport({self.settings!r})"

    async def open(self) -> None:
        self._is_open = True
        try:
            await self._linked()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._is_open = False
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        for link in self._links:
            link.close()
        self._links.clear()

    async def ping(self) -> None:
        await (await self._linked()).ping()

    async def send(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        prepared = [self._prepared(message) for message in messages]
        publications = [one for one in prepared if isinstance(one, Publication)]
        link = await self._linked()
        answers = await link.send(publications) if publications else ()
        if answers and all(answer.lost for answer in answers):
            raise TransportUnavailable(answers[0].error or "", mid_send=True)
        if len(answers) == len(prepared):
            return answers
        each = iter(answers)
        return [next(each) if isinstance(one, Publication) else one for one in prepared]

    async def inspect(self, *, topics: Sequence[str]) -> Sequence[Finding]:  # noqa: ARG002 - topics have no settings here
        return await inspected(self.settings, login=self._login, tls=self._tls)

    def _prepared(self, message: Message) -> Publication | Outcome:
        try:
            return self._publish(message)
        except MessageRejected as error:
            return Outcome(delivered=False, error=str(error), rejected=True)

    async def _linked(self) -> Link:
        """The link, a new one if need be. All who need it meanwhile wait for the same one, and hear the same error."""
        if not self._is_open:
            raise TransportUnavailable("The mqtt transport is not open; call open() first.")
        if self._links and self._links[-1].is_open:
            return self._links[-1]
        if self._connecting is None:
            self._connecting = asyncio.create_task(linked(self.settings, login=self._login, tls=self._tls))
            self._connecting.add_done_callback(self._connected)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and not _is_cancelled():
                raise TransportUnavailable("The mqtt transport was closed while it connected.") from None
            raise

    def _connected(self, connecting: asyncio.Task[Link]) -> None:
        self._connecting = None
        if not connecting.cancelled() and connecting.exception() is None:
            self._links = [*(link for link in self._links if not link.is_over), connecting.result()]


def _is_cancelled() -> bool:
    """Whether it is the caller who was cancelled, and not what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def mqtt_transport(url: TransportUrl) -> MqttTransport:
    """For `mqtt:` and `mqtts:`."""
    return MqttTransport(mqtt_settings(url))
