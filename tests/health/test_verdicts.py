"""Alive: a restart would not help. Ready: the store and every destination can be reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from pillarbox.health.verdicts import Seen, is_live, is_ready
from pillarbox.protocols import OpenClaim, Registry, RelayInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME = UUID(int=1)
LEASE = timedelta(seconds=10)


def registry(*, reachable: list[str] | None = None, relay_id: UUID = ME) -> Registry:
    relay = RelayInfo(
        relay_id=relay_id, service="shop", host="h", pid=1, version="1", destinations=["billing", "mail"],
        reachable=["billing", "mail"] if reachable is None else reachable,
    )  # fmt: skip
    return Registry(NOW, [relay], {})


def seen(**given: Any) -> Seen:
    base: dict[str, Any] = {
        "relay_id": ME, "stopping": False, "idle_for": 0.1, "lease": LEASE, "registry": registry(),
    }  # fmt: skip
    return Seen(**(base | given))


def test_a_healthy_relay_is_both() -> None:
    assert (is_live(seen()).good, is_ready(seen()).good) == (True, True)


def test_a_starting_relay_lives_and_is_not_ready() -> None:
    starting = seen(relay_id=None)
    assert (is_live(starting).good, list(is_ready(starting).reasons)) == (True, ["it is starting"])


def test_a_stopping_relay_lives_and_is_not_ready() -> None:
    stopping = seen(stopping=True, registry=Registry(NOW, [], {}))
    assert (is_live(stopping).good, list(is_ready(stopping).reasons)) == (True, ["it is stopping"])


def test_without_the_store_it_lives_and_is_not_ready_and_says_why() -> None:
    cut_off = seen(registry=None, trouble="nobody answers")
    assert is_live(cut_off).good
    assert list(is_ready(cut_off).reasons) == ["the store cannot be reached: nobody answers"]


def test_a_destination_that_is_away_is_named() -> None:
    away = seen(registry=registry(reachable=["mail"]))
    assert is_live(away).good
    assert list(is_ready(away).reasons) == ["the destination billing cannot be reached"]


def test_what_the_registry_does_not_have_is_neither() -> None:
    hung = seen(registry=registry(relay_id=uuid4()))
    assert (is_live(hung).good, is_ready(hung).good) == (False, False)


def test_a_loop_that_does_not_turn_is_dead_also_without_the_store() -> None:
    hung = seen(registry=None, trouble="away", idle_for=31.0)
    assert not is_live(hung).good
    assert "has not turned for 31s" in is_live(hung).reasons[0]


def test_messages_stuck_in_its_hands_make_it_unlive() -> None:
    claim = OpenClaim(relay_id=ME, claimed_at=NOW, message_ids=[1, 2], strikes=0)
    assert list(is_live(seen(stuck=[claim])).reasons) == ["2 messages have been in its hands for over 15m"]
