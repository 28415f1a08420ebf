"""Alive: a restart would not help. Ready: the store and every destination can be reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pillarbox.contracts.store import OpenClaim, Registry, RelayInfo
from pillarbox.errors import ConfigError
from pillarbox.operations.health import ProbeSettings, RelayState, check_liveness, check_readiness

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME = UUID(int=1)
LEASE = timedelta(seconds=10)


def registry(*, reachable: list[str] | None = None, relay_id: UUID = ME) -> Registry:
    relay = RelayInfo(
        relay_id=relay_id, service="shop", host="h", pid=1, version="1", destinations=["billing", "mail"],
        reachable=["billing", "mail"] if reachable is None else reachable,
    )  # fmt: skip
    return Registry(NOW, [relay], {})


USUAL = ProbeSettings()


def seen(**given: Any) -> RelayState:
    base: dict[str, Any] = {
        "relay_id": ME, "stopping": False, "idle_for": 0.1, "lease": LEASE, "registry": registry(),
    }  # fmt: skip
    return RelayState(**(base | given))


def test_a_healthy_relay_is_both() -> None:
    assert (check_liveness(seen(), USUAL).ok, check_readiness(seen()).ok) == (True, True)


def test_a_starting_relay_lives_and_is_not_ready() -> None:
    starting = seen(relay_id=None)
    assert (check_liveness(starting, USUAL).ok, list(check_readiness(starting).reasons)) == (
        True,
        ["it is starting"],
    )


def test_a_stopping_relay_lives_and_is_not_ready() -> None:
    stopping = seen(stopping=True, registry=Registry(NOW, [], {}))
    assert (check_liveness(stopping, USUAL).ok, list(check_readiness(stopping).reasons)) == (
        True,
        ["it is stopping"],
    )


def test_without_the_store_it_lives_and_is_not_ready_and_says_why() -> None:
    cut_off = seen(registry=None, store_error="nobody answers")
    assert check_liveness(cut_off, USUAL).ok
    assert list(check_readiness(cut_off).reasons) == ["the store cannot be reached: nobody answers"]


def test_a_destination_that_is_away_is_named() -> None:
    away = seen(registry=registry(reachable=["mail"]))
    assert check_liveness(away, USUAL).ok
    ready = check_readiness(away)
    assert (ready.ok, list(ready.reasons)) == (False, ["the destination billing cannot be reached"])


def test_a_destination_that_does_not_count_is_noted_and_no_reason() -> None:
    away = seen(registry=registry(reachable=[]), optional=frozenset({"billing"}))
    assert list(check_readiness(away).reasons) == ["the destination mail cannot be reached"]
    ready = check_readiness(seen(registry=registry(reachable=["mail"]), optional=frozenset({"billing"})))
    assert (ready.ok, list(ready.notes)) == (True, ["the destination billing cannot be reached"])


def test_what_the_registry_does_not_have_is_neither() -> None:
    hung = seen(registry=registry(relay_id=uuid4()))
    assert (check_liveness(hung, USUAL).ok, check_readiness(hung).ok) == (False, False)


def test_a_loop_that_does_not_turn_is_dead_also_without_the_store() -> None:
    hung = seen(registry=None, store_error="away", idle_for=31.0)
    assert not check_liveness(hung, USUAL).ok
    assert "has not turned for 31s" in check_liveness(hung, USUAL).reasons[0]


def test_messages_stuck_in_its_hands_make_it_unlive() -> None:
    claim = OpenClaim(relay_id=ME, claimed_at=NOW, message_ids=[1], strikes=0)
    alive = check_liveness(seen(stuck=[claim]), USUAL)
    assert (alive.ok, list(alive.reasons)) == (False, ["1 messages have been in its hands for over 15m"])


def test_the_age_and_the_number_of_stuck_messages_are_settings() -> None:
    claim = OpenClaim(relay_id=ME, claimed_at=NOW, message_ids=[1, 2], strikes=0)
    allowed = ProbeSettings(stuck_after=timedelta(seconds=20), stuck_messages=2)
    assert check_liveness(seen(stuck=[claim]), allowed).ok
    reasons = check_liveness(seen(stuck=[claim, claim]), allowed).reasons
    assert list(reasons) == ["4 messages have been in its hands for over 20s"]
    with pytest.raises(ConfigError, match="longer than nothing"):
        ProbeSettings(stuck_after=timedelta(0))
