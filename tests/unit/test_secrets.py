"""No password, token or key shows, wherever a URL or a settings object is printed."""

from __future__ import annotations

import importlib
import io
import logging
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

import pillarbox as package
from pillarbox.brokers.factory import receiver_from_url, transport_from_url
from pillarbox.brokers.http.encoding import RequestTemplate
from pillarbox.brokers.settings import Endpoint, Login, parse_transport_url
from pillarbox.cli._errors import run
from pillarbox.cli._logs import JsonFormat, TextFormat
from pillarbox.cli._program import pillarbox as program
from pillarbox.consumer.telemetry import LoggingConsumerTelemetry
from pillarbox.dashboard.settings import DashboardSettings
from pillarbox.errors import PillarboxError
from pillarbox.operations.opentelemetry import _record_errors
from pillarbox.redaction import Secret, display_url, redact, redact_block, redact_line, redact_url
from pillarbox.settings import ConfigOrigin, ConfigValue
from pillarbox.stores.urls import parse_store_url
from pillarbox.telemetry import LoggingTelemetry

_SCHEMES = (
    "amqp", "amqps", "kafka", "nats", "redis", "rediss", "mqtt", "mqtts", "http", "https", "sqs", "sns", "postgresql",
    "postgres", "postgresql+psycopg", "mysql", "mariadb", "other",
)  # fmt: skip
_SHAPES = (
    "{scheme}://u:{password}@",
    "{scheme}://u:{password}@/",
    "{scheme}://u:{password}@h",
    "{scheme}://:{password}@h:1234/db",
    "{scheme}://u:{password}@h1:1,h2:2/x?timeout=5s",
    "{scheme}://u:{password}@[::1]:5672/%2F",
    "{scheme}://u:{password}@h?password={password}",
    "{scheme}://h?token={password}",
    "{scheme}://h/db?sslmode=require&client.sasl.password={password}",
    "{scheme}://h?headers.authorization={password}",
    "{scheme}:u:{password}@h",
    "u:{password}@h/db",
    "host=h user=u password={password} dbname=d",
    "Server=h;Uid=u;Pwd={password};",
)
_ENDS = st.sampled_from(
    ["", "/", "?", "#", "@", ":", "/a/", "?a=", "a=b@c", "%", "[", "]", "&", "=", "//", "://", "\\"]
)


@st.composite
def passwords(draw: st.DrawFn) -> str:
    """Return a password with a canary before and after the characters that URLs are split at."""
    noise = draw(st.text("cn/@:?#%&=[]+,;$", max_size=8) | _ENDS)
    return f"CANARY{noise}CANARY"


def _list_texts(url: str) -> Iterator[str]:
    """List what is shown of a URL wherever one is printed."""
    yield redact_url(url)
    yield display_url(url)
    yield redact(f"cannot reach {url}, trying again")
    yield redact_line(f"cannot reach {url}, trying again")
    yield redact_block(f"first\n{url}\nlast")
    yield redact(repr({"url": url}))
    for build in (
        lambda: parse_store_url(url, environ={}),
        lambda: parse_transport_url(url, options={}),
        lambda: transport_from_url(url),
        lambda: receiver_from_url(url, options={"queue": "q"}),
    ):
        yield from _describe(build)


def _describe(build: Callable[[], object]) -> Iterator[str]:
    try:
        built = build()
    except PillarboxError as error:
        yield f"{error} {error!r}"
    else:
        yield f"{built} {built!r} {getattr(built, 'settings', '')!r}"


@settings(max_examples=80)
@given(scheme=st.sampled_from(_SCHEMES), shape=st.sampled_from(_SHAPES), password=passwords())
@example(scheme="amqp", shape="{scheme}://u:{password}", password="CANARY")
@example(scheme="amqp", shape="{scheme}://u:{password}@", password="CANARY")
@example(scheme="amqp", shape="{scheme}://u:{password}@h", password="CANARY/CANARY")
@example(scheme="amqp", shape="{scheme}://u:{password}@h", password="CANARY?a=CANARY")
@example(scheme="redis", shape="{scheme}://u:{password}@h", password="CANARY@CANARY")
def test_no_password_shows_however_the_url_is_written(scheme: str, shape: str, password: str) -> None:
    url = shape.format(scheme=scheme, password=password)
    for text in _list_texts(url):  # each is one place that prints a URL
        assert "CANARY" not in text, text


@given(st.text(min_size=6, max_size=40), st.sampled_from(_SCHEMES))
def test_no_whole_password_of_any_characters_shows(password: str, scheme: str) -> None:
    url = f"{scheme}://u:{password}@h/x"
    hidden = url.replace(password, "")
    for text in (redact_url(url), display_url(url)):
        assert password not in text or password in hidden


def test_passwords_with_spaces_and_quotes_are_hidden_in_a_sentence() -> None:
    for password in ("CANARY CANARY", 'CANARY"CANARY', "CANARY'CANARY", "CANARY`x CANARY"):
        assert "CANARY" not in redact(f"cannot reach amqp://shop:{password}@mq/x: refused")
    assert redact("redis://cache:6379 is away; ask me@shop") == "redis://cache:6379 is away; ask me@shop"


def test_our_own_advice_stays_readable() -> None:
    for advice in (
        "write postgresql://user@host:5432/database, or sqlite:///path/to/file.db.",
        "add password=env:NAME.",
        "give --to as http://127.0.0.1:PORT, amqp://…, nats://… or redis://…, or leave it out",
        "headers.authorization=env:NAME",
        "URLs begin with amqp:// or amqps://.",
        "an endpoint such as http://localhost:4566, without a login",
        "see https://shop.example/docs/a#login",
    ):
        assert redact(advice).replace("#login", "") == advice.replace("#login", "")


@settings(max_examples=20)
@given(scheme=st.sampled_from(_SCHEMES), shape=st.sampled_from(_SHAPES), password=passwords())
def test_no_command_prints_a_password(scheme: str, shape: str, password: str) -> None:
    url = shape.format(scheme=scheme, password=password)
    for arguments in (
        ("config", "show", "--store", url, "--to", f"billing={url}"),
        ("config", "show", "--to", f"billing={url}", "-o", "toml"),
        ("status", "--store", f"{scheme}-{url}"),
        ("status", url),
        ("--store", url),
    ):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), suppress(SystemExit):
            run(program, [*arguments])
        assert "CANARY" not in out.getvalue() + err.getvalue()


@pytest.mark.parametrize("formatter", [JsonFormat(), TextFormat(colours=False)])
@pytest.mark.parametrize("shape", _SHAPES)
def test_no_log_line_holds_a_password(formatter: logging.Formatter, shape: str) -> None:
    url = shape.format(scheme="amqp", password="CANARY/x@CANARY")
    record = logging.makeLogRecord({"msg": "away: %s", "args": (url,), "error": url, "levelname": "ERROR"})
    try:
        raise OSError(f"cannot reach {url}")
    except OSError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    assert "CANARY" not in formatter.format(record)


# --- settings ---


@cache
def _list_settings_classes() -> list[type[msgspec.Struct]]:
    """List every settings class of every broker."""
    found: set[type[msgspec.Struct]] = set()
    for module in pkgutil.walk_packages(package.__path__, "pillarbox."):
        if module.name.endswith(".settings"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and issubclass(value, msgspec.Struct):
                    found.add(value)
    return sorted(found, key=lambda cls: cls.__qualname__)


_MADE: dict[str, Any] = {"topics": ("t",), "group": "g", "stream": "s", "durable": "d", "queue": "q"}
_URLS = ("amqp://u:CANARY@127.0.0.1/x", "kafka://u:CANARY@127.0.0.1", "nats://u:CANARY@127.0.0.1",
         "redis://u:CANARY@127.0.0.1", "mqtt://u:CANARY@127.0.0.1", "sqs://u:CANARY@eu-central-1",
         "sns://u:CANARY@eu-central-1", "https://shop.example/CANARY")  # fmt: skip


def test_no_settings_object_shows_a_secret() -> None:
    shown: set[str] = set()
    for cls in _list_settings_classes():
        # The address of the dashboard is printed for people; one with a login or a query is refused.
        if "url" not in cls.__struct_fields__ or cls is DashboardSettings:
            continue
        for url in _URLS:
            for secret in [None, *_list_secret_fields(cls)]:
                values = {name: value for name, value in _MADE.items() if name in cls.__struct_fields__}
                try:
                    built = cls(url=url, **values, **({} if secret is None else {secret[0]: secret[1]}))
                except (PillarboxError, TypeError, AttributeError):  # not for this class
                    continue
                rich = str(getattr(built, "__rich_repr__", lambda: "")())
                assert "CANARY" not in f"{built} {built!r} {rich}", cls
                shown.add(cls.__name__)
    assert shown >= {
        "RabbitmqSettings", "RabbitmqReceiverSettings", "KafkaSettings", "KafkaReceiverSettings", "NatsSettings",
        "NatsReceiverSettings", "RedisSettings", "RedisReceiverSettings", "MqttSettings", "HttpSettings", "SqsSettings",
        "SnsSettings",
    }  # fmt: skip


def _list_secret_fields(cls: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for name, hint in get_type_hints(cls).items():
        if hint is Secret or Secret in get_args(hint):
            shape = str(hint)
            value: Any = Secret("CANARY")
            if "tuple" in shape:
                value = (value,)
            elif "Mapping" in shape:
                value = {"sasl.oauthbearer.config" if "Kafka" in cls.__name__ else "x-key": value}
            fields.append((name, value))
    return fields


def test_no_part_of_a_connection_shows_a_secret() -> None:
    values: list[object] = [
        Login("CANARY", "CANARY"),
        Endpoint((("h", 1),), None, "CANARY", Secret("CANARY")),
        ConfigValue("postgresql://u:CANARY@h/db", ConfigOrigin("flag", "--store")),
        RequestTemplate(keys=[b"CANARY"], headers={"authorization": "CANARY"}),
        Secret("CANARY"),
        Secret("env:CANARY/x y"),
        parse_transport_url("https://h/CANARY?secret=CANARY", options={}),
    ]
    for value in values:
        assert "CANARY" not in f"{value} {value!r} {[value]}"


# --- errors of others ---


def test_the_logs_of_relay_and_consumer_hold_no_secret_of_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """An application that sets up its own logging has no formatter of ours."""
    error = OSError("\x1b[2J cannot reach postgresql://shop:CANARY@db/shop\npassword=CANARY")
    with caplog.at_level(logging.DEBUG):
        LoggingTelemetry().on_store_failed("settling", error)
        LoggingTelemetry().on_duty_failed("cleaning", error)
        LoggingTelemetry().on_lease_lost(reason=str(error))
        LoggingConsumerTelemetry().on_store_failed("billing", error)
        LoggingConsumerTelemetry().on_broker_failed("billing", error)
    assert len(caplog.records) == 5
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert "CANARY" not in f"{record.getMessage()} {vars(record)}"


def test_a_span_holds_no_secret_of_an_error() -> None:
    class Recorder(NonRecordingSpan):
        texts: list[str] = []  # noqa: RUF012 - one test has one

        def add_event(self, *arguments: Any, **options: Any) -> None:
            self.texts.append(f"{arguments} {options}")

        def set_status(self, status: Any, description: Any = None) -> None:
            self.texts.append(f"{status.description} {description}")

    span = Recorder(INVALID_SPAN_CONTEXT)
    with pytest.raises(OSError, match="CANARY"), _record_errors(span):
        raise OSError("cannot reach amqp://shop:CANARY@mq")
    assert len(span.texts) == 2
    assert "CANARY" not in str(span.texts)
