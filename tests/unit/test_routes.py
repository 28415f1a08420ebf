"""From a message to its destinations."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Route, Routes
from pillarbox.errors import ConfigError, NoRoute
from pillarbox.message import SKIPPED_DESTINATION, Kind
from pillarbox.routes import check_override


def found(
    routes: Routes, topic: str = "orders", *, type: str = "orders.placed", kind: Kind = Kind.EVENT, **headers: str
) -> tuple[str, ...]:
    return routes.find(topic=topic, type=type, kind=kind, headers=headers)


def test_every_matching_route_adds_its_destinations_in_order_and_once() -> None:
    routes = Routes(
        [
            Route(to=["billing", "mail"], topic="orders.*"),
            Route(to=["stock"], topic="stock.*"),
            Route(to=["audit", "billing"]),
        ],
        default="never",
    )
    assert found(routes, "orders.eu") == ("billing", "mail", "audit")
    assert found(routes, "stock.eu") == ("stock", "audit", "billing")
    assert found(routes, "else") == ("audit", "billing")


def test_every_given_pattern_must_match() -> None:
    routes = Routes([Route(to="a", topic="o*", type="*.placed", kind="event", headers={"tenant": "eu-?"})])
    assert found(routes, tenant="eu-1") == ("a",)
    for missed in (
        found(routes, "x", tenant="eu-1"),
        found(routes, type="orders.paid", tenant="eu-1"),
        found(routes, tenant="us-1"),
        found(routes, tenant="eu-12"),
        found(routes),
    ):
        assert missed == (SKIPPED_DESTINATION,)
    with pytest.raises(NoRoute):
        found(routes, kind=Kind.COMMAND, tenant="eu-1")


def test_a_header_that_is_missing_matches_no_pattern() -> None:
    """Not even the one that takes every text, the empty one included."""
    routes = Routes([Route(to="a", headers={"tenant": "*"})])
    assert found(routes, tenant="") == found(routes, tenant="eu") == ("a",)
    assert found(routes) == found(routes, region="eu") == (SKIPPED_DESTINATION,)


def test_with_header_patterns_nothing_is_remembered_across_headers() -> None:
    routes = Routes([Route(to="a", headers={"tenant": "eu"}), Route(to="b", headers={"tenant": "us"})])
    assert [found(routes, tenant=one) for one in ("eu", "us", "eu")] == [("a",), ("b",), ("a",)]


@given(
    topic=st.text(alphabet="ab.A\n", max_size=6),
    pattern=st.text(alphabet="ab.A*?[]!-\n", max_size=6),
    kind=st.sampled_from(Kind),
)
def test_patterns_mean_what_fnmatchcase_means(topic: str, pattern: str, kind: Kind) -> None:
    routes = Routes([Route(to="yes", topic=pattern)], default="no")
    assert found(routes, topic, kind=kind) == (("yes",) if fnmatchcase(topic, pattern) else ("no",))
    by_type = Routes([Route(to="yes", type=pattern)], default="no")
    assert found(by_type, type=topic, kind=kind) == (("yes",) if fnmatchcase(topic, pattern) else ("no",))


def test_kinds_are_told_apart_also_in_the_cache() -> None:
    routes = Routes([Route(to="events", kind=Kind.EVENT), Route(to="commands", kind="command")])
    for _ in range(2):
        assert found(routes) == ("events",)
        assert found(routes, kind=Kind.COMMAND) == ("commands",)


def test_an_unrouted_event_is_skipped_or_an_error() -> None:
    assert found(Routes()) == (SKIPPED_DESTINATION,)
    with pytest.raises(NoRoute, match=r"No route takes the event orders.placed with topic 'orders'"):
        found(Routes(unrouted="error"))
    assert found(Routes(default=["a", "b"], unrouted="error")) == ("a", "b")


@pytest.mark.parametrize("unrouted", ["skip", "error"])
def test_a_command_needs_exactly_one_destination(unrouted: Any) -> None:
    assert found(Routes(default="one", unrouted=unrouted), kind=Kind.COMMAND) == ("one",)
    with pytest.raises(NoRoute, match="has no destination; a command needs exactly one"):
        found(Routes(unrouted=unrouted), kind=Kind.COMMAND)
    with pytest.raises(NoRoute, match="has the destinations a, b; a command needs exactly one"):
        found(Routes([Route(to=["a", "b"])], unrouted=unrouted), kind=Kind.COMMAND)


def test_an_override_follows_the_same_rules() -> None:
    def checked(names: Any, kind: Kind = Kind.EVENT) -> tuple[str, ...]:
        return check_override(names, kind=kind, type="t", topic="t")

    assert checked("a") == ("a",)
    assert checked(["a", "b", "a"]) == ("a", "b")
    assert checked(["a"], Kind.COMMAND) == ("a",)
    for bad in ([], ["not ok"], [SKIPPED_DESTINATION], ""):
        with pytest.raises(NoRoute):
            checked(bad)
    with pytest.raises(NoRoute, match="exactly one"):
        checked(["a", "b"], Kind.COMMAND)


def test_destinations_are_known_for_checking_a_configuration() -> None:
    routes = Routes([Route(to=["a", "b"]), Route(to="c", headers={"x": "y"})], default="d")
    assert routes.destinations == {"a", "b", "c", "d"}
    assert Routes.parse("all").destinations == {"all"}
    assert Routes().destinations == set()


def test_the_short_ways_to_write_routes() -> None:
    ready = Routes(default="x")
    assert Routes.parse(ready) is ready
    assert found(Routes.parse("x")) == ("x",)
    assert found(Routes.parse([Route(to="y")])) == ("y",)
    assert found(Routes.parse("x"), kind=Kind.COMMAND) == ("x",)


@pytest.mark.parametrize("bad", ["", "not ok", [], ["a", "b c"], SKIPPED_DESTINATION])
def test_bad_destinations_are_refused_when_configured(bad: Any) -> None:
    with pytest.raises(ConfigError):
        Route(to=bad)
    with pytest.raises(ConfigError):
        Routes(default=bad)


def test_bad_settings_are_refused_when_configured() -> None:
    with pytest.raises(ConfigError, match="unrouted='drop'"):
        Routes(unrouted="drop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="kind='query'"):
        Route(to="a", kind="query")  # type: ignore[arg-type]


def test_a_route_is_frozen_and_says_what_it_is() -> None:
    route = Route(to="billing", topic="orders.*", kind="command")
    assert (route.to, route.kind) == (("billing",), Kind.COMMAND)
    with pytest.raises(AttributeError):
        route.topic = "x"  # type: ignore[misc]
    assert route == Route(to=["billing"], topic="orders.*", kind=Kind.COMMAND)
