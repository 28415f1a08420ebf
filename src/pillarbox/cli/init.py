"""`pillarbox init`: write a commented configuration file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from pillarbox.brokers.factory import transport_schemes
from pillarbox.brokers.settings import parse_transport_url
from pillarbox.cli._logs import LogSettings
from pillarbox.cli._options import parse_destination
from pillarbox.cli._output import OutputFormat, output_option, say, show
from pillarbox.cli.config import format_toml_value
from pillarbox.config import OutboxSettings, StoreSettings
from pillarbox.errors import ConfigError
from pillarbox.message import check_destination
from pillarbox.operations.alerts import Thresholds
from pillarbox.redaction import expand_variables
from pillarbox.relay.settings import DestinationSettings, RelaySettings
from pillarbox.settings import join_words, list_fields, to_plain
from pillarbox.stores.urls import parse_store_url

__all__ = ["build_file", "init"]

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}")
_PASSWORD: Final = re.compile(r"://[^/?#@]*:(?!\$\{)[^/?#@]+@")
_HEAD: Final = """\
# Settings of Pillarbox. A line behind `#` shows a default.
# `pillarbox config show` prints what is in force. docs/configuration.md explains every key.
# Variables such as PILLARBOX_RELAY_LEASE=20s override this file, and flags override both.
# Write a secret as ${NAME}: it is read from that environment variable.
"""
_EPILOG = """\b
Example:
  pillarbox init --store sqlite:///shop.db --to mail=https://mail.example/hooks
"""


@click.command(epilog=_EPILOG)
@click.option("--config", metavar="FILE", default="pillarbox.toml", show_default=True, envvar="PILLARBOX_CONFIG",
              show_envvar=True, help="The file to write. One that is there is not touched.")  # fmt: skip
@click.option("--store", metavar="URL", default="sqlite:///pillarbox.db", show_default=True, envvar="PILLARBOX_STORE",
              show_envvar=True, help="Where the tables are, or will be.")  # fmt: skip
@click.option("--to", metavar="NAME=URL", multiple=True, envvar="PILLARBOX_INIT_TO", show_envvar=True,
              help="A destination; may be repeated. Messages without a route go to the first.")  # fmt: skip
@output_option
def init(config: str, store: str, to: Sequence[str], output: OutputFormat) -> None:
    """Write a configuration file with comments, and say what to do next. Connects to nothing."""
    destinations = dict(map(_parse_destination, to))
    if len(destinations) < len(to):
        raise ConfigError("Two destinations have one name; give each a name of its own: --to NAME=URL.")
    place = _check_store(store)
    text = build_file(store=store, destinations=destinations, source=_choose_source(Path(config)))
    urls = [store, *destinations.values()]
    has_password = any(_PASSWORD.search(url) for url in urls)
    _write(Path(config), text, mode=0o600 if has_password else 0o666)
    if has_password:
        say(f"{config} holds a password: keep it out of version control, or write ${{NAME}} and set that variable.")
    steps = _list_steps(config, destinations)
    document = {"file": config, "store": place, "destinations": list(destinations), "next": [one for one, _ in steps]}
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command.ljust(width)}  {meaning}" for command, meaning in steps]
    show(document, text="\n".join([f"Wrote {config}. Next:", *lines]), output=output)


def _parse_destination(text: str) -> tuple[str, str]:
    name, url = parse_destination(text)
    if url is None:
        raise ConfigError(f"--to {name} has no URL; write --to NAME=URL.")
    check_destination(name)
    if not _REFERENCE.fullmatch(url):
        scheme = parse_transport_url(_fill(url), options={}).scheme
        if scheme not in transport_schemes():
            known = join_words([f"{scheme}:" for scheme in transport_schemes()], last="or")
            raise ConfigError(f"No installed transport is called {scheme!r}; URLs begin with {known}.")
    return name, url


def _check_store(url: str) -> str:
    """Return the store's URL for people to see; raise `ConfigError` if it is none."""
    return url if _REFERENCE.fullmatch(url) else str(parse_store_url(_fill(url)))


def _fill(url: str) -> str:
    """Put something in the place of every variable: they need not be set yet."""
    return expand_variables(url, {name: os.environ.get(name, "x") for name in _REFERENCE.findall(url)})


def _choose_source(file: Path) -> str:
    name = re.sub(r"[^\w.-]+", "-", file.absolute().parent.name, flags=re.ASCII).strip("-")
    return f"/{name or 'app'}"


def _write(file: Path, text: str, *, mode: int) -> None:
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{file} is there already, and was not touched: edit it, or name another file with --config."
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from error


def _list_steps(config: str, destinations: Mapping[str, str]) -> list[tuple[str, str]]:
    """List the next commands with what they do."""
    option = "" if config == "pillarbox.toml" else f" --config {config}"
    steps = [
        (f"pillarbox schema install{option}", "creates the tables"),
        (f"pillarbox relay{option}", "delivers, until you stop it"),
        (f"pillarbox status{option}", "shows what waits, what failed, and who delivers"),
        (f"pillarbox doctor{option}", "checks the store and every destination"),
    ]
    return steps if destinations else [(f"edit {config}", "name a destination"), *steps]


# --- the file ---


def build_file(*, store: str, destinations: Mapping[str, str], source: str) -> str:
    """Build the text of a configuration file: what was given, and the defaults of the rest as comments."""
    default = format_toml_value(next(iter(destinations))) if destinations else None
    return "\n".join([
        _HEAD,
        "[store]",
        f"url = {format_toml_value(store)}",
        *_comment(StoreSettings, "prefix", what="names of the tables begin with it"),
        "",
        "[outbox]  # for Outbox.from_config()",
        f"source = {format_toml_value(source)}  # the publisher of every message",
        f"default = {default}  # for messages that no route matches" if default else '# default = "NAME"',
        *_comment(OutboxSettings, "unrouted", what='"error" refuses an event that no route matches'),
        *_comment(OutboxSettings, "max_payload", what="bytes"),
        *_comment(OutboxSettings, "serialize_keys", what="true: lock keys, so that ids follow commit order"),
        "",
        "[relay]",
        *_comment(RelaySettings, "service", what="its name in `pillarbox relays`"),
        *_comment(RelaySettings, "lease", what="others take over when it is not heard of for so long"),
        *_comment(RelaySettings, "poll_interval", what="longest wait between two looks for messages"),
        *_comment(DestinationSettings, "batch", what="messages read, claimed and sent at a time"),
        *_comment(DestinationSettings, "window", what="messages in flight to one destination: the parallelism"),
        *_comment(DestinationSettings, "send_timeout", what="a send that takes longer counts as unanswered"),
        "",
        "[relay.retention]  # how long closed messages are kept: a time, 0 or \"forever\"",
        *_comment(RelaySettings, "retention.delivered", "retention.failed", "retention.skipped", "retention.discarded"),
        *_comment(RelaySettings, "retention.inbox", what="duplicates are recognised for so long"),
        *_comment(RelaySettings, "retention.every", what="how often a relay cleans"),
        "",
        *(line for name, url in destinations.items() for line in _build_destination(name, url)),
        *([] if destinations else ["# [destinations.NAME]", '# url = "https://mail.example/hooks"', ""]),
        "[alerts]  # for `pillarbox check` and `pillarbox status`",
        *_comment(Thresholds, "failed", what="critical above so many failed messages"),
        *_comment(Thresholds, "oldest_warning", "oldest_critical", "backlog_warning", "backlog_critical"),
        "",
        "[log]",
        *_comment(LogSettings, "format", what='or "json"'),
        *_comment(LogSettings, "level", what='or "debug", "warning", "error"'),
        "",
    ])  # fmt: skip


def _build_destination(name: str, url: str) -> list[str]:
    return [
        f"[destinations.{format_toml_value(name) if '.' in name else name}]",
        f"url = {format_toml_value(url)}",
        *_comment(DestinationSettings, "retry.attempts", what='or "forever"'),
        *_comment(DestinationSettings, "retry.first", what="the first wait; each further one is twice as long"),
        *_comment(DestinationSettings, "retry.longest", what="limit of a wait"),
        *_comment(DestinationSettings, "after_failure", what='or "hold": the key waits until a person acts'),
        "# readiness = true  # relays that cannot reach it are not ready; by default not so for webhooks",
        "# rate = 100  # limit of messages per second; there is none by default",
        "",
    ]


def _comment(settings: type[msgspec.Struct], *keys: str, what: str = "") -> list[str]:
    """Write the defaults of these keys as comments, taken from the settings themselves."""
    defaults = {".".join(field.path): field.default for field in list_fields(settings)}
    lines = [f"# {key.removeprefix('retention.')} = {format_toml_value(to_plain(defaults[key]))}" for key in keys]
    return [f"{line}  # {what}" if what else line for line in lines]
