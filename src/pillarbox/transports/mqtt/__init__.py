"""MQTT 5 as a destination. Needs the extra `mqtt`."""

from __future__ import annotations

from pillarbox.transports.mqtt.settings import MqttSettings, mqtt_settings
from pillarbox.transports.mqtt.transport import MqttTransport, mqtt_transport

__all__ = ["MqttSettings", "MqttTransport", "mqtt_settings", "mqtt_transport"]
