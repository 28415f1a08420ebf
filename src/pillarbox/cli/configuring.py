"""The flags that are configuration: given on the command line, they win over variables and the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import click

from pillarbox.cli.logs import LogSettings
from pillarbox.config import Config, Given, Origin, StoreSettings
from pillarbox.config.environment import variable_of
from pillarbox.config.fields import fields_of
from pillarbox.config.origins import Path
from pillarbox.config.values import plain
from pillarbox.errors import ConfigError
from pillarbox.relay.settings import DestinationSettings, RelaySettings

__all__ = ["configuration_options", "store_options"]

P = ParamSpec("P")
R = TypeVar("R")

_NAMED: Final = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(?:=(?P<url>.*))?", re.DOTALL)
_TO_ORIGIN: Final = Origin("flag", "--to")


class _Flag(NamedTuple):
    name: str
    path: Path
    metavar: str
    help: str


_FLAGS: Final = (
    _Flag("--store", ("store", "url"), "URL", "Where the tables are: sqlite:///file.db or postgresql://user:${PASSWORD}@host/db."),
    _Flag("--schema", ("store", "schema"), "NAME", "The PostgreSQL schema of the tables."),
    _Flag("--prefix", ("store", "prefix"), "NAME", "What the names of the tables begin with."),
    _Flag("--service", ("relay", "service"), "NAME", "What the relay is called in the registry."),
    _Flag("--duties", ("relay", "duties"), "LIST", "What the relay does, in this order."),
    _Flag("--lease", ("relay", "lease"), "TIME", "How long lanes stay with a relay that is not heard of."),
    _Flag("--poll-interval", ("relay", "poll_interval"), "TIME", "The longest wait between two looks for messages."),
    _Flag("--max-lanes", ("relay", "max_lanes"), "N", "Lanes of one destination that this relay owns at most."),
    _Flag("--batch", ("relay", "batch"), "N", "Messages read and claimed at a time."),
    _Flag("--window", ("relay", "window"), "N", "Messages in flight to one destination."),
    _Flag("--send-timeout", ("relay", "send_timeout"), "TIME", "How long one send may take."),
    _Flag("--log-format", ("log", "format"), "text|json", "How log lines look."),
    _Flag("--log-level", ("log", "level"), "debug|info|warning|error", "The least level that is written."),
    _Flag("--deliveries-at", ("log", "deliveries_at"), "LEVEL", "The level of the line for each single delivery."),
)  # fmt: skip
_STORE_FLAGS: Final = _FLAGS[:3]
_DEFAULTS: Final[Mapping[Path, object]] = {
    (section, *field.path): field.default
    for section, cls in (
        ("store", StoreSettings), ("relay", DestinationSettings), ("relay", RelaySettings), ("log", LogSettings),
    )
    for field in fields_of(cls)
}  # fmt: skip


class _Option(click.Option):
    """Shows its variable, and leaves it to the configuration to read it."""

    def resolve_envvar_value(self, ctx: click.Context) -> None:
        """Not here: else nobody could tell a variable from a flag."""


def store_options(command: Callable[Concatenate[Config, P], R]) -> Callable[..., R]:
    """Adds --config, --store, --schema and --prefix, and hands all that was said to the command as one `Config`."""

    @wraps(command)
    def with_config(*args: Any, config: str | None, **rest: Any) -> R:
        return command(Config.load(config, flags=_given(_STORE_FLAGS, rest)), *args, **rest)

    decorated: Callable[..., R] = with_config
    for option in reversed((_CONFIG, *map(_option, _STORE_FLAGS))):
        decorated = option(decorated)
    return decorated


def configuration_options(command: Callable[Concatenate[Config, P], R]) -> Callable[..., R]:
    """Adds --config and the flags above, and hands all that was said to the command as one `Config`."""

    @wraps(command)
    def with_config(*args: Any, config: str | None, to: Sequence[str], **rest: Any) -> R:
        return command(Config.load(config, flags=_given(_FLAGS, rest) | _destinations(to)), *args, **rest)

    decorated: Callable[..., R] = with_config
    for option in reversed((_CONFIG, *map(_option, _STORE_FLAGS), _TO, *map(_option, _FLAGS[3:]))):
        decorated = option(decorated)
    return decorated


def _given(flags: Sequence[_Flag], arguments: dict[str, Any]) -> dict[Path, Given]:
    """What the flags said, taken out of the arguments."""
    texts = {flag: arguments.pop(_argument(flag)) for flag in flags}
    return {flag.path: Given(text, Origin("flag", flag.name)) for flag, text in texts.items() if text is not None}


def _argument(flag: _Flag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _option(flag: _Flag) -> Callable[[Any], Any]:
    default = _shown(_DEFAULTS[flag.path])
    text = f"{flag.help}  [default: {default}]" if default else flag.help
    return click.option(
        flag.name, cls=_Option, metavar=flag.metavar, envvar=variable_of(flag.path), show_envvar=True, help=text
    )


def _shown(default: object) -> str:
    value = plain(default)
    return ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


_CONFIG: Final = click.option(
    "--config", metavar="FILE", envvar="PILLARBOX_CONFIG", show_envvar=True,
    help="The configuration.  [default: pillarbox.toml in the current folder, if there is one]",
)  # fmt: skip
_TO: Final = click.option(
    "--to", metavar="[NAME=]URL", multiple=True, cls=_Option, envvar="PILLARBOX_DESTINATION_<NAME>_URL",
    show_envvar=True,
    help="A destination to serve; may be repeated. A NAME alone is a configured one. Without --to all are served.",
)  # fmt: skip


def _destinations(to: Sequence[str]) -> dict[Path, Given]:
    """`--to` says which destinations are served, and where they are."""
    if not to:
        return {}
    found: dict[Path, Given] = {}
    names: list[str] = []
    for text in to:
        name, url = _named(text)
        names.append(name)
        if url is not None:
            found["destinations", name, "url"] = Given(url, _TO_ORIGIN)
    return {**found, ("relay", "destinations"): Given(names, _TO_ORIGIN)}


def _named(text: str) -> tuple[str, str | None]:
    match = _NAMED.fullmatch(text)
    if match is None:
        return DestinationSettings().name, text
    if match["url"] == "":
        raise ConfigError(f"--to {match['name']}= has no URL; write --to NAME=URL.")
    return match["name"], match["url"]
