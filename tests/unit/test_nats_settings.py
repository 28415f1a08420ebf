"""What the NATS transport can be told, and what it refuses to be told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.nats import NatsSettings, NatsTransport
from pillarbox.errors import ConfigError
from pillarbox.redaction import Secret

CANARY = "canary-4711"


def opened(url: str, **options: object) -> NatsTransport:
    transport = transport_from_url(url, options=options)
    assert isinstance(transport, NatsTransport)
    return transport


def test_a_url_and_options_are_the_same() -> None:
    by_url = opened("nats://a,b:4333?stream=S&declare=true&subjects=x.>,y.>&window=10&tls=true&duplicate_window=1h")
    beside = opened(
        "nats://a,b:4333",
        stream="S", declare=True, subjects=["x.>", "y.>"], window=10, tls=True, duplicate_window="1h",
    )  # fmt: skip
    assert by_url.settings == beside.settings
    assert by_url.settings.endpoint.hosts == (("a", 4222), ("b", 4333))
    assert by_url.settings.duplicate_window == timedelta(hours=1)


@pytest.mark.parametrize(
    ("template", "subjects"),
    [
        ("shop.{topic}", ("shop.>",)),
        ("shop.eu.{topic}.{key}", ("shop.eu.>",)),
        ("shop.x-{topic}", ("shop.>",)),
        ("shop.orders", ("shop.orders",)),
    ],
)
def test_a_declared_stream_takes_what_the_template_leads_to(template: str, subjects: tuple[str, ...]) -> None:
    settings = NatsSettings(url="nats://a", subject=template, stream="S", declare=True)
    assert settings.declared_subjects == subjects


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nats://", "needs a host"),
        ("nats://a/orders", "path"),
        ("nats://a?colour=red", "no option 'colour'"),
        ("nats://a?url=nats://b", "given twice"),
        ("nats://a?subject={colour}", "no such field"),
        ("nats://a?window=0", "window"),
        ("nats://a?replicas=9", "replicas"),
        ("nats://a?duplicate_window=0s", "duplicate_window"),
        ("nats://a?timeout=0s", "timeout"),
        ("nats://a?stream=a.b", "stream"),
        ("nats://a?declare=true", "stream=NAME"),
        ("nats://a?declare=true&stream=S", "subjects=orders.>"),
        ("nats://a?declare=true&stream=S&subjects=a%20b", "no subject"),
        ("nats://a?inbox=>", "inbox"),
        ("nats://a?verify=false", "insecure=true"),
        ("nats://a?user=u", "no password"),
        ("nats://a?password=p", "no user"),
        ("nats://u:p@a?token=t", "token and a user"),
        ("nats://a?token=t&nkey=n&credentials=c", "credentials, nkey and token"),
        ("nats://a?nkey=SUAB", "no NKEY seed"),
        ("nats://a?credentials=/nowhere", "cannot be read"),
        ("nats://a?ca=/nowhere", "option ca"),
    ],
)
def test_what_is_wrong_is_said(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened(url)


def test_the_scheme_is_nats() -> None:
    with pytest.raises(ConfigError, match="nats://"):
        NatsSettings(url="tls://a")


@pytest.mark.parametrize(
    "transport",
    [
        opened(f"nats://user:{CANARY}@a"),
        opened(f"nats://{CANARY}@a"),
        opened("nats://a", token=CANARY),
        opened("nats://a", user="u", password=CANARY),
    ],
    ids=["url", "token in url", "token", "password"],
)
def test_secrets_are_not_shown(transport: NatsTransport) -> None:
    for shown in (repr(transport), str(transport.settings), repr(transport._server), repr(transport._server.login)):
        assert CANARY not in shown


def test_a_secret_can_be_referred_to() -> None:
    settings = NatsSettings(url="nats://a", token=Secret("env:NATS_TOKEN"))
    assert NatsTransport(settings, environ={"NATS_TOKEN": CANARY})._server.login.token == CANARY
