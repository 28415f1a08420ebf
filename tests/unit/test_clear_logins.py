"""Logins that would go to a broker on another machine unencrypted, and the doctor's finding about them."""

from __future__ import annotations

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.operations.findings import find_clear_login

FAR = "broker.example"


@pytest.mark.parametrize(
    ("url", "way"),
    [
        (f"amqp://shop:hunter2@{FAR}", "amqps://"),
        (f"amqp://{FAR}?user=shop&password=hunter2", "amqps://"),
        (f"amqp://localhost,{FAR}", "amqps://"),
        (f"amqps://{FAR}?management=http://shop:hunter2%40{FAR}:15672", "https:// in the option management"),
        (f"redis://:hunter2@{FAR}", "rediss://"),
        (f"redis://{FAR}?password=hunter2", "rediss://"),
        (f"mqtt://shop:hunter2@{FAR}", "mqtts://"),
        (f"nats://shop:hunter2@{FAR}", "tls=true"),
        (f"nats://hunter2@{FAR}", "tls=true"),
        (f"nats://{FAR}?token=hunter2", "tls=true"),
        (f"nats://localhost,{FAR}?token=hunter2", "tls=true"),
        (f"kafka://shop:hunter2@{FAR}", "tls=true"),
        (f"kafka://shop:hunter2@{FAR}?sasl=PLAIN&insecure=true", "tls=true"),
        (f"http://{FAR}/hooks?secret=hunter2hunter2hunter2hunter2&insecure=true", "https://"),
        (f"http://{FAR}/hooks?headers.authorization=hunter2&allow_private=true", "https://"),
        (f"sqs://eu-central-1?endpoint=http://{FAR}:4566&insecure=true", "https://"),
    ],
)
def test_a_login_in_clear_is_found(url: str, way: str) -> None:
    (finding,) = find_clear_login(transport_from_url(url))

    assert (finding.code, finding.severity.value) == ("destination.login-in-clear", "warning")
    assert way in finding.fix
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://shop:hunter2@localhost",
        "amqp://shop:hunter2@127.0.0.1:5673",
        "amqp://shop:hunter2@[::1]",
        f"amqps://shop:hunter2@{FAR}",
        f"redis://{FAR}",
        f"rediss://:hunter2@{FAR}",
        f"mqtt://{FAR}",
        f"mqtts://shop:hunter2@{FAR}",
        f"nats://{FAR}",
        f"nats://shop:hunter2@{FAR}?tls=true",
        f"kafka://{FAR}",
        f"kafka://shop:hunter2@{FAR}?tls=true",
        f"http://{FAR}/hooks?insecure=true",
        f"https://{FAR}/hooks?headers.authorization=hunter2",
        "sqs://eu-central-1",
        "sqs://eu-central-1?endpoint=http://localhost:4566",
        "memory:",
    ],
)
def test_others_are_not(url: str) -> None:
    assert not list(find_clear_login(transport_from_url(url)))
