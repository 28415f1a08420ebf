"""A relay as the configuration has it: its settings, its destinations and their transports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from pillarbox.brokers.factory import transport_from_url
from pillarbox.brokers.settings import parse_transport_url
from pillarbox.config import (
    Config,
    Section,
    StoreSettings,
    build_section,
    check_key,
    merge_layers,
    read_destination_layers,
    read_layers,
    read_section,
    read_store_section,
)
from pillarbox.contracts.transport import Transport
from pillarbox.durations import FOREVER
from pillarbox.errors import ConfigError, MissingExtra, UnknownDestination
from pillarbox.message import SKIPPED_DESTINATION, Names, check_destination
from pillarbox.redaction import expand_variables, redact
from pillarbox.relay.relay import Destination
from pillarbox.relay.settings import DestinationSettings, RelaySettings
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
from pillarbox.stores.urls import StoreUrl, parse_store_url

__all__ = [
    "OWN_FIELDS",
    "SHARED_FIELDS",
    "ConfiguredDestination",
    "Served",
    "TransportOptions",
    "check_ends",
    "destination_from_url",
    "list_served_destinations",
    "read_destinations",
    "read_relay_section",
    "read_served_names",
    "read_store",
]

OWN_FIELDS: Final = list_fields(DestinationSettings, without=("name",))
"""Options of a destination itself; whatever else stands in its table is its transport's."""
SHARED_FIELDS: Final = tuple(field for field in OWN_FIELDS if field.path != ("dead_letter",))
"""Those that may stand in `[relay]` too, for every destination that says nothing else."""

_AT: Final = ("relay",)
_SERVED: Final = Field(("destinations",), Sequence[str], ())
_BESIDE: Final = (*SHARED_FIELDS, _SERVED)
_ENDLESS: Final = frozenset({"delivered", "failed", "skipped", "discarded", "inbox"})


def read_relay_section(config: Config) -> Section[RelaySettings]:
    """What is said about the relay as a whole."""
    section = read_section(config, RelaySettings, at=_AT, beside=_BESIDE)
    check_ends(section, at=_AT)
    if not section.settings.duties:
        raise ConfigError("A relay needs at least one duty: send, retry, recover or clean.")
    return section


class Served(msgspec.Struct, frozen=True):
    """The names of the destinations that the relay was told to serve, none for all of them; and who told it."""

    names: Sequence[str] = ()
    origin: ConfigOrigin = DEFAULT_ORIGIN


def read_served_names(config: Config) -> Served:
    """Which destinations are to be served. `ConfigError` when one is named twice."""
    given = merge_layers(_layers(config)).get(_SERVED.path)
    if given is None:
        return Served()
    names: Sequence[str] = parse_value(_SERVED.type, given.value)
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"The destination {name} is named twice; give each a name of its own: NAME=URL.")
    return Served(names, given.origin)


def read_shared_layers(config: Config) -> Sequence[Layer]:
    """What each source says for every destination, the weakest first."""
    wanted = {field.path for field in SHARED_FIELDS}
    return [{path: given for path, given in layer.items() if path in wanted} for layer in _layers(config)]


def check_ends(section: Section[Any], *, at: KeyPath) -> None:
    """`ConfigError` where somebody is to wait forever: the word is for keeping."""
    for field in list_fields(type(section.settings)):
        value = section.value(field.path)
        if FOREVER in (value if isinstance(value, tuple) else (value,)) and field.path[-1] not in _ENDLESS:
            raise ConfigError(f"{section.origin(field.path).describe((*at, *field.path))} cannot be forever.")


def _layers(config: Config) -> Sequence[Layer]:
    return read_layers(config, [*list_fields(RelaySettings), *_BESIDE], at=_AT)


_OPTIONS: Final = ("keep", "pooler", "synchronous")


def read_store(config: Config) -> tuple[StoreUrl, Names]:
    """Which store, and under which names its tables are."""
    settings = read_store_section(config).settings
    if settings.url is None:
        raise ConfigError(
            "No store is configured: give --store URL, set PILLARBOX_STORE, or write a url under [store] in the file."
        )
    url = expand_variables(settings.url.strip(), config.environ)
    whole = url + _query(settings, after="&" if "?" in url else "?")
    return parse_store_url(whole, environ=config.environ), Names(settings.schema, settings.prefix)


def _query(settings: StoreSettings, *, after: str) -> str:
    """The options that stand beside the URL, as it has them. One that is in both is refused by the URL's reader."""
    pairs = [f"{name}={value}" for name in _OPTIONS if (value := getattr(settings, name)) is not None]
    return f"{after}{'&'.join(pairs)}" if pairs else ""


_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_SECRET: Final = re.compile(r"pass|pwd|secret|token|key|credential|auth|login|dsn", re.IGNORECASE)
_BY_REFERENCE: Final = ("env:", "file:")


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A URL and the options beside it. Shown, it keeps them to itself."""

    name: str
    url: ConfigValue | None
    options: Layer
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Told({self.name!r})"

    def transport(self) -> Transport:
        """The transport, not yet connected. `ConfigError` says which destination it is about, and no secret."""
        try:
            return transport_from_url(self._expanded(), options=self.nested())
        except MissingExtra:
            raise
        except ConfigError as error:
            raise ConfigError(self._blamed(str(error).removesuffix("."))) from error

    def nested(self) -> dict[str, object]:
        """The options as the file would have them: a name with a dot is one entry of a table."""
        found: dict[str, Any] = {}
        for path, given in self.options.items():
            table = found
            for name in path[:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = given.value
        return found

    def shown_url(self) -> str | None:
        """The URL for people: no login, no path, no options."""
        if self.url is None:
            return None
        text = str(self.url.value)
        try:
            return str(parse_transport_url(self._expanded(), options={}))
        except ConfigError:
            return text if _REFERENCE.fullmatch(text) else "***"

    def shown_options(self) -> Iterator[tuple[KeyPath, object]]:
        """The options for people. What may be a secret is *** unless it only says where the secret is."""
        for path, given in sorted(self.options.items()):
            yield path, _redact_value(path, given.value)

    def _expanded(self) -> str:
        """The URL with its `${NAME}` filled in."""
        if self.url is None:
            raise ConfigError("It has no url.")
        if not isinstance(self.url.value, str):
            raise ConfigError("Its url must be a text.")
        for variable in _REFERENCE.findall(self.url.value):
            if variable not in self.environ:
                raise ConfigError(f"Its url refers to ${{{variable}}}, but that environment variable is not set.")
        return expand_variables(self.url.value, self.environ)

    def _blamed(self, reason: str) -> str:
        """Which destination it is; of an option that its transport does not know, who gave it and what may be meant."""
        for path, given in self.options.items():
            if f"no option {path[0]!r}" in reason:
                near = suggest_nearest(path[0], [field.path[0] for field in OWN_FIELDS])
                reason = f"{reason} (given by {given.origin.describe(('destinations', self.name, *path))}; {near})"
        return f"Destination {self.name} cannot be served: {reason}."


def _redact_value(path: KeyPath, value: object) -> object:
    if isinstance(value, list):
        return [_redact_value(path, part) for part in value]
    if isinstance(value, (bool, int, float)) or str(value).startswith(_BY_REFERENCE):
        return value
    # Entries of a table are headers and the like: their names say nothing about how secret they are.
    return "***" if len(path) > 1 or _SECRET.search(path[0]) else redact(str(value))


_URL: Final = ("url",)
_OWN: Final = (_URL, *(field.path for field in OWN_FIELDS))
_TABLES: Final = {path[0] for path in _OWN}


class ConfiguredDestination(msgspec.Struct, frozen=True, kw_only=True):
    """One destination as it was configured."""

    section: Section[DestinationSettings]
    told: TransportOptions

    @property
    def name(self) -> str:
        return self.section.settings.name

    def destination(self) -> Destination:
        """For a relay. `ConfigError` or `MissingExtra` when its transport could not be made."""
        self.told.transport()
        return Destination(self.told.transport, self.section.settings)


def destination_from_url(name: str, url: str, *, environ: Mapping[str, str] = os.environ) -> Destination:
    """Return the destination with that name and default settings; raise `ConfigError` when the URL is unusable."""
    if name == SKIPPED_DESTINATION:
        raise ConfigError(f"The destination {name!r} is reserved; choose another name.")
    settings = DestinationSettings(name=check_destination(name))
    options = TransportOptions(name=name, url=ConfigValue(url, DEFAULT_ORIGIN), options={}, environ=environ)
    options.transport()  # a wrong URL is found now, and not when the relay runs
    return Destination(options.transport, settings)


def read_destinations(config: Config) -> Mapping[str, ConfiguredDestination]:
    """Every destination that is configured, by name."""
    shared = read_shared_layers(config)
    made = {
        name: _build_destination(config, name, shared, own)
        for name, own in read_destination_layers(config, _OWN).items()
    }
    for name, one in made.items():
        to = one.section.settings.dead_letter
        if to is not None and to not in made:
            raise UnknownDestination(
                f"The dead_letter of destination {name} is the unknown {to}: {suggest_nearest(to, made)}."
            )
    return made


def list_served_destinations(config: Config) -> Sequence[ConfiguredDestination]:
    """Those that the relay is to serve: the ones it was told, or all."""
    names, known = read_served_names(config).names, read_destinations(config)
    if not known:
        raise ConfigError(
            "No destination is configured: give --to NAME=URL, set PILLARBOX_DESTINATION_NAME_URL, or write "
            "[destinations.NAME] with a url in the file."
        )
    for name in names:
        if name not in known:
            raise UnknownDestination(f"There is no destination {name}: {suggest_nearest(name, known)}.")
    return [known[name] for name in names or known]


def _build_destination(
    config: Config, name: str, shared: Sequence[Layer], own: Sequence[Layer]
) -> ConfiguredDestination:
    """A stronger source wins; within a source, what is said about the destination itself."""
    given = merge_layers(layer for pair in zip(shared, own, strict=True) for layer in pair)
    at = ("destinations", name)
    for path in given:
        if path[0] in _TABLES:
            check_key(path, _OWN, at=at, where=given[path].origin.where)
    _check_retry(given, at=at)
    section = build_section(DestinationSettings, given, OWN_FIELDS, at=at, fixed={("name",): name})
    check_ends(section, at=at)
    options = {path: one for path, one in given.items() if path not in _OWN}
    told = TransportOptions(name=name, url=given.get(_URL), options=options, environ=config.environ)
    return ConfiguredDestination(section=section, told=told)


def _check_retry(given: Layer, *, at: KeyPath) -> None:
    """Delays double, or they follow a schedule."""
    schedule = given.get(("retry", "schedule"))
    if schedule is None or schedule.value in ("none", []):
        return
    for name in ("first", "longest"):
        if (other := given.get(("retry", name))) is not None:
            raise ConfigError(
                f"{schedule.origin.describe((*at, 'retry', 'schedule'))} and "
                f"{other.origin.describe((*at, 'retry', name))} exclude each other: leave one."
            )
