"""paho's MQTT client in the event loop: over a socket that is connected here, without paho's own thread."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pillarbox.errors import MissingExtra
from pillarbox.redaction import redact_line

try:
    from paho.mqtt.client import Client, MQTTMessage, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
except ModuleNotFoundError as error:
    raise MissingExtra("paho-mqtt", extra="mqtt", needed_for="The mqtt transport") from error

if TYPE_CHECKING:
    from paho.mqtt.client import DisconnectFlags, SocketLike
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["ClientLoop", "MqttClient", "PackedProperties", "connect_socket"]

_OK: Final = MQTTErrorCode.MQTT_ERR_SUCCESS
_CHUNK: Final = 64 * 1024
_LARGEST_INCOMING: Final = 1024 * 1024
"""Bytes of a packet from the broker. A publisher gets acknowledgements, and the doctor statistics, which are small."""


class MqttClient(Client):
    """paho's client for one connection over a given socket, with its own handling of acknowledgements.

    paho 2.2 by itself reports success for a QoS 2 message that the broker refused in its PUBREC. It closes the
    connection when a PUBACK carries a reason that the specification lists elsewhere (Mosquitto's "packet too large").
    And it spends a third of a message's time on objects for reasons that are nearly always "success".
    """

    def __init__(self, *, client_id: str, sock: socket.socket) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTv5, reconnect_on_failure=False)
        # No limit here: `MqttConnection` keeps to the broker's Receive Maximum, which paho does not.
        self.max_inflight_messages = 0
        self.on_acknowledged: Callable[[int, int, str | None], None] = lambda _mid, _code, _text: None
        """Called with the packet identifier, the reason code, and the broker's reason string."""
        self.on_pong: Callable[[], None] = lambda: None
        self._given_socket = sock
        self._received: dict[int, int] = {}
        """QoS 2: the reason codes of PUBREC by packet identifier, until PUBCOMP."""

    def ping(self) -> None:
        """Send a PINGREQ; `on_pong` follows."""
        self._send_pingreq()

    def close_socket(self) -> None:
        """Close the socket at once, whatever is still to be written."""
        self._sock_close()

    # --- overridden methods of paho ---

    def _create_socket(self) -> socket.socket:
        return self._given_socket

    def _sock_recv(self, bufsize: int) -> bytes:
        # paho makes room for a whole packet at once, and its length is whatever the other side says.
        return super()._sock_recv(min(bufsize, _CHUNK))

    def _packet_read(self) -> MQTTErrorCode:
        result = super()._packet_read()
        is_too_large = self._in_packet["remaining_length"] > _LARGEST_INCOMING
        return MQTTErrorCode.MQTT_ERR_PROTOCOL if is_too_large else result

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        mid, code, text = self._parse_acknowledgement()
        message = self._out_messages.get(mid)
        if message is None:
            return _OK
        if cmd == "PUBACK" and message.qos == 1:
            self._acknowledge(message, code, text)
        elif cmd == "PUBCOMP" and mid in self._received:
            received = self._received.pop(mid)
            self._acknowledge(message, code or received, text)
        return _OK

    def _handle_pubrec(self) -> MQTTErrorCode:
        mid, code, text = self._parse_acknowledgement()
        message = self._out_messages.get(mid)
        if message is not None and message.qos == 2:
            if code >= 0x80:  # the exchange ends here, without a PUBREL
                self._acknowledge(message, code, text)
                return _OK
            self._received[mid] = code
        return self._send_pubrel(mid)

    def _handle_pingresp(self) -> MQTTErrorCode:
        result = super()._handle_pingresp()
        self.on_pong()
        return result

    def _acknowledge(self, message: MQTTMessage, code: int, text: str | None) -> None:
        del self._out_messages[message.mid]
        self._inflight_messages -= 1
        self.on_acknowledged(message.mid, code, text)

    def _parse_acknowledgement(self) -> tuple[int, int, str | None]:
        """Return packet identifier, reason code and reason string. The last two can be missing, for success."""
        packet = self._in_packet["packet"]
        if len(packet) <= 3:
            return int.from_bytes(packet[:2]), packet[2] if len(packet) > 2 else 0, None
        properties = Properties(PacketTypes.PUBACK)  # type: ignore[no-untyped-call]
        properties.unpack(bytes(packet[3:]))  # type: ignore[no-untyped-call]
        return int.from_bytes(packet[:2]), packet[2], getattr(properties, "ReasonString", None)


class PackedProperties(Properties):
    """Properties that are packed already."""

    def __init__(self, packed: bytes) -> None:
        # Not `super().__init__`, and past paho's `__setattr__`, which only knows names of MQTT properties.
        object.__setattr__(self, "packed", packed)

    def pack(self) -> bytes:
        packed: bytes = object.__getattribute__(self, "packed")
        return packed


class ClientLoop:
    """Runs a client in the event loop: reads, writes, and keeps the connection alive."""

    def __init__(self, client: MqttClient) -> None:
        self.client = client
        self.on_read: Callable[[], None] = lambda: None
        """Called after packets were read."""
        self.on_closed: Callable[[str], None] = _ignore
        """Called once, with the reason, when the connection has ended."""
        self._loop = asyncio.get_running_loop()
        self._keepalive_timer: asyncio.TimerHandle | None = None
        client.on_socket_open = lambda _client, _data, sock: self._loop.add_reader(sock, self._read, sock)
        client.on_socket_close = lambda _client, _data, sock: self._remove_socket(sock)
        client.on_socket_register_write = lambda _client, _data, sock: self._loop.add_writer(sock, self._write)
        client.on_socket_unregister_write = self._on_written
        client.on_disconnect = self._on_disconnect

    def flush(self) -> None:
        """Write as much as the socket takes."""
        self._write()

    def start_keepalive(self) -> None:
        """Keep the connection alive from now on, until it ends."""
        self.client.loop_misc()
        if self.client.socket() is not None:
            self._keepalive_timer = self._loop.call_later(self.client.keepalive / 4, self.start_keepalive)

    def close(self, reason: str) -> None:
        """End the connection."""
        self.client.close_socket()
        self._end(reason)

    def _read(self, sock: SocketLike) -> None:
        self._run(self.client.loop_read)
        # Bytes that TLS has decrypted already do not make the socket readable again.
        while self.client.socket() is not None and getattr(sock, "pending", int)():
            self._run(self.client.loop_read)
        self.on_read()

    def _write(self) -> None:
        self._run(self.client.loop_write)

    def _run(self, step: Callable[[], Any]) -> None:
        # paho raises many types for packets that it cannot parse. Each ends this connection, and never the event loop.
        try:
            step()
        except Exception as error:
            self.close(f"{type(error).__name__} in the driver")

    def _on_disconnect(
        self, _client: object, _data: object, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if not flags.is_disconnect_packet_from_server:
            self._end("it is closed")
            return
        text = getattr(properties, "ReasonString", None)
        self._end(f"the broker said: {reason}" + (f", {redact_line(text)}" if text else ""))

    def _end(self, reason: str) -> None:
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        on_closed, self.on_closed = self.on_closed, _ignore
        on_closed(reason)

    def _on_written(self, _client: Client, _data: object, sock: SocketLike) -> None:
        self._loop.remove_writer(sock)

    def _remove_socket(self, sock: SocketLike) -> None:
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)


def _ignore(_reason: str) -> None:
    """Do nothing: the connection has ended already."""


async def connect_socket(host: str, port: int, *, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers; raise `OSError` or `TimeoutError` if none does."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [(family, address) for family, _, _, _, address in infos]
        # Each address gets only its share of the time, so that one without an answer does not use up all of it.
        sock = await _connect_first(loop, addresses, seconds_each=seconds / len(infos))
        try:
            # A batch is many small packets, and each of them should be sent at once.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock if tls is None else await _start_tls(loop, sock, tls=tls, host=host)
        except BaseException:
            sock.close()
            raise


async def _connect_first(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[tuple[int, tuple[object, ...]]], *, seconds_each: float
) -> socket.socket:
    failure: OSError = OSError("the name has no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(seconds_each):
                await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _start_tls(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, *, tls: ssl.SSLContext, host: str
) -> ssl.SSLSocket:
    """Make the TLS handshake on the socket itself, because paho needs a socket and not asyncio's streams."""
    secure = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                await _wait_until_ready(loop.add_reader, loop.remove_reader, secure)
            except ssl.SSLWantWriteError:
                await _wait_until_ready(loop.add_writer, loop.remove_writer, secure)
            else:
                return secure
    except BaseException:
        secure.close()
        raise


async def _wait_until_ready(
    add: Callable[..., None], remove: Callable[[socket.socket], object], sock: socket.socket
) -> None:
    ready = asyncio.Event()
    add(sock, ready.set)
    try:
        await ready.wait()
    finally:
        remove(sock)
