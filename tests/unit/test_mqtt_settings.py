"""The MQTT transport's options, from a URL or a table."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.mqtt import MqttSettings, MqttTransport
from pillarbox.errors import ConfigError

CANARY = "canary-0123456789"


def mqtt(url: str, **options: object) -> MqttTransport:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, MqttTransport)
    return transport


def refused(url: str, **options: object) -> str:
    with pytest.raises(ConfigError) as error:
        mqtt(url, **options)
    return str(error.value)


def test_all_options_in_a_url() -> None:
    settings = mqtt(
        "mqtts://user@a.example,b.example:1884?topic=shop/{topic}&qos=2&retain=true&no_subscribers=accept&client_id=shop"
        "&keepalive=10s&window=7&mode=structured&timeout=3s"
    ).settings
    assert settings.endpoint.hosts == (("a.example", 8883), ("b.example", 1884))
    assert (settings.topic, settings.qos, settings.retain, settings.no_subscribers) == (
        "shop/{topic}",
        2,
        True,
        "accept",
    )
    assert (settings.client_id, settings.keepalive, settings.window) == ("shop", timedelta(seconds=10), 7)


def test_the_defaults_are_the_safe_ones() -> None:
    settings = MqttSettings(url="mqtt://broker.example")
    assert settings.endpoint.hosts == (("broker.example", 1883),)
    assert (settings.qos, settings.retain, settings.no_subscribers, settings.topic) == (1, False, "refuse", "{topic}")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mqtt://broker?qos=0", "qos"),
        ("mqtt://broker?qos=3", "qos"),
        ("mqtt://broker?no_subscribers=ignore", "accept, refuse or reject"),
        ("mqtt://broker?topic={tenant}", "no such field"),
        ("mqtt://broker?window=0", "between 1 and 65535"),
        ("mqtt://broker?keepalive=0s", "between 1 s and 18 h"),
        ("mqtt://broker?client_id=a%20b", "client_id"),
        ("mqtt://broker?ca=/tmp/x", "mqtts://"),
        ("mqtt://broker?verify=false", "insecure=true"),
        ("mqtt://broker/orders", "path"),
        ("mqtt:", "needs a host"),
        ("mqtt://broker?declare=true", "no option 'declare'"),
        ("mqtt://broker?url=x", "twice"),
        ("mqtts://broker?ca=/no/such/file", "ca"),
    ],
)
def test_what_is_wrong_is_said(url: str, says: str) -> None:
    assert says in refused(url)


def test_the_password_is_shown_nowhere() -> None:
    transport = mqtt(f"mqtt://user:{CANARY}@broker.example")
    assert CANARY not in repr(transport) + repr(transport.settings) + repr(transport.__dict__)
    assert CANARY not in refused(f"mqtt://user:{CANARY}@broker.example?qos=9")
    assert "leave one" in refused(f"mqtt://user:{CANARY}@broker.example", password=CANARY)


def test_a_missing_driver_names_its_command() -> None:
    program = (
        "import sys; sys.modules['paho'] = None\n"
        "from pillarbox.errors import MissingExtra\n"
        "from pillarbox.brokers.factory import transport_from_url\n"
        "try: transport_from_url('mqtt://h')\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        'The mqtt transport needs the package paho-mqtt, which is not installed: run pip install "pillarbox[mqtt]".'
    )
