"""Configuration of a relay: reads its settings, its store, its destinations and their transports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.settings import parse_transport_url
from pillarbox.config import (
    Config,
    Section,
    build_section,
    check_key,
    merge_layers,
    read_destination_layers,
    read_layers,
    read_section,
)
from pillarbox.contracts.transport import Transport
from pillarbox.durations import FOREVER
from pillarbox.errors import ConfigError, MissingExtra, UnknownDestination
from pillarbox.message import SKIPPED_DESTINATION, check_destination
from pillarbox.redaction import expand_variables, is_reference, redact
from pillarbox.relay.addresses import read_store, read_stores
from pillarbox.relay.relay import Destination
from pillarbox.relay.settings import (
    DestinationSettings,
    ProcessSettings,
    RelaySettings,
    SharingSettings,
    check_dead_letters,
)
from pillarbox.settings import (
    DEFAULT_ORIGIN,
    ConfigOrigin,
    ConfigValue,
    Field,
    KeyPath,
    Layer,
    list_fields,
    parse_value,
    suggest_nearest,
)

__all__ = [
    "OWN_FIELDS",
    "SHARED_FIELDS",
    "ConfiguredDestination",
    "Served",
    "TransportOptions",
    "check_durations",
    "destination_from_url",
    "list_handed_off",
    "list_served_destinations",
    "read_destinations",
    "read_process_section",
    "read_relay_section",
    "read_served_names",
    "read_sharing_section",
    "read_store",
    "read_stores",
]

OWN_FIELDS: Final = list_fields(DestinationSettings, without=("name",))
"""Options of a destination itself. All others in its table are options of its transport."""
_NEVER_SHARED: Final = frozenset({"dead_letter", "handoff", "handoff_slot", "handoff_publication"})
SHARED_FIELDS: Final = tuple(field for field in OWN_FIELDS if field.path[0] not in _NEVER_SHARED)
"""Options of a destination that `[relay]` may set for all destinations."""

_AT: Final = ("relay",)
_SERVED: Final = Field(("destinations",), Sequence[str], ())
_EXTRA_FIELDS: Final = (*SHARED_FIELDS, _SERVED, *list_fields(ProcessSettings), *list_fields(SharingSettings))
_MAY_BE_FOREVER: Final = frozenset({
    "delivered", "failed", "skipped", "discarded", "inbox", "inbox_failed", "rollups", "journal", "ping_interval",
    "give_up_after",
})  # fmt: skip
"""Retentions, pings, and the time after which a message is given up. Nothing else may last forever."""


def read_relay_section(config: Config) -> Section[RelaySettings]:
    """Read the settings of the relay as a whole."""
    section = read_section(config, RelaySettings, at=_AT, beside=_EXTRA_FIELDS)
    check_durations(section, at=_AT)
    if not section.settings.duties:
        raise ConfigError("A relay needs at least one duty: send, retry, recover or clean.")
    return section


def read_process_section(config: Config) -> Section[ProcessSettings]:
    """Read the number of processes, which is in the table of the relay."""
    beside = (*list_fields(RelaySettings), *SHARED_FIELDS, _SERVED, *list_fields(SharingSettings))
    return read_section(config, ProcessSettings, at=_AT, beside=beside)


def read_sharing_section(config: Config) -> Section[SharingSettings]:
    """Read what the relays of several stores have together, which is in the table of the relay."""
    beside = (*list_fields(RelaySettings), *SHARED_FIELDS, _SERVED, *list_fields(ProcessSettings))
    return read_section(config, SharingSettings, at=_AT, beside=beside)


class Served(msgspec.Struct, frozen=True):
    """Names of the destinations that the relay should serve, none for all; and where that is configured."""

    names: Sequence[str] = ()
    origin: ConfigOrigin = DEFAULT_ORIGIN


def read_served_names(config: Config) -> Served:
    """Read the names of the destinations to serve. Raise `ConfigError` if one is named twice."""
    given = merge_layers(_read_layers(config)).get(_SERVED.path)
    if given is None:
        return Served()
    try:
        names: Sequence[str] = parse_value(_SERVED.type, given.value)
    except ConfigError as error:
        where = given.origin.describe((*_AT, *_SERVED.path))
        raise ConfigError(f"{where} {error}: write a list of names of destinations.") from error
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The destination {name} is named twice; give each a name of its own: NAME=URL.")
    return Served(names, given.origin)


def _read_shared_layers(config: Config) -> Sequence[Layer]:
    """Read the options that each source sets for all destinations, the weakest source first."""
    wanted = {field.path for field in SHARED_FIELDS}
    return [{path: given for path, given in layer.items() if path in wanted} for layer in _read_layers(config)]


def check_durations(section: Section[Any], *, at: KeyPath) -> None:
    """Raise `ConfigError` for a wait that lasts forever. Only those in `_MAY_BE_FOREVER` may."""
    for field in list_fields(type(section.settings)):
        value = section.value(field.path)
        if FOREVER in (value if isinstance(value, tuple) else (value,)) and field.path[-1] not in _MAY_BE_FOREVER:
            raise ConfigError(f"{section.origin(field.path).describe((*at, *field.path))} cannot be forever.")


def _read_layers(config: Config) -> Sequence[Layer]:
    return read_layers(config, [*list_fields(RelaySettings), *_EXTRA_FIELDS], at=_AT)


_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_SECRET: Final = re.compile(r"pass|pwd|secret|token|key|credential|auth|login|dsn", re.IGNORECASE)


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """URL of a destination and the options of its transport. Its `repr` shows neither: they may hold secrets."""

    name: str
    url: ConfigValue | None
    options: Layer
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return f"TransportOptions({self.name!r})"

    def build_transport(self) -> Transport:
        """Build the transport, not yet connected. A `ConfigError` names the destination, and no secret."""
        try:
            return transport_from_url(self.expand_url(), options=self._nest_options())
        except MissingExtra:
            raise
        except ConfigError as error:
            raise ConfigError(self._explain(str(error).removesuffix("."))) from error

    def _nest_options(self) -> dict[str, object]:
        """Return the options as a file has them: a name with a dot is one entry of a table."""
        found: dict[str, Any] = {}
        for path, given in self.options.items():
            table = found
            for name in path[:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = given.value
        return found

    def redact_url(self) -> str | None:
        """Return the URL for people to see: no login, no path, no options."""
        if self.url is None:
            return None
        text = str(self.url.value)
        try:
            return str(parse_transport_url(self.expand_url(), options={}))
        except ConfigError:
            return text if _REFERENCE.fullmatch(text) else "***"

    def redact_options(self) -> Iterator[tuple[KeyPath, object]]:
        """List the options for people to see. A possible secret is `***`, unless it only says where the secret is."""
        for path, given in sorted(self.options.items()):
            yield path, _redact_value(path, given.value)

    def expand_url(self) -> str:
        """Return the URL with the environment variables for its `${NAME}`."""
        if self.url is None:
            near = get_close_matches("url", [path[0] for path in self.options], n=1)
            meant = f", where it says {near[0]}" if near else ""
            raise ConfigError(f'It has no url: write url = "…" under [destinations.{self.name}]{meant}.')
        if not isinstance(self.url.value, str):
            raise ConfigError("Its url must be a text.")
        is_given = self.url.origin.kind != "default"
        where = self.url.origin.describe(("destinations", self.name, "url")) if is_given else "Its url"
        return expand_variables(self.url.value, self.environ, where=where)

    def _explain(self, reason: str) -> str:
        """Name the destination, and where an option is set that is wrong; of an unknown one, which may be meant."""
        for path, given in self.options.items():
            where = given.origin.describe(("destinations", self.name, *path))
            if f"no option {path[0]!r}" in reason:
                near = suggest_nearest(path[0], [field.path[0] for field in OWN_FIELDS])
                hint = "" if "Did you mean" in reason else f"; {near}"
                reason = f"{reason} (given by {where}{hint})"
            elif f"The option {'.'.join(path)} refers to " in reason:
                reason = f"{reason} (given by {where})"
        return f"Destination {self.name} cannot be served: {reason}{'' if reason.endswith('?') else '.'}"


def _redact_value(path: KeyPath, value: object) -> object:
    if isinstance(value, list):
        return [_redact_value(path, part) for part in value]
    if isinstance(value, (bool, int, float)) or is_reference(str(value)):
        return value
    # Entries of a table are headers and the like: their names say nothing about how secret they are.
    return "***" if len(path) > 1 or _SECRET.search(path[0]) else redact(str(value))


_URL: Final = ("url",)
_OWN: Final = (_URL, *(field.path for field in OWN_FIELDS))
_TABLES: Final = {path[0] for path in _OWN}


class ConfiguredDestination(msgspec.Struct, frozen=True, kw_only=True):
    """Destination as it is configured: its own settings, and the options of its transport."""

    section: Section[DestinationSettings]
    transport_options: TransportOptions

    @property
    def name(self) -> str:
        return self.section.settings.name

    def build(self) -> Destination:
        """Build the destination for a relay. Raise `ConfigError` or `MissingExtra` if its transport cannot be built."""
        build_transport = self.transport_options.build_transport
        build_transport()  # a wrong option is found now, and not when the relay runs
        return Destination(build_transport, self.section.settings)


def destination_from_url(name: str, url: str, *, environ: Mapping[str, str] = os.environ) -> Destination:
    """Return the destination with that name and default settings; raise `ConfigError` when the URL is unusable."""
    if name == SKIPPED_DESTINATION:
        raise ConfigError(f"The destination {name!r} is reserved; choose another name.")
    settings = DestinationSettings(name=check_destination(name))
    options = TransportOptions(name=name, url=ConfigValue(url, DEFAULT_ORIGIN), options={}, environ=environ)
    options.build_transport()  # a wrong URL is found now, and not when the relay runs
    return Destination(options.build_transport, settings)


def read_destinations(config: Config) -> Mapping[str, ConfiguredDestination]:
    """Read every configured destination, by name."""
    shared = _read_shared_layers(config)
    destinations = {
        name: _build_destination(config, name, shared, own)
        for name, own in read_destination_layers(config, _OWN).items()
    }
    for name, one in destinations.items():
        to = one.section.settings.dead_letter
        if to is not None and to not in destinations:
            raise UnknownDestination(
                f"The dead_letter of destination {name} is the unknown {to}: {suggest_nearest(to, destinations)}."
            )
    check_dead_letters(one.section.settings for one in destinations.values())
    return destinations


def list_served_destinations(config: Config) -> Sequence[ConfiguredDestination]:
    """List the destinations that the relay should serve: those named in its settings, or all but those handed off."""
    names, known = read_served_names(config).names, read_destinations(config)
    if not known:
        raise ConfigError(
            "No destination is configured: give --to NAME=URL, set PILLARBOX_DESTINATION_NAME_URL, or write "
            "[destinations.NAME] with a url in the file."
        )
    for name in names:
        if name not in known:
            raise UnknownDestination(f"There is no destination {name}: {suggest_nearest(name, known)}.")
        if (engine := known[name].section.settings.handoff) is not None:
            raise ConfigError(
                f"The destination {name} is handed off to {engine}, and a relay beside it would deliver everything "
                "twice: leave it out here, or take `handoff` out of its settings once the connector is gone."
            )
    return [known[name] for name in names or known if known[name].section.settings.handoff is None]


def list_handed_off(config: Config) -> Sequence[DestinationSettings]:
    """List the destinations that another engine delivers."""
    return [one.section.settings for one in read_destinations(config).values() if one.section.settings.handoff]


def _build_destination(
    config: Config, name: str, shared: Sequence[Layer], own: Sequence[Layer]
) -> ConfiguredDestination:
    """Build one destination. A stronger source wins; within a source, an option of the destination itself wins."""
    given = merge_layers(layer for pair in zip(shared, own, strict=True) for layer in pair)
    at = ("destinations", name)
    for path in given:
        if path[0] in _TABLES:
            check_key(path, _OWN, at=at, where=given[path].origin.where)
    _check_retry(given, at=at)
    section = build_section(DestinationSettings, given, OWN_FIELDS, at=at, fixed={("name",): name})
    check_durations(section, at=at)
    options = {path: one for path, one in given.items() if path not in _OWN}
    transport_options = TransportOptions(name=name, url=given.get(_URL), options=options, environ=config.environ)
    return ConfiguredDestination(section=section, transport_options=transport_options)


def _check_retry(given: Layer, *, at: KeyPath) -> None:
    """Raise `ConfigError` if both a schedule and a doubling delay are set."""
    schedule = given.get(("retry", "schedule"))
    if schedule is None or schedule.value in ("none", []):
        return
    for name in ("first", "longest"):
        if (other := given.get(("retry", name))) is not None:
            raise ConfigError(
                f"{schedule.origin.describe((*at, 'retry', 'schedule'))} and "
                f"{other.origin.describe((*at, 'retry', name))} exclude each other: leave one."
            )
