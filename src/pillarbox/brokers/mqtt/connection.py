"""Connection to an MQTT broker, from its CONNACK to its end. It never reconnects: the transport opens another one.

It does not send a message again either. That is the relay's task.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from pillarbox.brokers.errors import map_connect_error
from pillarbox.brokers.mqtt.client import ClientLoop, MqttClient, PackedProperties, connect_socket
from pillarbox.brokers.mqtt.encoding import EncodedMessage
from pillarbox.brokers.mqtt.errors import AcknowledgementPolicy, advise_on_refused_connect, to_outcome
from pillarbox.brokers.mqtt.settings import MqttSettings
from pillarbox.brokers.send_batch import DELIVERED, SendBatch
from pillarbox.brokers.settings import Login
from pillarbox.contracts.transport import Outcome
from pillarbox.errors import TransportUnavailable
from pillarbox.hosts import HostList, connect_first

if TYPE_CHECKING:
    from paho.mqtt.client import Client, ConnectFlags
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["MqttConnection", "connect", "start_session"]


Hosts = HostList[tuple[str, int]]


async def connect(settings: MqttSettings, *, hosts: Hosts, login: Login, tls: ssl.SSLContext | None) -> MqttConnection:
    """Connect to the broker, within the limits of its CONNACK; raise `TransportUnavailable` if that fails."""
    client_loop, connack = await start_session(settings, hosts=hosts, login=login, tls=tls)
    try:
        return MqttConnection(
            client_loop,
            limits=_build_limits(connack, settings),
            policy=AcknowledgementPolicy(where=settings.display_url, no_subscribers=settings.no_subscribers),
        )
    except BaseException:
        client_loop.close("we gave up")
        raise


async def start_session(
    settings: MqttSettings, *, hosts: Hosts, login: Login, tls: ssl.SSLContext | None
) -> tuple[ClientLoop, Properties | None]:
    """Connect to the first broker that accepts; return the client and the properties of the CONNACK.

    The session starts clean and ends with the connection, so neither broker nor client has anything left to send again.
    """

    async def start_at(host: tuple[str, int], seconds: float) -> tuple[ClientLoop, Properties | None]:
        with _map_connect_errors(settings.display_url, seconds):
            async with asyncio.timeout(seconds):
                sock = await connect_socket(*host, tls=tls, seconds=seconds)
                # A random id: two connections with the same id would close each other.
                client = MqttClient(client_id=f"{settings.client_id}-{secrets.token_hex(8)}", sock=sock)
                if login.user or login.password:
                    client.username_pw_set(login.user, login.password)
                client_loop = ClientLoop(client)
                return client_loop, await _exchange_connect(client_loop, *host, settings=settings)

    return await connect_first(hosts, start_at, seconds=settings.timeout.total_seconds(), errors=TransportUnavailable)


async def _exchange_connect(
    client_loop: ClientLoop, host: str, port: int, *, settings: MqttSettings
) -> Properties | None:
    """Send CONNECT and return the properties of the CONNACK."""
    where = settings.display_url
    connack: asyncio.Future[tuple[ReasonCode, Properties | None]] = asyncio.get_running_loop().create_future()

    def on_connect(
        _client: Client, _data: object, _flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if not connack.done():
            connack.set_result((reason, properties))

    def on_closed(reason: str) -> None:
        if not connack.done():
            text = f"{where} hung up while we connected ({reason}): check that MQTT 5 is spoken there."
            connack.set_exception(TransportUnavailable(text))

    client_loop.client.on_connect = on_connect
    client_loop.on_closed = on_closed
    try:
        client_loop.client.connect(host, port, math.ceil(settings.keepalive.total_seconds()), clean_start=True)
        reason, properties = await connack
        if reason.is_failure:
            code = reason.value
            raise TransportUnavailable(
                f"{where} refused the connection ({reason}, 0x{code:02x}); {advise_on_refused_connect(code)}."
            )
        if client_loop.client.socket() is None:
            raise TransportUnavailable(f"{where} hung up as soon as we were connected.")
    except BaseException:
        client_loop.close("we gave up")
        raise
    client_loop.start_keepalive()
    return properties


@contextmanager
def _map_connect_errors(where: str, seconds: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TransportUnavailable(f"{where} did not answer within {seconds:g} s while we connected.") from error
    except OSError as error:
        raise map_connect_error(error, where) from error


class _SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection, from our settings and the broker's CONNACK."""

    seconds: float
    """Timeout of an acknowledgement, from when its message is written."""
    qos: int
    retain: bool
    window: int
    """Limit of messages in flight: ours or the broker's Receive Maximum, whichever is less."""
    max_packet: int | None = None
    """The broker's Maximum Packet Size in bytes."""


def _build_limits(connack: Properties | None, settings: MqttSettings) -> _SessionLimits:
    # A property that the broker left out means that it has no limit.
    if getattr(connack, "MaximumQoS", 2) < settings.qos:
        raise TransportUnavailable(
            f"{settings.display_url} takes no messages of QoS {settings.qos}; set another qos, or change the broker."
        )
    if settings.retain and not getattr(connack, "RetainAvailable", 1):
        raise TransportUnavailable(
            f"{settings.display_url} retains no messages; set retain=false, or change the broker."
        )
    return _SessionLimits(
        seconds=settings.timeout.total_seconds(),
        qos=settings.qos,
        retain=settings.retain,
        window=min(settings.window, getattr(connack, "ReceiveMaximum", 65_535)),
        max_packet=getattr(connack, "MaximumPacketSize", None),
    )


class MqttConnection:
    """Sends messages and returns their outcomes. The wait for a place in the window is not part of the timeout.

    When a message is not acknowledged in time, the connection is retired: the place in the window stays occupied, and
    a connection that lost one answer may lose others. It closes when everything in flight is acknowledged or too late.
    """

    def __init__(self, client_loop: ClientLoop, *, limits: _SessionLimits, policy: AcknowledgementPolicy) -> None:
        self.is_open = True
        """False once it is retired or closed: it takes nothing more to send."""
        self.is_closed = False
        self._client_loop = client_loop
        self._limits = limits
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[SendBatch[Outcome], int, EncodedMessage]] = deque()
        """Messages to be written, with their send and the index in it."""
        self._in_flight: dict[int, tuple[SendBatch[Outcome], int, str, float]] = {}
        """By packet identifier: the send, the index in it, the topic and the time of writing. Oldest first."""
        self._pings: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        client_loop.client.on_acknowledged = self._on_acknowledged
        client_loop.client.on_pong = self._on_pong
        client_loop.on_read = self._fill_window
        client_loop.on_closed = self._on_closed

    async def send(self, messages: Sequence[EncodedMessage]) -> Sequence[Outcome]:
        """Return one outcome per message. A message is `lost` if the connection broke or it was never written."""
        batch: SendBatch[Outcome] = SendBatch([None] * len(messages))
        max_packet = self._limits.max_packet
        for index, message in enumerate(messages):
            if max_packet is not None and message.size > max_packet:
                batch.answer(index, self._build_rejection(message, max_packet))
            else:
                self._queue.append((batch, index, message))
        self._fill_window()
        await batch.done
        return [outcome for outcome in batch.answers if outcome is not None]

    async def ping(self) -> None:
        """Wait for a round trip to the broker; raise `TransportUnavailable` if it takes too long."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self._pings.append(pong)
        self._client_loop.client.ping()
        try:
            async with asyncio.timeout(self._limits.seconds):
                await pong
        except TimeoutError:
            self._retire()
            raise TransportUnavailable(
                f"{self._policy.where} did not answer a ping within {self._limits.seconds:g} s."
            ) from None
        finally:
            if pong in self._pings:
                self._pings.remove(pong)

    def close(self) -> None:
        """Send DISCONNECT and close the socket."""
        self._on_closed("we closed it")
        self._client_loop.client.disconnect()
        self._client_loop.flush()
        self._client_loop.close("we closed it")

    # --- the window ---

    def _fill_window(self) -> None:
        """Write as many queued messages as the window has places for."""
        limits, client, in_flight, queue = self._limits, self._client_loop.client, self._in_flight, self._queue
        now = self._loop.time()
        while queue and len(in_flight) < limits.window and self.is_open:
            batch, index, message = queue.popleft()
            if batch.done.done():  # the send was cancelled
                continue
            properties = PackedProperties(message.properties)
            info = client.publish(message.topic, message.body, limits.qos, limits.retain, properties)
            if info.rc:
                batch.answer(index, self._build_lost_outcome("it took no more"))
                self._retire()
            else:
                in_flight[info.mid] = batch, index, message.topic, now
        if in_flight and self._timer is None:
            self._timer = self._loop.call_later(limits.seconds, self._expire)

    def _on_acknowledged(self, mid: int, code: int, text: str | None) -> None:
        entry = self._in_flight.pop(mid, None)
        if entry is not None:
            batch, index, topic, _ = entry
            batch.answer(index, DELIVERED if not code else to_outcome(code, self._policy, topic=topic, text=text))
            self._close_if_drained()

    def _expire(self) -> None:
        """Give up messages that were written too long ago."""
        self._timer = None
        oldest_valid = self._loop.time() - self._limits.seconds
        while self._in_flight:
            mid, (batch, index, _, written_at) = next(iter(self._in_flight.items()))
            if written_at > oldest_valid:
                self._timer = self._loop.call_at(written_at + self._limits.seconds, self._expire)
                break
            del self._in_flight[mid]
            error = f"no answer within {self._limits.seconds:g} s from {self._policy.where}"
            batch.answer(index, Outcome(delivered=False, error=error, unanswered=True, not_now=True))
            self._retire()
        self._close_if_drained()

    # --- the end ---

    def _retire(self) -> None:
        """Write nothing more. Messages in flight may still be acknowledged."""
        self.is_open = False
        while self._queue:
            batch, index, _ = self._queue.popleft()
            batch.answer(index, self._build_lost_outcome("it stopped answering"))

    def _close_if_drained(self) -> None:
        if not self.is_open and not self._in_flight:
            self._client_loop.close("it stopped answering")

    def _on_closed(self, reason: str) -> None:
        self.is_open, self.is_closed = False, True
        if self._timer is not None:
            self._timer.cancel()
        lost = self._build_lost_outcome(reason)
        for batch, index, _, _ in self._in_flight.values():
            batch.answer(index, lost)
        for batch, index, _ in self._queue:
            batch.answer(index, lost)
        self._in_flight.clear()
        self._queue.clear()
        for pong in self._pings:
            if not pong.done():
                pong.set_exception(TransportUnavailable(lost.error or ""))

    def _on_pong(self) -> None:
        for pong in self._pings:
            if not pong.done():
                pong.set_result(None)

    # --- outcomes ---

    def _build_lost_outcome(self, reason: str) -> Outcome:
        error = f"The connection to {self._policy.where} ended before the message was acknowledged ({reason})."
        return Outcome(delivered=False, error=error, lost=True)

    def _build_rejection(self, message: EncodedMessage, max_packet: int) -> Outcome:
        error = f"The message is a packet of {message.size} bytes, and {self._policy.where} takes at most {max_packet}."
        return Outcome(delivered=False, error=error, rejected=True)
