"""`pillarbox dashboard`: stores in the browser."""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pillarbox.cli._logs import LogSettings, start_logging
from pillarbox.cli._options import SettingOption
from pillarbox.cli._output import echo, say
from pillarbox.config import Config, read_section, to_variable
from pillarbox.dashboard.settings import DashboardSettings, read_dashboard_section
from pillarbox.errors import ConfigError
from pillarbox.operations.health import parse_address
from pillarbox.relay.addresses import MAIN, split_store_choice
from pillarbox.settings import ConfigOrigin, ConfigValue, KeyPath

if TYPE_CHECKING:
    from pillarbox.dashboard.login import UrlLogin

__all__ = ["dashboard", "open_browser", "parse_stores", "show_login", "to_public_address"]

F = TypeVar("F", bound=Callable[..., Any])

_EPILOG = """Listens on this machine alone unless a login is configured. Actions are journalled with the user.

\b
Example:
  pillarbox dashboard --store orders=sqlite:///shop.db --store billing=sqlite:///billing.db
"""


def _option(name: str, key: str, help: str, **more: Any) -> Callable[[F], F]:
    return click.option(
        name, cls=SettingOption, envvar=to_variable(("dashboard", key)), show_envvar=True, help=help, **more
    )


@click.command("dashboard", epilog=_EPILOG)
@click.option("--config", metavar="FILE", envvar="PILLARBOX_CONFIG", show_envvar=True,
              help="The configuration.  [default: pillarbox.toml in the current folder, if there is one]")  # fmt: skip
@click.option("--store", "stores", multiple=True, metavar="[NAME=]URL", cls=SettingOption, envvar="PILLARBOX_STORE",
              show_envvar=True, help="A store to show; may be repeated.  [default: the configured one]")  # fmt: skip
@click.option("--http", default="127.0.0.1:8471", show_default=True, metavar="HOST:PORT",
              envvar="PILLARBOX_HTTP", show_envvar=True, help="Where it listens.")  # fmt: skip
@_option("--user", "users", "Who may log in; may be repeated. Roles: viewer, reader, operator, owner.", multiple=True,
         metavar="NAME:ROLE:env:VARIABLE")  # fmt: skip
@_option("--token", "token", "A token that programs send: Authorization: Bearer …", metavar="env:VARIABLE")
@_option("--read-only", "read_only", "No actions, whoever asks.", is_flag=True, default=None)
@_option("--environment", "environment", "Shown on every page: production, staging.", metavar="NAME")
@_option("--root-path", "root_path", "The path that a proxy removes.", metavar="/PATH")
@click.option("--open", "open_", is_flag=True, envvar="PILLARBOX_OPEN", show_envvar=True,
              help="Open it in the browser.")  # fmt: skip
def dashboard(config: str | None, stores: Sequence[str], http: str, open_: bool, **options: Any) -> None:
    """Show stores in the browser: what waits, what failed and why, and the actions on it. Runs until stopped."""
    loaded = Config.load(config, flags=_read_flags(options))
    named = parse_stores(stores)
    settings = read_dashboard_section(loaded)
    host, port = parse_address(http)
    start_logging(read_section(loaded, LogSettings, at=("log",)).settings)
    from pillarbox.dashboard.serve import build_dashboard, serve_dashboard

    app = build_dashboard(loaded, named, host=host)

    def announce(address: str) -> None:
        if settings.root_path:
            say(f"The dashboard listens at {address} until Ctrl-C, for a proxy that removes {settings.root_path}.")
        else:
            say(f"The dashboard is at {address} until Ctrl-C.")
        address = to_public_address(address, settings)
        if app.login is not None:
            address = show_login(app.login, address)
        if open_ and not address.startswith("/"):
            open_browser(address, into=stack)

    with ExitStack() as stack:
        serve_dashboard(app, host=host, port=port, root_path=settings.root_path, on_start=announce)


def to_public_address(address: str, settings: DashboardSettings) -> str:
    """Return where people open a dashboard that listens at an address: through the proxy, if it serves it below a path.

    Without `url` the address of the proxy is not known, and the path alone is returned.
    """
    if not settings.root_path:
        return address
    return f"{(settings.url or settings.root_path).rstrip('/')}/"


def show_login(login: UrlLogin, address: str, *, show: Callable[[str], None] = echo) -> str:
    """Print the address with the token, the only place where it is shown, and return it."""
    say("No login is configured: open it at the address with the token.")
    show(login.add_token(address))
    return login.add_token(address)


def open_browser(address: str, *, into: ExitStack) -> None:
    """Open an address in the browser by a file that only this user can read.

    Every user of the machine can read the arguments of the browser's process.
    """
    folder = into.enter_context(tempfile.TemporaryDirectory(prefix="pillarbox-"))
    page = Path(folder) / "dashboard.html"
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address)}">')
    webbrowser.open(page.as_uri())


def _read_flags(options: dict[str, Any]) -> dict[KeyPath, ConfigValue]:
    names = {"user": "users"}
    return {
        ("dashboard", names.get(name, name)): ConfigValue(
            list(value) if isinstance(value, tuple) else value, ConfigOrigin("flag", f"--{name.replace('_', '-')}")
        )
        for name, value in options.items()
        if value not in (None, ())
    }


def parse_stores(texts: Sequence[str]) -> dict[str, str]:
    """Read `NAME=URL` for each store; one without a name is called `main`."""
    stores: dict[str, str] = {}
    for text in texts:
        name, url = split_store_choice(text) or (MAIN, text)
        if name in stores:
            raise ConfigError(f"Two stores are called {name}: write --store NAME=URL with another name for each.")
        stores[name] = url
    return stores
