"""Log lines: text for people, JSON for machines. One line each, without control characters and without secrets."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal, TextIO, TypeAlias

import msgspec

from pillarbox.redaction import escape_controls, redact
from pillarbox.telemetry import current_store

__all__ = ["JsonFormat", "LogSettings", "TextFormat", "program_log", "start_logging"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

program_log: Final = logging.getLogger("pillarbox.program")
"""Start and end of the program: logged whatever the level."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; the others were given as `extra`."""
_PLAIN: Final = re.compile(r"[^\s()\"=]+")
_COLOURS: Final = MappingProxyType({logging.DEBUG: "2", logging.INFO: "32", logging.WARNING: "33"})
_RED: Final = "31"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[log]`: level and format of the lines on stderr."""

    format: Literal["text", "json"] = "text"
    level: Level = "info"
    deliveries_at: Level = "debug"
    """The level of the line for each single delivery."""

    @property
    def deliveries(self) -> int:
        """`deliveries_at` as a number of `logging`."""
        return logging.getLevelNamesMapping()[self.deliveries_at.upper()]


def start_logging(settings: LogSettings, *, process: str | None = None, stream: TextIO | None = None) -> None:
    """Write log lines to stderr: our own from the configured level, those of libraries from warnings upwards.

    `process` is which one of several processes this is; every line says so.
    """
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        JsonFormat(process=process)
        if settings.format == "json"
        else TextFormat(colours=_can_colour(out), process=process)
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pillarbox").setLevel(settings.level.upper())
    program_log.setLevel(logging.INFO)


_ABOUT_MESSAGE: Final = ("message_id", "correlation_id", "type", "topic", "attempt")
"""Fields of a line that speaks of one message, in the order in which text shows them."""


class TextFormat(logging.Formatter):
    """Time, level, message. A line about a message ends with what identifies it, to be found by `grep`."""

    def __init__(self, *, colours: bool, process: str | None = None) -> None:
        super().__init__()
        self._colours = colours
        self._mark = "" if process is None else f"[{process}] "

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower().ljust(7)
        if self._colours:
            level = f"\x1b[{_COLOURS.get(record.levelno, _RED)}m{level}\x1b[0m"
        store = current_store()
        mark = self._mark if store is None else f"{self._mark}[{_escape(store)}] "
        line = f"{_format_time(record)} {level} {mark}{_escape(record.getMessage())}{_format_identity(record)}"
        return "\n    ".join([line, *map(_escape, _format_trace(record).splitlines())])


def _format_identity(record: logging.LogRecord) -> str:
    """Write the fields of a line about one message, ` (name=value …)`; nothing for other lines."""
    fields = vars(record)
    if fields.get("message_id") is None:
        return ""
    # Quoted where it holds a space or a quote: values of others must not pass for fields.
    known = [(name, str(fields[name])) for name in _ABOUT_MESSAGE if fields.get(name) is not None]
    pairs = [f"{name}={_escape(value if _PLAIN.fullmatch(value) else json.dumps(value))}" for name, value in known]
    return f" ({' '.join(pairs)})"


class JsonFormat(logging.Formatter):
    """One JSON object: time, level, logger, message, and every field given as `extra`."""

    def __init__(self, *, process: str | None = None) -> None:
        super().__init__()
        self._place: dict[str, object] = {} if process is None else {"process": process, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **self._place,
            **({} if (store := current_store()) is None else {"store": store}),
        }
        extra = {name: _redact_value(value) for name, value in vars(record).items() if name not in _STANDARD}
        # Ours first in order, and ours win over extra fields of the same name.
        fields = fields | extra | fields
        if trace := _format_trace(record):
            fields["traceback"] = redact(trace)
        # Everything outside of ASCII is escaped by `dumps`; DEL is the one control character that is not.
        return json.dumps(fields, default=_to_text).replace("\x7f", "\\u007f")


def _can_colour(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _format_time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _escape(text: str) -> str:
    return escape_controls(redact(text)).replace("\n", "\\n")


def _to_text(value: object) -> str:
    return redact(str(value))


def _redact_value(value: object) -> object:
    """Remove secrets from every text in a value; other kinds are left to `json.dumps`."""
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {str(name): _redact_value(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_redact_value(inner) for inner in value]
    return value
