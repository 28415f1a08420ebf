"""Options that commands share: which configuration and which store, and who acts."""

from __future__ import annotations

import asyncio
import getpass
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import click
import msgspec

from pillarbox.cli._logs import LogSettings
from pillarbox.config import Config, StoreSettings, list_destinations, to_variable
from pillarbox.contracts.store import Selection, Store
from pillarbox.errors import ConfigError, PillarboxError
from pillarbox.message import SKIPPED_DESTINATION, Names, check_destination
from pillarbox.operations.destinations import check_known, find_destinations
from pillarbox.operations.store_access import run_on_store
from pillarbox.operations.stores import StoreAnswer, run_on_stores
from pillarbox.relay.addresses import Stores
from pillarbox.relay.configuration import read_relay_section, read_store, read_stores
from pillarbox.relay.settings import DestinationSettings, ProcessSettings, RelaySettings
from pillarbox.settings import ConfigOrigin, ConfigValue, KeyPath, list_fields, to_plain
from pillarbox.stores.urls import StoreUrl

__all__ = [
    "SettingOption",
    "Target",
    "Targets",
    "by_option",
    "complete_destination",
    "configuration_options",
    "parse_destination",
    "reason_option",
    "required_reason_option",
    "target_options",
    "targets_options",
]

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """The store that a command works on, and the configuration it comes from."""

    url: StoreUrl
    names: Names
    config: Config

    def run(self, action: Callable[[Store], Awaitable[T]], *, reads_only: bool = False) -> T:
        """Open the store, await the action with it, close it, and return the action's result."""
        return run_on_store(self.url, action, names=self.names, reads_only=reads_only)

    def check_destination(self, name: str) -> None:
        """Raise `UnknownDestination` for a name that neither the configuration nor the tables know."""
        configured = list_destinations(self.config)
        lease = read_relay_section(self.config).settings.lease
        if name in configured or name == SKIPPED_DESTINATION:
            return

        async def find(store: Store) -> set[str]:
            # One whose messages are all delivered, and that no relay serves, is still known.
            kept = await store.find(Selection(destination=name), limit=1, payloads=False)
            return {one.destination for one in kept} | await find_destinations(store, lease=lease)

        check_known(name, self.run(find, reads_only=True).union(configured))

    def check_filter(self, name: str | None, *, found: object) -> None:
        """Raise `UnknownDestination` if nothing was found because of a destination that does not exist."""
        if name is not None and not found:
            self.check_destination(name)


def target_options(command: Callable[Concatenate[Target, P], R]) -> Callable[..., R]:
    """Add --config, --store, --schema and --prefix; the command receives them as one `Target`."""

    @wraps(command)
    def with_target(*args: Any, config: str | None, **rest: Any) -> R:
        loaded = Config.load(config, flags=_take_values(_STORE_FLAGS, rest))
        url, names = read_store(loaded)
        return command(Target(url, names, loaded), *args, **rest)

    return _add_options(with_target, _CONFIG, *map(_to_option, _STORE_FLAGS))


@dataclass(frozen=True, slots=True)
class Targets:
    """The stores that a command works on: all that are configured, unless `--store` chooses."""

    stores: Stores
    config: Config

    @property
    def single(self) -> Target | None:
        """The one store; None if there are several."""
        if self.stores.are_many:
            return None
        (address,) = self.stores.named.values()
        return Target(address.url, address.names, self.config)

    @property
    def chosen(self) -> str | None:
        """Name of the one store that `--store` chooses among several; None if other commands need no such choice."""
        given = self.config.flags.get(_STORE_URL)
        if given is None:
            return None
        try:
            configured = read_stores(msgspec.structs.replace(self.config, flags={}))
        except ConfigError:  # nothing else is configured
            return None
        return str(given.value) if configured.are_many and given.value in self.stores.named else None

    def ask(
        self,
        action: Callable[[str, Store], Awaitable[T]],
        *,
        at_once: int = 8,
        timeout: float | None = 30.0,
        reads_only: bool = False,
    ) -> Sequence[StoreAnswer[T]]:
        """Await the action with each store, a few at the same time; an error is the answer of its store."""
        return run_on_stores(self.stores, action, at_once=at_once, timeout=timeout, reads_only=reads_only)


def targets_options(command: Callable[Concatenate[Targets, P], R]) -> Callable[..., R]:
    """Add --config, --store, --schema and --prefix; the command receives all stores as one `Targets`."""

    @wraps(command)
    def with_targets(*args: Any, config: str | None, **rest: Any) -> R:
        loaded = Config.load(config, flags=_take_values(_STORE_FLAGS, rest))
        return command(Targets(read_stores(loaded), loaded), *args, **rest)

    return _add_options(with_targets, _CONFIG, *map(_to_option, _STORE_FLAGS))


def configuration_options(command: Callable[Concatenate[Config, P], R]) -> Callable[..., R]:
    """Add --config and all flags of `pillarbox relay`; the command receives them as one `Config`."""

    @wraps(command)
    def with_config(*args: Any, config: str | None, to: Sequence[str], label: Sequence[str], **rest: Any) -> R:
        flags = {**_take_values(_STORE_FLAGS + _RELAY_FLAGS, rest), **_parse_destinations(to), **_parse_labels(label)}
        return command(Config.load(config, flags=flags), *args, **rest)

    return _add_options(
        with_config, _CONFIG, *map(_to_option, _STORE_FLAGS), _TO, *map(_to_option, _RELAY_FLAGS), _LABEL
    )


def complete_destination(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a destination for a shell: the configured ones, and those in the tables if they answer.

    A person waits for it and expects no error here, so the store has a second, and whatever fails is left out.
    """
    with suppress(Exception):
        given = {flag.parameter: ctx.params.get(flag.parameter) for flag in _STORE_FLAGS}
        config = Config.load(ctx.params.get("config"), flags=_take_values(_STORE_FLAGS, given))
        names = set(list_destinations(config))
        with suppress(Exception):
            url, tables = read_store(config)
            names |= run_on_store(
                url,
                lambda store: asyncio.wait_for(find_destinations(store, lease=RelaySettings().lease), 1),
                names=tables,
            )
        return sorted(name for name in names if name.startswith(incomplete) and _is_destination(name))
    return []


def _is_destination(name: str) -> bool:
    """Return whether a name from the tables is one: a shell would take apart others, such as one with a line break."""
    try:
        check_destination(name)
    except PillarboxError:
        return False
    return True


def by_option(command: F) -> F:
    """Add `--by`, the name of who acts, for the journal."""
    option = click.option(
        "--by", default=_find_user, show_default="you@this machine", metavar="NAME", envvar="PILLARBOX_BY",
        show_envvar=True, help="Who does this, for the journal.",
    )  # fmt: skip
    return option(command)


def reason_option(command: F) -> F:
    """Add `--reason`, which need not be given."""
    option = click.option(
        "--reason", metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True, help="Why, for the journal.",
    )  # fmt: skip
    return option(command)


def required_reason_option(command: F) -> F:
    """Add `--reason`, which must be given, and not be blank."""
    option = click.option(
        "--reason", required=True, callback=_check_reason, metavar="TEXT", envvar="PILLARBOX_REASON", show_envvar=True,
        help="Why, for the journal.",
    )  # fmt: skip
    return option(command)


def _check_reason(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    if not text.strip():
        raise click.BadParameter("a reason is needed, for the journal.")
    return text


def _find_user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return socket.gethostname()


# --- flags that are settings ---


class _Flag(NamedTuple):
    name: str
    path: KeyPath
    metavar: str
    help: str

    @property
    def parameter(self) -> str:
        """Name of the keyword argument that click passes."""
        return self.name.removeprefix("--").replace("-", "_")


_STORE_URL: Final = ("store", "url")
_STORE_FLAGS: Final = (
    _Flag("--store", ("store", "url"), "[NAME=]URL", "Where the tables are: sqlite:///file.db or "
          "postgresql://user:${PASSWORD}@host/db. A NAME alone is a configured store. May be repeated where a command "
          "works on several."),
    _Flag("--schema", ("store", "schema"), "NAME", "The PostgreSQL schema of the tables."),
    _Flag("--prefix", ("store", "prefix"), "NAME", "What the names of the tables begin with."),
)  # fmt: skip
_RELAY_FLAGS: Final = (
    _Flag("--service", ("relay", "service"), "NAME", "What the relay is called in the registry."),
    _Flag("--duties", ("relay", "duties"), "LIST", "What the relay does; of send and retry, the first has priority."),
    _Flag("--lease", ("relay", "lease"), "TIME", "How long lanes stay with a relay that is not heard of."),
    _Flag("--poll-interval", ("relay", "poll_interval"), "TIME", "The longest wait between two looks for messages."),
    _Flag("--max-lanes", ("relay", "max_lanes"), "N", "Lanes of one destination that this relay owns at most."),
    _Flag("--processes", ("relay", "processes"), "N", "Relays to run, each in a process of its own."),
    _Flag("--batch", ("relay", "batch"), "N", "Messages read and claimed at a time."),
    _Flag("--window", ("relay", "window"), "N", "Messages in flight to one destination."),
    _Flag("--send-timeout", ("relay", "send_timeout"), "TIME", "How long one send may make no progress."),
    _Flag("--log-format", ("log", "format"), "text|json", "How log lines look."),
    _Flag("--log-level", ("log", "level"), "debug|info|warning|error", "The least level that is written."),
    _Flag("--deliveries-at", ("log", "deliveries_at"), "LEVEL", "The level of the line for each single delivery."),
)
_DEFAULTS: Final[Mapping[KeyPath, object]] = {
    (section, *field.path): field.default
    for section, cls in (
        ("store", StoreSettings), ("relay", DestinationSettings), ("relay", RelaySettings), ("relay", ProcessSettings),
        ("log", LogSettings),
    )
    for field in list_fields(cls)
}  # fmt: skip


class SettingOption(click.Option):
    """Option whose variable is shown in the help and read by `Config`.

    If click read it, `config show` could not tell a variable from a flag.
    """

    def resolve_envvar_value(self, ctx: click.Context) -> None:
        """Return nothing."""


_CONFIG: Final = click.option(
    "--config", metavar="FILE", envvar="PILLARBOX_CONFIG", show_envvar=True,
    help="The configuration.  [default: pillarbox.toml in the current folder, if there is one]",
)  # fmt: skip
_TO: Final = click.option(
    "--to", metavar="[NAME=]URL", multiple=True, cls=SettingOption, envvar="PILLARBOX_DESTINATION_<NAME>_URL",
    show_envvar=True, shell_complete=complete_destination,
    help="A destination to serve; may be repeated. A NAME alone is a configured one. Without --to all are served.",
)  # fmt: skip

_LABEL: Final = click.option(
    "--label", metavar="NAME=TEXT", multiple=True, cls=SettingOption, envvar=to_variable(("relay", "labels")),
    show_envvar=True, help="A label of the relay in the registry; may be repeated. They replace those of the file.",
)  # fmt: skip


def _add_options(command: Callable[..., R], *options: Callable[[Any], Any]) -> Callable[..., R]:
    for option in reversed(options):
        command = option(command)
    return command


def _to_option(flag: _Flag) -> Callable[[Any], Any]:
    default = to_plain(_DEFAULTS[flag.path])
    if isinstance(default, list):
        default = ",".join(map(str, default))
    help_text = flag.help if default in (None, "") else f"{flag.help}  [default: {default}]"
    return click.option(
        flag.name, cls=SettingOption, metavar=flag.metavar, envvar=to_variable(flag.path), show_envvar=True,
        help=help_text, multiple=flag.path == _STORE_URL,
    )  # fmt: skip


def _take_values(flags: Sequence[_Flag], arguments: dict[str, Any]) -> dict[KeyPath, ConfigValue]:
    """Remove the flags from the arguments and return the values of those that were given."""
    texts = {flag: arguments.pop(flag.parameter) for flag in flags}
    values = {
        flag.path: ConfigValue(text, ConfigOrigin("flag", flag.name))
        for flag, text in texts.items()
        if text is not None and flag.path != _STORE_URL
    }
    for flag, given in texts.items():
        if flag.path == _STORE_URL and given:
            stores = [given] if isinstance(given, str) else list(given)
            # One is the store; several are those of this run, whatever the file has.
            value, path = (stores[0], flag.path) if len(stores) == 1 else (stores, ("stores",))
            values[path] = ConfigValue(value, ConfigOrigin("flag", flag.name))
    return values


# --- --to ---

_NAMED_URL: Final = re.compile(r"(?P<name>[A-Za-z][\w.-]*)(?:=(?P<url>.*))?", re.DOTALL)
_TO_ORIGIN: Final = ConfigOrigin("flag", "--to")


def _parse_destinations(to: Sequence[str]) -> dict[KeyPath, ConfigValue]:
    """Return the URLs that `--to` gives, and the names of the destinations to serve."""
    if not to:
        return {}
    values: dict[KeyPath, ConfigValue] = {}
    names: list[str] = []
    for text in to:
        name, url = parse_destination(text)
        names.append(name)
        if url is not None:
            values["destinations", name, "url"] = ConfigValue(url, _TO_ORIGIN)
    return {**values, ("relay", "destinations"): ConfigValue(names, _TO_ORIGIN)}


def _parse_labels(texts: Sequence[str]) -> dict[KeyPath, ConfigValue]:
    """Return the labels that `--label` gives."""
    if not texts:
        return {}
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--label {text} has no text; write --label NAME=TEXT.")
        labels[name.strip()] = value.strip()
    return {("relay", "labels"): ConfigValue(labels, ConfigOrigin("flag", "--label"))}


def parse_destination(text: str) -> tuple[str, str | None]:
    """Split `NAME=URL`. A NAME alone has no URL; a URL alone is for the destination with the default name."""
    match = _NAMED_URL.fullmatch(text)
    if match is None:
        name, equals, _ = text.partition("=")
        if equals and not set(name) & set(":/?"):  # before its first option a URL has one of these
            check_destination(name)
        return DestinationSettings().name, text
    if match["url"] == "":
        raise ConfigError(f"--to {match['name']}= has no URL; write --to NAME=URL.")
    return match["name"], match["url"]
