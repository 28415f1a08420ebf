"""Names of tables, schemas and destinations: checked once, quoted everywhere."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from pillarbox.errors import ConfigError
from pillarbox.message import SKIPPED_DESTINATION

__all__ = ["TABLES", "Names", "check_destination"]

TABLES: Final = (
    "outbox", "history", "claim", "lane", "relay", "destination", "journal", "inbox", "schema", "messages", "wake",
    "slot",
)  # fmt: skip
"""What follows the prefix. `messages` is the view, `wake` PostgreSQL's trigger, `slot` what MySQL locks for keys."""

_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]*")
_LONGEST: Final = 63 - len("outbox_blocked_idx")
_DESTINATION: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_DEFAULT_NAME: Final = re.compile(r"\bpillarbox_(\w+)\b")


class Names(msgspec.Struct, frozen=True):
    """Where the tables are: an optional schema, and a prefix. Both are validated, so they can stand in SQL."""

    schema: str | None = None
    prefix: str = "pillarbox_"

    def __post_init__(self) -> None:
        if self.schema is not None:
            _check_identifier(self.schema, what="schema")
        _check_identifier(self.prefix, what="table prefix")

    def table(self, name: str, *, quote: str = '"') -> str:
        """The quoted, qualified name of one of our tables, indexes or functions. MySQL quotes with backticks."""
        table = f"{quote}{self.prefix}{name}{quote}"
        return table if self.schema is None else f"{quote}{self.schema}{quote}.{table}"

    def bare(self, name: str) -> str:
        """The same without its schema, for places that do not take one (an index in CREATE INDEX)."""
        return f"{self.prefix}{name}"

    def is_ours(self, name: str) -> bool:
        """Whether a table without its schema is one of these."""
        return name in {self.bare(table) for table in TABLES}

    def applied(self, sql: str, *, quote: str = '"') -> str:
        """SQL written with the default names, with ours in their place.

        `pillarbox_outbox` becomes the qualified name. An object that is created inside its table's schema
        (an index, a constraint) is written `pillarbox_outbox_late_idx` and keeps no schema.
        """

        def named(match: re.Match[str]) -> str:
            name = match.group(1)
            return self.table(name, quote=quote) if name in TABLES else f"{quote}{self.bare(name)}{quote}"

        return _DEFAULT_NAME.sub(named, sql)


def _check_identifier(name: str, *, what: str) -> None:
    if not _IDENTIFIER.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"The {what} {name!r} is not usable: write at most {_LONGEST} lower-case letters, digits and "
            "underscores, not starting with a digit."
        )


def check_destination(name: str) -> str:
    """A destination's name, or `ConfigError`. It ends up in rows, logs and metric labels."""
    if name != SKIPPED_DESTINATION and not _DESTINATION.fullmatch(name):
        raise ConfigError(
            f"The destination {name!r} is not usable: write a letter, then at most 99 letters, digits, '_', '.' or '-'."
        )
    return name
