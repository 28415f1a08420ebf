"""A value of a wrong type gets a sentence that says what to pass, in every settings class and argument."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, get_type_hints

import msgspec
import pytest

import pillarbox
from pillarbox import (
    Consumer,
    ConsumerSettings,
    Destination,
    DestinationSettings,
    Inbox,
    Outbox,
    Relay,
    Relays,
    RelaySettings,
    RetryPolicy,
    Route,
)
from pillarbox.arguments import _find_wrong, _list_hints
from pillarbox.brokers.handlers import Handlers
from pillarbox.brokers.http.receiver import HttpReceiver
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
from pillarbox.testing.samples import sample

MESSAGE = r"=5 is not a duration: pass a timedelta, such as timedelta\(seconds=5\)"


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
            if isinstance(found, type) and issubclass(found, msgspec.Struct) and found.__module__ == module.name:
                checks = [vars(one)["__post_init__"] for one in found.__mro__ if "__post_init__" in vars(one)]
                if any("check_fields" in one.__code__.co_names for one in checks):
                    yield found


CLASSES = list(list_settings())
FIELDS = [
    (cls, name)
    for cls in CLASSES
    for name, hint in _list_hints(cls).items()
    if list(_find_wrong(object(), hint))
]  # fmt: skip


def create(cls: type[msgspec.Struct], **given: Any) -> object:
    hints = get_type_hints(cls)
    needed: dict[str, Any] = {
        field.name: "https://h.example" if hints[field.name] is str else ("x",)
        for field in msgspec.structs.fields(cls)
        if field.required
    }
    return cls(**needed | given)


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=str)
def test_settings_say_what_to_pass(cls: type[msgspec.Struct], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}=<object object at .*> is not .+\.$"):
        create(cls, **{name: object()})


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, name in FIELDS if "timedelta" in str(_list_hints(cls)[name])], ids=str
)
def test_a_number_is_not_a_duration(cls: type[msgspec.Struct], name: str) -> None:
    value = [5] if "Sequence" in str(_list_hints(cls)[name]) else 5
    with pytest.raises(ConfigError, match=f"{name}{MESSAGE}"):
        create(cls, **{name: value})


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, name in FIELDS if "timedelta" in str(_list_hints(cls)[name])], ids=str
)
def test_a_duration_below_zero_is_refused(cls: type[msgspec.Struct], name: str) -> None:
    value = timedelta(seconds=-1)
    with pytest.raises(ConfigError, match=r"below zero|must be positive"):
        create(cls, **{name: [value] if "Sequence" in str(_list_hints(cls)[name]) else value})


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 0, -1])
def test_a_rate_that_limits_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0; leave it out for no limit"):
        DestinationSettings(rate=rate)


@pytest.mark.parametrize(
    ("cls", "given", "said"),
    [
        (RelaySettings, {"max_lanes": "4"}, "max_lanes='4' is not a whole number: pass an int."),
        (RelaySettings, {"max_lanes": True}, "max_lanes=True is not a whole number: pass an int."),
        (RelaySettings, {"duties": "send"}, "duties='send' is not a list."),
        (RelaySettings, {"duties": ["snd"]}, "duties='snd' is not one of 'send', 'retry', 'recover', 'clean'."),
        (RelaySettings, {"labels": "a=b"}, "labels='a=b' is not a dict."),
        (RetryPolicy, {"attempts": 2.5}, "attempts=2.5 is not a whole number: pass an int."),
        (RetryPolicy, {"jitter": "x"}, "jitter='x' is not a number: pass an int or a float."),
        (RetryPolicy, {"schedule": "30s"}, "schedule='30s' is not a list."),
        (ConsumerSettings, {"retry": 5}, "retry=5 is not a RetryPolicy: pass RetryPolicy(…)."),
        (ConsumerSettings, {"unknown": "skip"}, "unknown='skip' is not one of 'ignore', 'fail'."),
        (DestinationSettings, {"readiness": "no"}, "readiness='no' is not True or False."),
        (DestinationSettings, {"rate": "5"}, "rate='5' is not a number: pass an int or a float."),
    ],
)
def test_the_sentence_names_the_value(cls: type[msgspec.Struct], given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**given)
    assert str(caught.value) == said


def test_values_that_fit_are_taken() -> None:
    assert RelaySettings(duties=["send", "retry"], max_lanes=None, labels={}).owns_lanes  # type: ignore[list-item]
    assert RetryPolicy(attempts=None, jitter=0, schedule=[timedelta(1)]).attempts is None
    assert DestinationSettings(rate=5, readiness=True).rate == 5


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


HANDLE = MemoryStore().transaction()
MESSAGE_IN = sample()
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "source": (lambda: Outbox(routes="a", source=5), "source=5 is not a text: pass a str."),  # type: ignore[arg-type]
    "routes": (lambda: Outbox(routes=["a"], source="/s"), "routes=['a'] are not routes"),  # type: ignore[list-item]
    "no routes": (lambda: Outbox(routes=None, source="/s"), "routes=None are not routes"),  # type: ignore[arg-type]
    "route": (lambda: Route(to=5), "5 is not the name of a destination"),  # type: ignore[arg-type]
    "topic": (lambda: Route(to="a", topic=5), "topic=5 is not a text"),  # type: ignore[arg-type]
    "prefix": (lambda: Outbox(routes="a", source="/s", prefix=5), "The table prefix 5 is not usable"),  # type: ignore[arg-type]
    "max_payload": (lambda: Outbox(routes="a", source="/s", max_payload="1"), "max_payload='1' is not a whole number"),  # type: ignore[arg-type]
    "serialize_keys": (lambda: Outbox(routes="a", source="/s", serialize_keys="y"), "is not True or False"),  # type: ignore[arg-type]
    "consumer": (lambda: Inbox(5), "consumer=5 is not a text"),  # type: ignore[arg-type]
    "handler": (lambda: Handlers().on(5), "what=5 is not a text"),  # type: ignore[arg-type]
    "destinations": (lambda: Relay("sqlite:///x.db", "memory:"), "pass URLs by name"),  # type: ignore[arg-type]
    "list": (lambda: Relay("sqlite:///x.db", ["memory:"]), "pass URLs by name"),  # type: ignore[list-item]
    "settings": (
        lambda: Relay("sqlite:///x.db", {"a": "memory:"}, settings={"lease": 5}),  # type: ignore[arg-type]
        "is not a RelaySettings: pass RelaySettings(…)",
    ),
    "transport": (lambda: Destination("memory:"), "A str does not build the transport of the destination default"),  # type: ignore[arg-type]
    "suspects": (lambda: Destination(MemoryStore, suspect_transport=5), "A int does not build the transport"),  # type: ignore[arg-type]
    "settings of a destination": (lambda: Destination(MemoryStore, 5), "settings=5 is not a DestinationSettings"),  # type: ignore[arg-type]
    "labels": (lambda: Relay("sqlite:///x.db", {"a": "memory:"}, labels=5), "labels=5 is not a dict"),  # type: ignore[arg-type]
    "lease": (
        lambda: Relay("sqlite:///x.db", {"a": "memory:"}, settings=RelaySettings(lease=timedelta.max)),
        "The lease of a relay cannot be forever",
    ),
    "stores": (lambda: Relays("sqlite:///x.db", {"a": "memory:"}), "A str does not name stores: pass URLs by name"),  # type: ignore[arg-type]
    "store of several": (lambda: Relays({"x": 5}, {"a": "memory:"}), "The store x is 5, which is no address"),  # type: ignore[dict-item]
    "destinations of several": (lambda: Relays({"x": "sqlite:///x.db"}, "memory:"), "pass URLs by name"),  # type: ignore[arg-type]
    "settings of several": (
        lambda: Relays({"x": "sqlite:///x.db"}, {"a": "memory:"}, settings=5),  # type: ignore[arg-type]
        "is not a RelaySettings",
    ),
    "headers": (lambda: Route(to="a", headers={"tenant": 5}), "headers=5 is not a text: pass a str."),  # type: ignore[dict-item]
    "receiver": (lambda: Consumer("a", receiver=5, database=print), "receiver=5 is not a receiver: pass a URL"),  # type: ignore[arg-type]
    "error": (
        lambda: Inbox("a").fail(HANDLE, MESSAGE_IN, error=5, attempts=1, content=None),  # type: ignore[call-overload]
        "error=5 is not a text",
    ),
    "attempts": (
        lambda: Inbox("a").fail(HANDLE, MESSAGE_IN, error="x", attempts="1", content=None),  # type: ignore[call-overload]
        "attempts='1' is not a whole number",
    ),
    "limit of redriven": (lambda: Inbox("a").redriven(HANDLE, limit="9"), "limit='9' is not a whole number"),  # type: ignore[call-overload]
    "limit of forget": (
        lambda: Inbox("a").forget(HANDLE, older_than=timedelta(1), limit="9"),  # type: ignore[call-overload]
        "limit='9' is not a whole number",
    ),
    "age": (lambda: Inbox("a").forget(HANDLE, older_than=timedelta(-1)), "An age below zero would forget everything"),
    "age of failed": (
        lambda: Inbox("a").forget(HANDLE, older_than=timedelta(1), failed_older_than=timedelta(-1)),
        "An age below zero would forget everything",
    ),
    "store": (lambda: Relay(5, {"a": "memory:"}), "store=5 is not a store: pass a URL"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("argument", WRONG)
def test_a_wrong_argument_says_what_to_pass(argument: str) -> None:
    call, said = WRONG[argument]
    with pytest.raises(ConfigError) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [({"headers": "a"}, "give a dict of texts"), ({"destinations": 5}, "5 is not the name of a destination")],
)
def test_a_wrong_option_of_publish_says_what_to_pass(option: dict[str, Any], said: str) -> None:
    outbox = Outbox(routes="billing", source="/shop")
    with pytest.raises(PublishError, match=said):
        outbox.publish(HANDLE, {"a": 1}, type="a.b", **option)
