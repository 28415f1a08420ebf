"""Log lines: one line each, whatever is in them, and no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pillarbox.cli._logs import JsonFormat, LogSettings, TextFormat, program_log, start_logging

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
