"""MQTT for tests: where to look for a broker, and how to run a private one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.private_mosquitto import PrivateMosquitto
from tests.support.servers import ServerMissing, missing

__all__ = ["MqttServer", "private_mosquitto"]


@dataclass(frozen=True, slots=True)
class MqttServer:
    """How tests find an MQTT 5 broker."""

    port: int = 1883
    name: str = "MQTT broker"
    variable: str = "MQTT_URL"
    remedy: str = "install Mosquitto"

    def usual_urls(self) -> Sequence[str]:
        return [f"mqtt://127.0.0.1:{self.port}"]

    def refusal(self, url: str) -> str | None:
        """Usable means that it speaks MQTT 5 and lets us in."""
        parts = urlsplit(url)
        answers: list[str] = []
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.connect_timeout = 2
        client.username_pw_set(parts.username, parts.password)
        client.on_connect = lambda *a: answers.append("" if not a[3].is_failure else str(a[3]))
        try:
            client.connect(parts.hostname or "127.0.0.1", parts.port or self.port)
            for _ in range(20):
                if answers or client.loop(0.1):
                    break
        except OSError as error:
            return str(error)
        finally:
            client.disconnect()
        return (answers or ["it does not answer"])[0] or None

    def start_private(self) -> PrivateMosquitto:
        return PrivateMosquitto.started()


def private_mosquitto(*settings: str, files: dict[str, str] | None = None) -> PrivateMosquitto:
    """A broker that the test may stop, kill and start again; or the end of the test for want of one."""
    try:
        return PrivateMosquitto.started(*settings, files=files)
    except ServerMissing as reason:
        missing(MqttServer(), reason=str(reason), environ=os.environ)
