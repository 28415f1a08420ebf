"""The driver, made to tell the truth about acknowledgements."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Literal

from pillarbox.errors import MissingExtra

try:
    from paho.mqtt.client import Client, MQTTMessage, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
except ModuleNotFoundError as error:
    raise MissingExtra("paho-mqtt", extra="mqtt", needed_for="The mqtt transport") from error

__all__ = ["MqttClient", "Packed"]

_OK = MQTTErrorCode.MQTT_ERR_SUCCESS


class Packed(Properties):
    """Properties that are packed already."""

    def __init__(self, packed: bytes) -> None:
        object.__setattr__(self, "packed", packed)

    def pack(self) -> bytes:
        packed: bytes = object.__getattribute__(self, "packed")
        return packed


class MqttClient(Client):
    """paho's client for one connection over a given socket, which reads acknowledgements itself.

    Left to itself, paho 2.2 says "published, success" of a QoS 2 message that the broker refused in its PUBREC, hangs
    up when a PUBACK carries a reason that the specification lists elsewhere (Mosquitto's "packet too large"), and
    spends a third of a message's time on objects for reasons that are nearly always "success".
    """

    def __init__(self, *, client_id: str, sock: socket.socket) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTv5, reconnect_on_failure=False)
        self.max_inflight_messages = 0  # the link keeps to the broker's Receive Maximum, which paho does not
        self.on_acknowledged: Callable[[int, int, str | None], None] = _ignored
        """Called with the packet identifier, the reason code, and what the broker said to it."""
        self.on_pong: Callable[[], None] = _nothing
        self._given = sock
        self._received: dict[int, int] = {}
        """QoS 2: the packet identifiers that the broker has received, and the reason it gave."""

    def ping(self) -> None:
        """Ask whether the connection stands; `on_pong` answers."""
        self._send_pingreq()

    def hang_up(self) -> None:
        """Close the socket, whatever still waits to be written."""
        self._sock_close()

    def _create_socket(self) -> socket.socket:
        return self._given

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        mid, code, said = self._acknowledgement()
        message = self._out_messages.get(mid)
        if message is None:
            return _OK
        if cmd == "PUBACK" and message.qos == 1:
            self._settle(message, code, said)
        elif cmd == "PUBCOMP" and mid in self._received:
            received = self._received.pop(mid)
            self._settle(message, code or received, said)
        return _OK

    def _handle_pubrec(self) -> MQTTErrorCode:
        mid, code, said = self._acknowledgement()
        message = self._out_messages.get(mid)
        if message is not None and message.qos == 2:
            if code >= 0x80:  # the exchange ends here: no PUBREL follows
                self._settle(message, code, said)
                return _OK
            self._received[mid] = code
        return self._send_pubrel(mid)

    def _handle_pingresp(self) -> MQTTErrorCode:
        answer = super()._handle_pingresp()
        self.on_pong()
        return answer

    def _settle(self, message: MQTTMessage, code: int, said: str | None) -> None:
        del self._out_messages[message.mid]
        self._inflight_messages -= 1
        self.on_acknowledged(message.mid, code, said)

    def _acknowledgement(self) -> tuple[int, int, str | None]:
        """The packet identifier, the reason code, which may be left out for success, and the reason in words."""
        packet = self._in_packet["packet"]
        if len(packet) <= 3:
            return int.from_bytes(packet[:2]), packet[2] if len(packet) > 2 else 0, None
        properties = Properties(PacketTypes.PUBACK)  # type: ignore[no-untyped-call]
        properties.unpack(bytes(packet[3:]))  # type: ignore[no-untyped-call]
        return int.from_bytes(packet[:2]), packet[2], getattr(properties, "ReasonString", None)


def _ignored(mid: int, code: int, said: str | None) -> None:
    """Nobody asked."""


def _nothing() -> None:
    """Nobody asked."""
