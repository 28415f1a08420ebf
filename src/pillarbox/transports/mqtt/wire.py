"""Lets the event loop drive a client's socket: no thread, and every callback on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pillarbox.transports.mqtt.client import MqttClient
from pillarbox.transports.redaction import one_line

if TYPE_CHECKING:
    from paho.mqtt.client import Client, DisconnectFlags, SocketLike
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

__all__ = ["Wire"]


class Wire:
    """Reads when there is something to read, writes when there is something to write, keeps the connection alive."""

    def __init__(self, client: MqttClient) -> None:
        self.client = client
        self.on_read: Callable[[], None] = _nothing
        """Called when packets have been read."""
        self.on_broken: Callable[[str], None] = _nothing_more
        """Called once, with the reason, when the connection has ended."""
        self._loop = asyncio.get_running_loop()
        self._tick: asyncio.TimerHandle | None = None
        client.on_socket_open = lambda _client, _data, sock: self._loop.add_reader(sock, self._read, sock)
        client.on_socket_close = lambda _client, _data, sock: self._let_go(sock)
        client.on_socket_register_write = lambda _client, _data, sock: self._loop.add_writer(sock, self._write)
        client.on_socket_unregister_write = self._written
        client.on_disconnect = self._disconnected

    def flush(self) -> None:
        """Write what waits to be written, as far as the socket takes it."""
        self._write()

    def keep_alive(self) -> None:
        """From now on, until the connection ends."""
        self.client.loop_misc()
        if self.client.socket() is not None:
            self._tick = self._loop.call_later(self.client.keepalive / 4, self.keep_alive)

    def hang_up(self, reason: str) -> None:
        """End the connection."""
        self.client.hang_up()
        self._broken(reason)

    def _read(self, sock: SocketLike) -> None:
        self._guarded(self.client.loop_read)
        # What TLS has unpacked already does not make the socket readable again.
        while self.client.socket() is not None and getattr(sock, "pending", int)():
            self._guarded(self.client.loop_read)
        self.on_read()

    def _write(self) -> None:
        self._guarded(self.client.loop_write)

    def _guarded(self, step: Callable[[], Any]) -> None:
        """Whatever the driver cannot make sense of ends the connection, and not the loop's patience."""
        try:
            step()
        except Exception as error:
            self.hang_up(f"{type(error).__name__} in the driver")

    def _disconnected(
        self, _client: object, _data: object, flags: DisconnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if not flags.is_disconnect_packet_from_server:
            self._broken("it is closed")
            return
        said = getattr(properties, "ReasonString", None)
        self._broken(f"the broker said: {reason}" + (f", {one_line(said)}" if said else ""))

    def _broken(self, reason: str) -> None:
        if self._tick is not None:
            self._tick.cancel()
        broken, self.on_broken = self.on_broken, _nothing_more
        broken(reason)

    def _written(self, _client: Client, _data: object, sock: SocketLike) -> None:
        self._loop.remove_writer(sock)

    def _let_go(self, sock: SocketLike) -> None:
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)


def _nothing() -> None:
    """Nobody asked."""


def _nothing_more(reason: str) -> None:
    """It has ended already, or nobody asked."""
