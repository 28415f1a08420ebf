"""Publish in `transaction.atomic()`: the same write path as with every other handle, on Django's connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import connections, transaction
from django.utils.module_loading import import_string

from pillarbox.errors import ConfigError
from pillarbox.integrations.django import conf
from pillarbox.outbox import Outbox

if TYPE_CHECKING:
    from typing import Unpack

    from pillarbox.publish_options import PublishOptions

__all__ = ["in_atomic", "outbox", "publish", "send", "transactions"]

P = ParamSpec("P")
T = TypeVar("T")


@cache
def outbox() -> Outbox:
    """Return the outbox that PILLARBOX describes. It is built once, and again after a test changes the settings."""
    setting = dict(conf.read_setting())
    if "outbox" in setting:
        found = import_string(setting["outbox"])
        if not isinstance(found, Outbox):
            raise ConfigError(f"{setting['outbox']} is a {type(found).__name__} and no Outbox: name one in PILLARBOX.")
        return found
    if not setting.get("source") or not setting.get("routes"):
        raise ConfigError(
            'PILLARBOX in the Django settings needs a source and routes, such as {"source": "/shop", "routes": '
            '"broker"}, or {"outbox": "shop.messages.outbox"} for one of your own.'
        )
    return Outbox(**{name: value for name, value in setting.items() if name not in conf.DATABASE_KEYS})


def publish(event: object, *, using: str | None = None, **options: Unpack[PublishOptions]) -> Any:
    """Publish an event, or a list of them, inside the current `transaction.atomic()`; return its id, or theirs.

    `NotInTransaction` outside of one. `using` is the database, as everywhere in Django.
    """
    return outbox().publish(_get_connection(using), event, **options)


def send(command: object, *, using: str | None = None, **options: Unpack[PublishOptions]) -> Any:
    """Send a command, or a list of them, as `publish` does; each must have exactly one destination."""
    return outbox().send(_get_connection(using), command, **options)


async def in_atomic(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a plain function inside `transaction.atomic()`, from an async view: Django has no async atomic.

    It runs in the thread that Django has for such work, with the context of the request.
    """

    def run() -> T:
        with transaction.atomic(using=conf.get_database()):
            return work(*args, **kwargs)

    return await sync_to_async(run, thread_sensitive=True)()


@contextmanager
def transactions(using: str | None = None) -> Iterator[Any]:
    """Open `transaction.atomic()`, for `Consumer(database=transactions)`.

    Connections are treated as between two requests: a broken one is closed, and a good one after CONN_MAX_AGE.
    """
    connection = _get_connection(using)
    connection.close_if_unusable_or_obsolete()
    try:
        with transaction.atomic(using=connection.alias):
            yield connection
    finally:
        connection.close_if_unusable_or_obsolete()


def _get_connection(using: str | None) -> Any:
    return connections[using or conf.get_database()]


def _clear_cache(*, setting: str, **_: Any) -> None:
    if setting == "PILLARBOX":
        outbox.cache_clear()


setting_changed.connect(_clear_cache, dispatch_uid="pillarbox.outbox")
