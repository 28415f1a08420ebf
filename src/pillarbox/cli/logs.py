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

from pillarbox.transports.redaction import redacted

__all__ = ["JsonFormat", "LogSettings", "TextFormat", "program_log", "start_logging"]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

program_log: Final = logging.getLogger("pillarbox.program")
"""What the program says of itself, whatever the level."""

_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was given as `extra`."""
_COLOURS: Final = MappingProxyType({logging.DEBUG: "2", logging.INFO: "32", logging.WARNING: "33"})
_RED: Final = "31"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[log]`: what is written to stderr, and how."""

    format: Literal["text", "json"] = "text"
    level: Level = "info"
    deliveries_at: Level = "debug"
    """The level of the line for each single delivery."""

    @property
    def deliveries(self) -> int:
        return logging.getLevelNamesMapping()[self.deliveries_at.upper()]


def start_logging(settings: LogSettings, *, stream: TextIO | None = None) -> None:
    """Send every log line to stderr. Other libraries are heard from warnings upwards."""
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormat() if settings.format == "json" else TextFormat(colours=_has_colours(out)))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pillarbox").setLevel(settings.level.upper())
    program_log.setLevel(logging.INFO)


class TextFormat(logging.Formatter):
    """Time, level, message."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower().ljust(7)
        if self._colours:
            level = f"\x1b[{_COLOURS.get(record.levelno, _RED)}m{level}\x1b[0m"
        line = f"{_time(record)} {level} {_safe(record.getMessage())}"
        return "\n    ".join([line, *map(_safe, _trace(record).splitlines())])


class JsonFormat(logging.Formatter):
    """One object: time, level, logger, message, and every field that came with the line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        given = {name: _clean(value) for name, value in vars(record).items() if name not in _OWN}
        fields = fields | given | fields
        if trace := _trace(record):
            fields["traceback"] = redacted(trace)
        return json.dumps(fields, default=_text)


def _has_colours(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _safe(text: str) -> str:
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), redacted(text))


def _text(value: object) -> str:
    return redacted(str(value))


def _clean(value: object) -> object:
    """The same without secrets, as far as JSON knows its kind."""
    match value:
        case str():
            return redacted(value)
        case Mapping():
            return {str(name): _clean(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_clean(inner) for inner in value]
    return value
