"""Configuration: `pillarbox.toml`, then variables `PILLARBOX_*`, then flags. Each overrides the one before.

`Config.load()` collects what was written. `read_section` converts one table of it into a settings class and keeps the
origin of every value. Settings of higher layers, such as the relay's, are read there with the same functions.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, Self, TypeVar, cast, get_origin

import msgspec

from pillarbox.errors import ConfigError, UnknownDestination
from pillarbox.message import MAX_PAYLOAD, SKIPPED_DESTINATION, check_destination
from pillarbox.routes import Route, Routes
from pillarbox.settings import (
    DEFAULT_ORIGIN,
    ConfigOrigin,
    ConfigValue,
    Field,
    KeyPath,
    Layer,
    build_settings,
    format_key,
    join_words,
    list_fields,
    parse_value,
    suggest_nearest,
)

__all__ = [
    "SECTIONS",
    "Config",
    "OutboxSettings",
    "RouteSettings",
    "Section",
    "StoreSettings",
    "build_routes",
    "build_section",
    "check_key",
    "find_receiver_url",
    "list_consumers",
    "list_destinations",
    "merge_layers",
    "read_destination_layers",
    "read_layers",
    "read_outbox_section",
    "read_section",
    "read_store_section",
    "to_variable",
]

_FILE_NAME: Final = "pillarbox.toml"
_MAX_FILE: Final = 1024 * 1024
"""Characters of a configuration file. A wrong name can lead to a device that never ends."""
_DECLARED_TWICE: Final = re.compile(r"Cannot declare \((?P<names>.*)\) twice(?P<place>.*)")
_NAME_IN_TUPLE: Final = re.compile(r"'([^']*)'")
SECTIONS: Final = (
    "store", "stores", "tenants", "outbox", "relay", "log", "alerts", "probes", "dashboard", "destinations", "consumers"
)  # fmt: skip
"""The tables of the file. A new one must be added here."""
_NO_VALUES: Final[Layer] = MappingProxyType({})
_NOTHING_FIXED: Final[Mapping[KeyPath, object]] = MappingProxyType({})

S = TypeVar("S", bound=msgspec.Struct)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The file, the environment and the flags, not yet converted.

    Its repr shows the file's name alone: `environ` and `file` may hold secrets.
    """

    file: Mapping[str, Mapping[str, object]] = {}
    file_name: str = _FILE_NAME
    found: bool = False
    """True if there is a file."""
    environ: Mapping[str, str] = {}
    flags: Layer = _NO_VALUES

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        flags: Layer = _NO_VALUES,
    ) -> Self:
        """Read the file at `path`, or the one that PILLARBOX_CONFIG names, or `pillarbox.toml` here if there is one."""
        file = _find_file(path, environ)
        if file is None:
            return cls(environ=dict(environ), flags=flags)
        tables = _read_toml(file)
        for name, table in tables.items():
            if name not in SECTIONS:
                raise ConfigError(f"{file} has an unknown key {name}: {suggest_nearest(name, SECTIONS)}.")
            if not isinstance(table, dict):
                raise ConfigError(f"{name} in {file} must be a table: write [{name}] and its keys below.")
        return cls(file=tables, file_name=str(file), found=True, environ=dict(environ), flags=flags)

    def file_layer(self, at: KeyPath) -> Layer:
        """Return the values that the file has in the table at that path."""
        table: object = self.file
        for name in at:
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        origin = ConfigOrigin("file", self.file_name)
        values = _flatten(table) if isinstance(table, Mapping) else ()
        return {path: ConfigValue(value, origin) for path, value in values}

    def flag_layer(self, at: KeyPath) -> Layer:
        """Return the values that flags give for the table at that path."""
        return {path[len(at) :]: value for path, value in self.flags.items() if path[: len(at)] == at}

    def __repr__(self) -> str:
        return f"Config({self.file_name!r})"


def _find_file(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    name = os.fspath(path) if path is not None else environ.get("PILLARBOX_CONFIG")
    if name:
        return Path(name)
    file = Path(_FILE_NAME)
    return file if file.exists() else None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_MAX_FILE + 1)
        if len(text) > _MAX_FILE:
            raise ConfigError(f"The configuration file {file} is larger than {_MAX_FILE} characters: name another one.")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not UTF-8 text.") from error
    except RecursionError as error:
        raise ConfigError(f"The configuration file {file} holds lists in lists without end: correct it.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not TOML: {_explain_toml(str(error))}.") from error


def _explain_toml(reason: str) -> str:
    """Write a parser's reason as the end of a sentence. Of tables it says a tuple, and not what to do."""
    if (twice := _DECLARED_TWICE.match(reason)) is not None:
        table = format_key(tuple(_NAME_IN_TUPLE.findall(twice["names"])))
        return f"[{table}] stands there twice{twice['place']}: put all its keys into one"
    reason = reason.replace("Cannot overwrite a value", "a key is set twice")
    return f"{reason[:1].lower()}{reason[1:]}"


def _flatten(table: Mapping[str, object], *, at: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield every value in a table and its subtables, with its path. A list is a value; an empty table has none."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, at=(*at, name))
        else:
            yield (*at, name), value


# --- variables ---

_SHORT_VARIABLES: Final[Mapping[KeyPath, str]] = MappingProxyType(
    {
        ("store", "url"): "PILLARBOX_STORE",
        ("store", "schema"): "PILLARBOX_SCHEMA",
        ("store", "prefix"): "PILLARBOX_PREFIX",
    }
)
"""Options of nearly every command: their variables leave out the section."""

# Kubernetes sets such variables in every pod for each service. A service called pillarbox-relay has our prefix.
_KUBERNETES_VARIABLE: Final = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def to_variable(path: KeyPath) -> str:
    """Name the variable of an option: `("relay", "retention", "failed")` is PILLARBOX_RELAY_RETENTION_FAILED."""
    return _SHORT_VARIABLES.get(path) or f"PILLARBOX_{'_'.join(path).upper()}"


def _read_variable(name: str, environ: Mapping[str, str]) -> ConfigValue | None:
    """Return the variable's value; None if it is not set or empty."""
    text = environ.get(name, "").strip()
    return ConfigValue(text, ConfigOrigin("environment", name)) if text else None


def _check_variables(environ: Mapping[str, str], *, prefix: str, known: Iterable[str]) -> None:
    """Raise `ConfigError` for an unknown variable with that prefix: most likely it is misspelt."""
    names = set(known)
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in names and not _KUBERNETES_VARIABLE.fullmatch(variable):
            raise ConfigError(f"The environment variable {variable} is not known: {suggest_nearest(variable, names)}.")


# --- sections ---


class Section(msgspec.Struct, Generic[S], frozen=True):
    """Settings, and the origin of each of their values."""

    settings: S
    origins: Mapping[KeyPath, ConfigOrigin]

    def origin(self, path: KeyPath) -> ConfigOrigin:
        """Return the origin of the value at that path of the section."""
        return self.origins.get(path, DEFAULT_ORIGIN)

    def value(self, path: KeyPath) -> object:
        """Return the value at that path of the section."""
        value: object = self.settings
        for name in path:
            value = getattr(value, name)
        return value


def read_section(config: Config, cls: type[S], *, at: KeyPath, beside: Sequence[Field] = ()) -> Section[S]:
    """Read the settings of one table. `beside` are options in the same table that belong to other settings."""
    fields = list_fields(cls)
    values = merge_layers(read_layers(config, [*fields, *beside], at=at))
    return build_section(
        cls, {field.path: values[field.path] for field in fields if field.path in values}, fields, at=at
    )


def read_layers(config: Config, fields: Iterable[Field], *, at: KeyPath) -> Sequence[Layer]:
    """Return the values of a table by origin, the weakest first. `ConfigError` for a key or variable not known."""
    fields = list(fields)
    paths = [field.path for field in fields]
    variables = {path: to_variable((*at, *path)) for path in paths}
    _check_variables(config.environ, prefix=f"{to_variable(at)}_", known=variables.values())
    file = _join_tables(config.file_layer(at), [field.path for field in fields if get_origin(field.type) is Mapping])
    for path in file:
        check_key(path, paths, at=at, where=file[path].origin.where)
    environment = {
        path: value for path, name in variables.items() if (value := _read_variable(name, config.environ)) is not None
    }
    return [file, environment, config.flag_layer(at)]


def _join_tables(layer: Layer, paths: Sequence[KeyPath]) -> Layer:
    """Return the layer with one value for each of these tables, whose keys are the user's own."""
    joined: dict[KeyPath, ConfigValue] = {}
    for path, given in layer.items():
        table = next((table for table in paths if path[: len(table)] == table and path != table), None)
        if table is None:
            joined[path] = given
            continue
        known = joined[table].value if table in joined else {}
        # A table in the table is no text: whoever parses the value refuses it.
        value = given.value if len(path) == len(table) + 1 else {}
        joined[table] = ConfigValue({**cast("dict[str, object]", known), path[len(table)]: value}, given.origin)
    return joined


def merge_layers(layers: Iterable[Layer]) -> dict[KeyPath, ConfigValue]:
    """Merge layers, the weakest first: the last value of each path wins."""
    return {path: value for layer in layers for path, value in layer.items()}


def check_key(path: KeyPath, known: Sequence[KeyPath], *, at: KeyPath, where: str) -> None:
    """Raise `ConfigError` for a key that is not known, or that holds a value where a table belongs."""
    if path in known:
        return
    key = format_key((*at, *path))
    if any(other[: len(path)] == path for other in known):
        raise ConfigError(f"{key} in {where} must be a table.")
    keys = [format_key((*at, *other)) for other in known]
    raise ConfigError(f"{where} has an unknown key {key}: {suggest_nearest(key, keys)}.")


def build_section(
    cls: type[S],
    values: Layer,
    fields: Iterable[Field],
    *,
    at: KeyPath,
    fixed: Mapping[KeyPath, object] = _NOTHING_FIXED,
) -> Section[S]:
    """Convert the values and build the settings from them; `fixed` values are converted already."""
    converted = dict(fixed)
    for field in fields:
        if (value := values.get(field.path)) is not None:
            converted[field.path] = _convert(field, value, at=at)
    origins = {path: values[path].origin for path in converted if path in values}
    try:
        return Section(build_settings(cls, converted), origins)
    except ConfigError as error:
        raise ConfigError(_locate(str(error), origins, at=at)) from error


def _locate(reason: str, origins: Mapping[KeyPath, ConfigOrigin], *, at: KeyPath) -> str:
    """Add where the settings that a sentence names were given; where it names none, all of the section."""
    named = [path for path in origins if all(word.rstrip("s") in reason for word in path[-1].split("_"))]
    places = [origins[path].describe((*at, *path)) for path in named or origins]
    return f"{reason.removesuffix('.')} (see {join_words(places)})." if places else reason


def _convert(field: Field, value: ConfigValue, *, at: KeyPath) -> object:
    try:
        return parse_value(field.type, value.value)
    except ConfigError as error:
        name = value.origin.describe((*at, *field.path))
        raise ConfigError(f"{name} {str(error).removesuffix('.')}.") from error


# --- [store] ---


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store's URL, the names of its tables, and options that could stand in the URL as well."""

    url: str | None = None
    schema: str | None = None
    prefix: str = "pillarbox_"
    keep: Literal["full", "no-payload", "off"] | None = None
    pooler: Literal["none", "transaction"] | None = None
    dialect: Literal["native", "portable"] | None = None
    synchronous: Literal["full", "normal"] | None = None

    def __repr__(self) -> str:
        return f"StoreSettings(schema={self.schema!r}, prefix={self.prefix!r})"


def read_store_section(config: Config) -> Section[StoreSettings]:
    """Read `[store]`."""
    return read_section(config, StoreSettings, at=("store",))


# --- [outbox] ---


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One table of `[[outbox.routes]]`."""

    to: str | Sequence[str]
    topic: str = "*"
    type: str = "*"
    kind: Literal["event", "command"] | None = None
    headers: Mapping[str, str] = {}


class OutboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[outbox]`: what an `Outbox` is built from."""

    source: str | None = None
    default: Sequence[str] = ()
    """Destinations of messages that no route matches."""
    unrouted: Literal["skip", "error"] = "skip"
    max_payload: int = MAX_PAYLOAD
    serialize_keys: bool = False
    routes: Sequence[RouteSettings] = ()


def read_outbox_section(config: Config) -> Section[OutboxSettings]:
    """Read `[outbox]`."""
    return read_section(config, OutboxSettings, at=("outbox",))


def build_routes(config: Config, settings: OutboxSettings) -> Routes:
    """Build the routes; `UnknownDestination` where one leads to a destination that is not configured.

    Without this check a misspelt name would be written into rows that no relay serves.
    """
    routes = Routes(
        [Route(to=r.to, topic=r.topic, type=r.type, kind=r.kind, headers=r.headers) for r in settings.routes],
        default=settings.default or None,
        unrouted=settings.unrouted,
    )
    if not routes.destinations and settings.unrouted == "skip":
        raise ConfigError(
            f"outbox in {config.file_name} has neither routes nor a default, so every event would be skipped: write "
            'default = "NAME" under [outbox], or a table [[outbox.routes]].'
        )
    known = list_destinations(config)
    for name in sorted(routes.destinations - set(known)):
        hint = suggest_nearest(name, known) if known else "none is configured"
        raise UnknownDestination(f"outbox in {config.file_name} routes to the unknown destination {name}: {hint}.")
    return routes


# --- [destinations.*] ---

_DESTINATION_PREFIX: Final = "PILLARBOX_DESTINATION_"
_URL: Final = "_URL"


def list_destinations(config: Config) -> Sequence[str]:
    """List the names of all destinations in the file, the environment and the flags, sorted."""
    file = config.file.get("destinations", {})
    for name, table in file.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"destinations.{name} in {config.file_name} must be a table with a url.")
    flags = {path[1] for path in config.flags if path[0] == "destinations"}
    slugs = {_to_slug(name) for name in (*file, *flags)}
    # A variable PILLARBOX_DESTINATION_<NAME>_URL alone makes a destination, if its name is not one of the others.
    new = {slug.lower() for slug in _find_slugs(config.environ, _DESTINATION_PREFIX, _URL) if slug not in slugs}
    names = sorted({*file, *flags, *new})
    if SKIPPED_DESTINATION in names:
        raise ConfigError(f"The destination {SKIPPED_DESTINATION!r} is reserved; choose another name.")
    return [check_destination(name) for name in names]


def read_destination_layers(config: Config, own: Iterable[KeyPath]) -> Mapping[str, Sequence[Layer]]:
    """Return the values of each destination by origin, the weakest first.

    `own` are the options of a destination itself; every other option is its transport's.
    """
    names = list_destinations(config)
    environment = _read_destination_variables(config.environ, names, own)
    return {
        name: [
            config.file_layer(("destinations", name)),
            environment.get(name, {}),
            config.flag_layer(("destinations", name)),
        ]
        for name in names
    }


def _read_destination_variables(
    environ: Mapping[str, str], names: Sequence[str], own: Iterable[KeyPath]
) -> Mapping[str, dict[KeyPath, ConfigValue]]:
    keys = {"_".join(path).upper(): path for path in own}
    slugs = [_to_slug(name) for name in names]
    layers: dict[str, dict[KeyPath, ConfigValue]] = {}
    for variable in sorted(environ):
        if not variable.startswith(_DESTINATION_PREFIX) or (value := _read_variable(variable, environ)) is None:
            continue
        slug, key = _split_variable(variable, slugs)
        if not slug:
            known = [f"{_DESTINATION_PREFIX}{slug}_{key}" for slug in slugs or ["NAME"] for key in keys]
            _check_variables({variable: ""}, prefix=_DESTINATION_PREFIX, known=known)
            continue
        name = _find_by_slug(names, slug, variable)
        layers.setdefault(name, {})[keys.get(key, (key.lower(),))] = value
    return layers


def _split_variable(variable: str, slugs: Sequence[str]) -> tuple[str, str]:
    """Split a variable into a destination's slug and the option's key; the longest slug that matches wins."""
    rest = variable.removeprefix(_DESTINATION_PREFIX)
    if rest.endswith(_URL):
        return rest.removesuffix(_URL), "URL"
    slug = max((slug for slug in slugs if rest.startswith(f"{slug}_")), key=len, default="")
    return slug, rest[len(slug) + 1 :]


def _find_by_slug(names: Sequence[str], slug: str, variable: str, *, kind: str = "destination") -> str:
    matches = [name for name in names if _to_slug(name) == slug]
    if len(matches) > 1:
        raise ConfigError(
            f"The environment variable {variable} may mean the {kind} {' or '.join(matches)}: give it in the file."
        )
    return matches[0]


def _find_slugs(environ: Mapping[str, str], prefix: str, suffix: str) -> Sequence[str]:
    """List what stands between prefix and suffix in the names of the variables that are set."""
    names = [name.removeprefix(prefix) for name, value in environ.items() if name.startswith(prefix) and value.strip()]
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def _to_slug(name: str) -> str:
    """Spell the name of a destination or a consumer as variables do."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


# --- [consumers.*] ---

_CONSUMER_PREFIX: Final = "PILLARBOX_CONSUMER_"
_RECEIVER_SUFFIX: Final = "_RECEIVER"
_RECEIVER: Final = Field(("receiver",), str, None)


def list_consumers(config: Config) -> Sequence[str]:
    """List the names of all consumers in the file and the environment, sorted."""
    names = _list_consumers_in_file(config)
    found = _find_slugs(config.environ, _CONSUMER_PREFIX, _RECEIVER_SUFFIX)
    known = [_to_receiver_variable(name) for name in [*names, *found] or ["NAME"]]
    _check_variables(config.environ, prefix=_CONSUMER_PREFIX, known=known)
    slugs = {_to_slug(name) for name in names}
    return sorted({*names, *(slug.lower() for slug in found if slug not in slugs)})


def find_receiver_url(config: Config, name: str) -> ConfigValue:
    """Return the URL from which the consumer with that name receives; `ConfigError` if none is configured."""
    known, names = list_consumers(config), _list_consumers_in_file(config)
    at = ("consumers", name)
    file = config.file_layer(at)
    for path in file:
        check_key(path, [_RECEIVER.path], at=at, where=file[path].origin.where)
    variable = _to_receiver_variable(name)
    value = _read_variable(variable, config.environ)
    if value is not None and name in names:
        _find_by_slug(names, _to_slug(name), variable, kind="consumer")
    value = value or file.get(_RECEIVER.path)
    if value is None:
        hint = f" ({suggest_nearest(name, known)})" if known and name not in known else ""
        raise ConfigError(
            f"The consumer {name} has no receiver{hint}: give receiver=URL, set {variable}, or write a receiver under "
            f"[{format_key(at)}] in the file."
        )
    _convert(_RECEIVER, value, at=at)
    return value


def _list_consumers_in_file(config: Config) -> Sequence[str]:
    file = config.file.get("consumers", {})
    for name, table in file.items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"{format_key(('consumers', name))} in {config.file_name} must be a table with a receiver."
            )
    return list(file)


def _to_receiver_variable(name: str) -> str:
    return f"{_CONSUMER_PREFIX}{_to_slug(name)}{_RECEIVER_SUFFIX}"
