"""From a URL and options to the RabbitMQ transport, or to a sentence that says what is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.rabbitmq import RabbitmqReceiverSettings, RabbitmqTransport
from pillarbox.brokers.rabbitmq.receiver import build_queue_arguments
from pillarbox.errors import ConfigError

CANARY = "canary-0123456789"


def made(url: str, /, **options: object) -> RabbitmqTransport:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, RabbitmqTransport)
    return transport


def refused(url: str, /, **options: object) -> str:
    with pytest.raises(ConfigError) as error:
        transport_from_url(url, options=options)
    return str(error.value)


@pytest.mark.parametrize(
    ("url", "vhost"),
    [
        ("amqp://h", "/"),
        ("amqp://h/", "/"),
        ("amqp://h/%2F", "/"),
        ("amqp://h/shop", "shop"),
        ("amqp://h/a%2Fb", "a/b"),
    ],
)
def test_the_path_is_the_virtual_host(url: str, vhost: str) -> None:
    assert made(url)._connector.servers.order()[0].vhost == vhost


def test_ports_are_the_usual_ones() -> None:
    assert made("amqp://h")._connector.servers.order()[0].port == 5672
    assert made("amqps://h")._connector.servers.order()[0].port == 5671
    assert made("amqps://h")._connector.servers.order()[0].tls is not None
    assert [(place.host, place.port) for place in made("amqp://a,b:7/")._connector.servers.order()] == [
        ("a", 5672),
        ("b", 7),
    ]


def test_without_a_login_it_is_guests() -> None:
    login = made("amqp://h")._connector.servers.order()[0].login
    assert (login.user, login.password) == ("guest", "guest")


def test_a_login_may_be_in_the_url_or_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBIT_PASSWORD", CANARY)
    for transport in (
        made(f"amqp://shop:{CANARY}@h"),
        made("amqp://h", user="shop", password="env:RABBIT_PASSWORD"),
        made("amqp://shop@h?password=env:RABBIT_PASSWORD"),
    ):
        login = transport._connector.servers.order()[0].login
        assert (login.user, login.password) == ("shop", CANARY)
    assert "leave one" in refused(f"amqp://shop:{CANARY}@h", password="x")


def test_nothing_that_is_shown_holds_the_password() -> None:
    transport = made(f"amqp://shop:{CANARY}@h/shop", management=f"http://m:{CANARY}@h")
    for shown in (
        repr(transport),
        repr(transport.settings),
        repr(transport._connector.servers),
        transport._connector.where,
    ):
        assert CANARY not in shown
    assert CANARY not in refused(f"amqp://shop:{CANARY}@h", colour="red")
    assert CANARY not in refused(f"amqp://shop:{CANARY}@")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colour": "red"}, "no option 'colour'"),
        ({"exchange": "{colour}"}, "{colour}"),
        ({"routing_key": "{topic"}, "brace"),
        ({"exchange": "", "declare": "true"}, "nothing to declare"),
        ({"max_payload": "0"}, "max_payload"),
        ({"exchange": "ž" * 128}, "255 bytes"),
        ({"timeout": "0s"}, "timeout"),
        ({"auth": "external"}, "client_certificate"),
        ({"auth": "magic"}, "plain or external"),
        ({"verify": "false"}, "insecure=true"),
        ({"management": "ftp://h"}, "http:// or https://"),
        ({"url": "amqp://other"}, "given twice"),
    ],
)
def test_wrong_options_are_said(options: dict[str, object], said: str) -> None:
    assert said in refused("amqp://h", **options)


def test_the_largest_payload_is_a_feature() -> None:
    assert made("amqp://h").features.max_payload is None
    assert made("amqp://h", max_payload=1000).features.max_payload == 1000


def test_a_missing_driver_names_its_command() -> None:
    code = (
        "import sys; sys.modules['pamqp'] = None\n"
        "from pillarbox.errors import MissingExtra\n"
        "from pillarbox.brokers.factory import transport_from_url\n"
        "try: transport_from_url('amqp://h')\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "pillarbox[rabbitmq]"' in done.stdout


@pytest.mark.parametrize(
    ("kind", "version", "limit"),
    [("quorum", "3.13.7", None), ("quorum", "4.0.1", -1), ("quorum", "12.1", -1), ("quorum", "", None),
     ("classic", "4.1.0", None)],
)  # fmt: skip
def test_only_where_the_broker_would_drop_messages_it_is_told_not_to(
    kind: str, version: str, limit: int | None
) -> None:
    settings = RabbitmqReceiverSettings(url="amqp://x", queue="q", queue_type=kind)  # type: ignore[arg-type]
    arguments = build_queue_arguments(settings, version=version)
    assert arguments["x-queue-type"] == kind
    assert arguments.get("x-delivery-limit") == limit
