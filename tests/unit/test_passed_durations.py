"""A number where a duration belongs gets a sentence that says what to pass, in every settings class and argument."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, get_type_hints

import msgspec
import pytest

import pillarbox
from pillarbox import Inbox, Outbox
from pillarbox.brokers.http.receiver import HttpReceiver
from pillarbox.durations import _list_durations
from pillarbox.errors import ConfigError, MissingExtra, PublishError
from pillarbox.message import Names
from pillarbox.operations.monitor import Monitor
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.mariadb.store import MariadbStore
from pillarbox.stores.memory import MemoryStore
from pillarbox.stores.postgres.schema import PostgresSchema
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.stores.urls import parse_store_url

MESSAGE = r"=5 is not a duration: pass a timedelta, such as timedelta\(seconds=5\)"
NEEDED: dict[str, dict[str, Any]] = {
    "HttpSettings": {"url": "https://h.example/x"},
    "KafkaReceiverSettings": {"topics": ["a"], "group": "g"},
}
"""Options that a class needs beside its durations."""


def list_settings() -> Iterator[type[msgspec.Struct]]:
    """List the classes that check what is given: settings, policies and thresholds."""
    for module in pkgutil.walk_packages(pillarbox.__path__, "pillarbox."):
        if ".demo" in module.name or ".testing" in module.name or ".integrations" in module.name:
            continue
        try:
            loaded = importlib.import_module(module.name)
        except (ImportError, MissingExtra, SystemExit):
            continue
        for found in vars(loaded).values():
            if (
                isinstance(found, type)
                and issubclass(found, msgspec.Struct)
                and found.__module__ == module.name
                and "__post_init__" in dir(found)
                and _list_durations(found)
            ):
                yield found


CLASSES = list(list_settings())


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls in CLASSES for name, *_ in _list_durations(cls)], ids=str
)
def test_settings_say_what_to_pass(cls: type[msgspec.Struct], name: str) -> None:
    hints = get_type_hints(cls)
    needed: dict[str, Any] = {
        field.name: "https://h.example" if hints[field.name] is str else ("x",)
        for field in msgspec.structs.fields(cls)
        if field.required
    }
    with pytest.raises(ConfigError, match=f"{name}{MESSAGE}"):
        cls(**needed, **{name: 5})


def test_the_classes_are_found() -> None:
    names = {cls.__name__ for cls in CLASSES}
    assert {"RelaySettings", "DestinationSettings", "Retention", "ConsumerSettings", "HttpSettings", "RetryPolicy",
            "Thresholds", "ProbeSettings", "TenantSettings"} <= names  # fmt: skip


URLS = {kind: parse_store_url(f"{kind}://u@h/db") for kind in ("postgresql", "mysql")}
ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "timeout of PostgresStore": lambda value: PostgresStore("postgresql://h/db", timeout=value),
    "timeout of MariadbStore": lambda value: MariadbStore("mysql://h/db", timeout=value),
    "busy_timeout of SqliteStore": lambda value: SqliteStore("x.db", busy_timeout=value),
    "lock_timeout of PostgresSchema": lambda value: PostgresSchema(
        URLS["postgresql"], names=Names(), lock_timeout=value
    ),
    "patience of MariadbSchema": lambda value: MariadbSchema(URLS["mysql"], names=Names(), patience=value),
    "timeout of HttpReceiver": lambda value: HttpReceiver(timeout=value),
    "body_timeout of HttpReceiver": lambda value: HttpReceiver(body_timeout=value),
    "lease of Monitor": lambda value: Monitor(MemoryStore(), lease=value),
    "window of Monitor": lambda value: Monitor(MemoryStore(), window=value),
    "older_than of Inbox": lambda value: Inbox("mail").forget(MemoryStore().transaction(), older_than=value),
    "failed_older_than of Inbox": lambda value: Inbox("mail").forget(
        MemoryStore().transaction(), older_than=timedelta(1), failed_older_than=value
    ),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments_say_what_to_pass(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"^{argument.partition(' ')[0]}{MESSAGE}"):
        ARGUMENTS[argument](5)


@pytest.mark.parametrize("delay", [5, 0.5, "5s", True])
def test_a_delay_that_is_no_timedelta_is_a_publish_error(delay: Any) -> None:
    outbox = Outbox(routes="billing", source="/shop")
    with pytest.raises(PublishError, match="is not a duration: pass a timedelta, such as"):
        outbox.publish(MemoryStore().transaction(), {"a": 1}, type="a.b", delay=delay)
