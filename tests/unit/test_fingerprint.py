"""Errors of one reason have one fingerprint, and those of different reasons do not."""

from __future__ import annotations

import random
import string

import pytest

from pillarbox.fingerprint import MAX_FINGERPRINT, fingerprint


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("order 4711 is unknown", "order # is unknown"),
        ("order-4711 of tenant12", "order-# of tenant#"),
        ("took 1.250,75 of 30.000", "took # of #"),
        ("too large: 1048577 bytes of 1048576", "too large: # bytes of #"),
        ("answered 503 after 250 ms", "answered 503 after # ms"),
        ("answered 503", "answered 503"),
        ("429 Too Many Requests", "429 Too Many Requests"),
        ("NOT_FOUND (404): no exchange", "NOT_FOUND (404): no exchange"),
        ("row 999 of 1000", "row # of #"),
        ("used 512 MiB, 300s and 200%", "used # MiB, #s and #%"),
        ("no message 0b7c3d4e-1a2b-4c3d-8e4f-5a6b7c8d9e0f", "no message <id>"),
        ("reason 0x87 at 0xDEADBEEF", "reason <id> at <id>"),
        ("digest 9e107d9d372bb6826bd81d3542a419d6 differs", "digest <id> differs"),
        ("commit 3f2a9b1c", "commit <id>"),
        ("request 01ARZ3NDEKTSV4RRFFQ69G5FAV", "request <id>"),
        ("the transaction-unfinished state", "the transaction-unfinished state"),
        ("cannot reach 10.0.0.7:5672", "cannot reach <host>"),
        ("cannot reach 10.0.0.7", "cannot reach <host>"),
        ("cannot reach [2001:db8::1]:443", "cannot reach <host>"),
        ("cannot reach 2001:db8::7 now", "cannot reach <host> now"),
        ("cannot reach rabbit-2.internal:5672", "cannot reach <host>"),
        ("amqp://rabbit.internal:5672/shop is away", "amqp://<host>/shop is away"),
        ("https://shop.example/… answered 599.", "https://<host>/… answered 599."),
        ("key 'o-1' and \"a b\" and `x`", "key '…' and \"…\" and `…`"),
        ("it doesn't work and can't be sent", "it doesn't work and can't be sent"),
        ("until 2026-11-18T04:00:01.123456Z", "until <time>"),
        ("until 2026-11-18 04:00:01+01:00", "until <time>"),
        ("until 2026-11-18", "until <time>"),
        ("at 04:00:01", "at <time>"),
        ("retry after Wed, 18 Nov 2026 04:00:01 GMT", "retry after <time>"),
        ("login ***: password=*** is wrong", "login ***: password=*** is wrong"),
        ("one\n  line\tof\x00 words", "one line of words"),
        ("half \ud800 a character", "half a character"),
        ("", ""),
    ],
)
def test_what_varies_is_replaced(error: str, expected: str) -> None:
    assert fingerprint(error) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("answered 503", "answered 404"),
        ("connection refused", "connection reset"),
        ("ValueError: '1'", "TypeError: '1'"),
    ],
)
def test_different_reasons_stay_different(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_long_error_is_cut() -> None:
    long = fingerprint("word " * 1_000)
    assert len(long) == MAX_FINGERPRINT
    assert long.endswith("…")
    assert fingerprint("word " * 1_000 + "other end") == long


def test_a_fingerprint_is_its_own_fingerprint() -> None:
    error = "order 4711 of '7' at 10.0.0.7:80 on 2026-11-18 answered 503 for 0b7c3d4e-1a2b-4c3d-8e4f-5a6b7c8d9e0f"
    assert fingerprint(fingerprint(error)) == fingerprint(error)


def test_any_text_has_a_short_fingerprint_that_every_database_takes() -> None:
    dice = random.Random(7)
    letters = string.printable + "'\"`:.-[]/0123456789abcdef" * 3 + "ü\u202e\ud800\x00"
    for _ in range(300):
        text = "".join(dice.choice(letters) for _ in range(dice.randrange(600)))
        found = fingerprint(text)
        assert len(found) <= MAX_FINGERPRINT
        assert found.isprintable()
        found.encode()


@pytest.mark.parametrize("part", ["0x", "a-", "1.", "'", ":", "1:", "a.", "f", "http://", "[", "12-"])
def test_a_hostile_error_takes_no_long_time(part: str) -> None:
    # No time is asserted: a pattern that tries everything would not end here.
    assert len(fingerprint(part * 100_000)) <= MAX_FINGERPRINT
