"""Log lines: one line each, whatever is in them, and no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pillarbox.cli._logs import JsonFormat, LogSettings, TextFormat, program_log, start_logging
from pillarbox.clock import FrozenClock
from pillarbox.errors import StoreRefused, StoreUnavailable
from pillarbox.telemetry import LoggingTelemetry
from tests.support.cli.shop import Shop

NASTY = "a\nb\r\x1b[31mc\x7f\x9b\u2028\u202e\ud800 ü"


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "pillarbox", "pillarbox.program")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def record(message: str, *arguments: object, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("pillarbox.relay", logging.WARNING, "x.py", 1, message, arguments, info)
    made.created = 1_772_366_400.25
    vars(made).update(extra)
    return made


def test_text_is_time_level_and_message() -> None:
    line = TextFormat(colours=False).format(record("will retry %s", "7", destination="a"))

    assert line == "2026-03-01T12:00:00.250Z warning will retry 7"


def test_text_about_a_message_ends_with_what_identifies_it() -> None:
    fields: dict[str, Any] = {
        "message_id": "0192",
        "correlation_id": "call 7",
        "type": "orders.placed",
        "topic": 'a"b',
        "attempt": 2,
    }
    line = TextFormat(colours=False).format(record("will retry", destination="mail", **fields))

    identity = r'(message_id=0192 correlation_id="call 7" type=orders.placed topic="a\"b" attempt=2)'
    assert line == f"2026-03-01T12:00:00.250Z warning will retry {identity}"
    hostile = TextFormat(colours=False).format(record("x", message_id="1 type=forged\n\x1b[2J", type="real"))
    assert hostile.endswith(r'(message_id="1 type=forged\n\u001b[2J" type=real)')
    secret = TextFormat(colours=False).format(record("x", message_id="1", topic="amqp://u:pw@h/x"))
    assert "pw" not in secret


def test_a_relay_says_which_message_failed_and_nothing_when_nothing_happened(shop: Shop) -> None:
    (shop.folder / "refusing.py").write_text(
        "from pillarbox import MessageRejected\n"
        "from pillarbox.brokers.handlers import Handlers\n"
        "handlers = Handlers()\n"
        "@handlers.on('*')\n"
        "def refuse(event): raise MessageRejected('no')\n"
    )
    shop.publish(3, to="mail")
    ran = shop.run("relay", "--once", "--to", "mail=handlers:refusing:handlers")
    failed = [line for line in ran.err.splitlines() if " warning failed " in line]
    ids = [UUID(bytes=row[0]) if isinstance(row[0], bytes) else UUID(row[0]) for row in shop.rows(
        "select message_id from pillarbox_history order by id")]  # fmt: skip
    assert len(failed) == 3
    for message_id in ids:
        (line,) = [line for line in failed if f"message_id={message_id}" in line]
        assert f"correlation_id={message_id} type=orders.placed topic=orders.placed attempt=1)" in line
    assert "delivered 0 to mail in" in ran.err
    assert "delivered 0 to mail" not in shop.run("relay", "--once", "--to", "mail=handlers:refusing:handlers").err


def test_text_is_one_line_without_control_characters() -> None:
    line = TextFormat(colours=False).format(record("%s", NASTY))

    assert line.endswith(r"warning a\nb\r\x1b[31mc\x7f\x9b\u2028\u202e\ud800 ü")


def test_colours_are_for_terminals() -> None:
    assert "\x1b[33mwarning\x1b[0m" in TextFormat(colours=True).format(record("x"))
    out = io.StringIO()
    start_logging(LogSettings(), stream=out)
    logging.getLogger("pillarbox.relay").warning("plain")
    assert "\x1b" not in out.getvalue()


def test_json_has_every_field_and_stays_one_line() -> None:
    line = JsonFormat().format(record("%s", NASTY, destination="a", lanes=[1, 2], attempt=3, error=None, time="mine"))

    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {
        "time": "2026-03-01T12:00:00.250Z", "level": "warning", "logger": "pillarbox.relay", "message": NASTY,
        "destination": "a", "lanes": [1, 2], "attempt": 3,
    }  # fmt: skip


def test_secrets_in_messages_fields_and_tracebacks_are_hidden() -> None:
    secret = "c4nary-s3cret"
    try:
        raise ValueError(f"postgresql://app:{secret}@db/x")
    except ValueError as error:
        made = record(f"password={secret}", error=error, reason=f"Bearer {secret}", more={"a": [f"token: {secret}"]})

    for formatter in (TextFormat(colours=False), JsonFormat()):
        line = formatter.format(made)
        assert "app:***@db/x" in line
        assert secret not in line


def test_levels() -> None:
    out = io.StringIO()
    start_logging(LogSettings(level="error", deliveries_at="info"), stream=out)
    logging.getLogger("pillarbox.relay").warning("unheard")
    logging.getLogger("pillarbox.relay").error("heard")
    logging.getLogger("other").warning("a library's warning")
    logging.getLogger("other").info("a library's chatter")
    program_log.info("the program itself")

    assert [line.split(maxsplit=2)[2] for line in out.getvalue().splitlines()] == [
        "heard", "a library's warning", "the program itself",
    ]  # fmt: skip
    assert LogSettings(deliveries_at="info").deliveries == logging.INFO


def test_a_settlement_in_which_nothing_was_delivered_or_failed_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="pillarbox.relay")
    LoggingTelemetry().on_settled("billing", delivered=0, failed=0)
    assert caplog.messages == []
    LoggingTelemetry().on_settled("billing", delivered=0, failed=1)
    assert len(caplog.messages) == 1


def test_what_was_delivered_is_one_line_a_minute_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pillarbox.relay")
    clock = FrozenClock()
    telemetry = LoggingTelemetry(clock=clock)
    for second in range(1, 121):
        telemetry.on_settled("billing", delivered=40, failed=second == 1)
        telemetry.on_settled("mail", delivered=1, failed=0)
        clock.advance(timedelta(seconds=1))
        telemetry.on_turn()
    telemetry.on_settled("mail", delivered=7, failed=0)
    telemetry.on_turn()
    telemetry.on_turn(is_last=True)
    telemetry.on_turn(is_last=True)
    assert caplog.messages == [
        "delivered 2400 to billing in 60 s, 1 not delivered",
        "delivered 60 to mail in 60 s",
        "delivered 2400 to billing in 60 s",
        "delivered 60 to mail in 60 s",
        "delivered 7 to mail in 0 s",
    ]


def test_a_store_that_is_away_is_one_line_then_one_a_minute_and_one_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="pillarbox.relay")
    clock = FrozenClock()
    telemetry = LoggingTelemetry(clock=clock)
    telemetry.on_store_answered()
    for _ in range(150):
        telemetry.on_store_failed("reading", StoreUnavailable("refused"))
        telemetry.on_turn()
        clock.advance(timedelta(seconds=1))
    telemetry.on_store_answered()
    assert "answers again" not in caplog.text, "a call failed since the heartbeat before"
    telemetry.on_store_answered()
    telemetry.on_store_answered()
    telemetry.on_store_failed("settling", StoreRefused("a constraint"))
    assert caplog.messages == [
        "the store is away: reading failed, trying again: refused",
        "the store is away for 60 s, 61 calls have failed: refused",
        "the store is away for 120 s, 121 calls have failed: refused",
        "the store answers again after 150.0 s, and 150 failed calls",
        "settling failed, trying again: a constraint",
    ]
