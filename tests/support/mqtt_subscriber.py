"""A subscriber that knows nothing of Pillarbox: paho alone, in its own thread."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

__all__ = ["Arrived", "Subscriber"]

_PATIENCE: Final = 30.0


class Arrived(msgspec.Struct, frozen=True):
    """A message as the broker passed it on."""

    topic: str
    body: bytes
    user_properties: Sequence[tuple[str, str]]
    content_type: str | None
    correlation_data: bytes | None
    qos: int
    retain: bool

    @property
    def headers(self) -> dict[str, str]:
        """As `pillarbox.cloudevents.read` takes them."""
        return {**dict(self.user_properties), **({"content-type": self.content_type} if self.content_type else {})}


class Subscriber:
    """Collects what arrives. With a name it keeps its session while it is away. Its methods block until done."""

    def __init__(self, port: int, *, name: str | None = None) -> None:
        self.arrived: list[Arrived] = []
        self._marks: set[bytes] = set()
        self._changed = threading.Condition()
        self._done: set[int | str] = set()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name or "", protocol=paho.MQTTv5)
        self._client.on_message = self._on_message
        self._client.on_connect = lambda *_: self._note("connected")
        self._client.on_subscribe = lambda _c, _d, mid, *_: self._note(mid)
        self._client.on_unsubscribe = lambda _c, _d, mid, *_: self._note(mid)
        self._mark = f"mark/{secrets.token_hex(6)}"
        self._port = port
        self._name = name

    def __enter__(self) -> Self:
        session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = 600 if self._name else 0
        self._client.connect("127.0.0.1", self._port, clean_start=self._name is None, properties=session)
        self._client.loop_start()
        self._wait(lambda: "connected" in self._done)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, *topics: str) -> None:
        """Return when the broker has taken note."""
        _, mid = self._client.subscribe([(topic, 1) for topic in topics])
        self._wait(lambda: mid in self._done)

    def unsubscribe(self, *topics: str) -> None:
        _, mid = self._client.unsubscribe(list(topics))
        self._wait(lambda: mid in self._done)

    def caught_up(self) -> Sequence[Arrived]:
        """All that arrived. What the broker took before now is in it: it passes messages on in order."""
        mark = secrets.token_bytes(8)
        self.subscribe(self._mark)
        self._client.publish(self._mark, mark, qos=1)
        self._wait(lambda: mark in self._marks)
        return list(self.arrived)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            if message.topic == self._mark:
                self._marks.add(bytes(message.payload))
            else:
                self.arrived.append(_arrived(message))
            self._changed.notify_all()

    def _note(self, what: int | str) -> None:
        with self._changed:
            self._done.add(what)
            self._changed.notify_all()

    def _wait(self, true: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(true, _PATIENCE), "the broker did not answer the subscriber"


def _arrived(message: paho.MQTTMessage) -> Arrived:
    properties = message.properties
    return Arrived(
        message.topic,
        bytes(message.payload),
        tuple(getattr(properties, "UserProperty", ())),
        getattr(properties, "ContentType", None),
        getattr(properties, "CorrelationData", None),
        message.qos,
        bool(message.retain),
    )
