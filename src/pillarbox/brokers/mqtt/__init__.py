"""MQTT 5 transport. Needs the extra `mqtt`."""

from __future__ import annotations

from pillarbox.brokers.mqtt.settings import MqttSettings, mqtt_settings
from pillarbox.brokers.mqtt.transport import MqttTransport, mqtt_transport

__all__ = ["MqttSettings", "MqttTransport", "mqtt_settings", "mqtt_transport"]
