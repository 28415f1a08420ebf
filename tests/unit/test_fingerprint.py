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
        ("it was 402 Payment Required", "it was 404 Not Found"),
        ("it was 422 Unprocessable Entity", "it was 413 Content Too Large"),
        ("connection refused", "connection reset"),
        ("ValueError: '1'", "TypeError: '1'"),
    ],
)
def test_different_reasons_stay_different(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "errors",
    [
        (
            "POST /charges/305 failed: answered 500",
            "POST /charges/17 failed: answered 500",
            "POST /charges/999123 failed: answered 500",
        ),
        ("no such customer 404", "no such customer 7", "no such customer 599"),
        ("order 305 rejected", "order 12 rejected"),
        ("charge 305: Payment declined", "charge 17: Payment declined", "charge 306: Payment declined"),
        ("order 305 Not Found", "order 12 Not Found", "order 599 Not Found"),
        ("error: 305 rows rejected", "error: 12 rows rejected"),
        ("charge ch_3NxAb2CdEf4GhIj failed", "charge ch_9ZxQb2CdEf4GhIk failed"),
        ("mail to ann@example.com bounced", "mail to bob.x+1@other.co.uk bounced"),
        ("KeyError: 'order-17'", "KeyError: 'order-305'"),
        (
            "ValueError: invalid literal for int() with base 10: 'abc'",
            "ValueError: invalid literal for int() with base 10: 'x1'",
        ),
        ("pod billing-7d9f8c6b5-x2x9z is gone", "pod billing-6c8f9d7b4-q3k8p is gone"),
        ("timeout after 300 ms", "timeout after 12 ms"),
        ("answered 503 after 300 ms", "answered 503 after 17 ms"),
        ("connect to 10.0.0.3:5432 failed", "connect to 10.0.0.14:5433 failed"),
        ("Jan 5 12:00:01 host gone", "Nov 18 09:14:59 host gone"),
        ("2026/01/31 10:00:00 bad", "2026/11/18 11:14:00 bad"),
        ("balance is -5", "balance is 12"),
        ("SKU A7B2C9D1 unknown", "SKU Z1Y8X2W3 unknown"),
        ("line 120, column 7", "line 34, column 512"),
        ("file /var/spool/305.json missing", "file /var/spool/7.json missing"),
        ("GET https://h/a/404 answered 500", "GET https://h/a/405 answered 500"),
        ("(1062, \"Duplicate entry '17' for key 'x'\")", "(1062, \"Duplicate entry '305' for key 'x'\")"),
        (
            'duplicate key value violates unique constraint "orders_pkey" DETAIL: Key (id)=(305) already exists.',
            'duplicate key value violates unique constraint "orders_pkey" DETAIL: Key (id)=(17) already exists.',
        ),
        ("port 443 refused", "port 8443 refused"),
        ("customer 305 has no account", "customer 7 has no account"),
        ("room 404: unknown", "room 12: unknown"),
        ("row 150 Not usable", "row 7 Not usable"),
        ("user “ann” is gone", "user “bob” is gone"),
        ("found 404 items", "found 12 items"),
        ("got 305 rows", "got 7 rows"),
        ("returned 500 rows", "returned 3 rows"),
        ("request 3fa85f64-5717-4562-b3fc-2c963f66afa6 failed", "request 7fa85f64-5717-4562-b3fc-2c963f66afa7 failed"),
        ("tenant 400: over quota", "tenant 12: over quota"),
        ("took 1.5s", "took 305s"),
        ("offset 400, limit 500", "offset 4, limit 5"),
        ("id=404", "id=3"),
        ("(id 404)", "(id 4)"),
        ("#404 is closed", "#7 is closed"),
        ("invoice [305] is void", "invoice [17] is void"),
        ("item (404) is sold", "item (7) is sold"),
        ("arn:aws:sqs:eu-west-1:123456789012:orders missing", "arn:aws:sqs:eu-west-1:210987654321:orders missing"),
        (
            "GET /v1/orders/305/items/404 -> 500 Internal Server Error",
            "GET /v1/orders/7/items/8 -> 500 Internal Server Error",
        ),
        ("order 404 Not paid", "order 7 Not paid"),
    ],
)
def test_errors_of_one_cause_are_one_group(errors: tuple[str, ...]) -> None:
    assert len({fingerprint(error) for error in errors}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("answered 404", "answered 500"),
        ("HTTP 422", "HTTP 500"),
        ("HTTP/1.1 404 Not Found", "HTTP/1.1 500 Internal Server Error"),
        ("status=404", "status=500"),
        ("status code 404", "status code 500"),
        ("Status: 404", "Status: 503"),
        ("404 Client Error: Not Found for url: https://h/a", "403 Client Error: Forbidden for url: https://h/a"),
        ("429 Too Many Requests", "503 Service Unavailable"),
        ("https://h/x answered 404 Not Found.", "https://h/x answered 410 Gone."),
        ("NOT_FOUND (404): no exchange", "NOT_FOUND (405): no exchange"),
        ("(404) not here", "(500) not here"),
        ("server responded with 502", "server responded with 504"),
        ("got 404 from shop", "got 500 from shop"),
        ("returned 404", "returned 500"),
        ("failed with 500", "failed with 404"),
        ("statusCode: 404", "statusCode: 500"),
        ("error code 404", "error code 500"),
        ("SMTP 550 no mailbox", "SMTP 421 busy"),
        ("550 Mailbox unavailable", "421 Service not available"),
        ("-> 500 Internal Server Error", "-> 404 Not Found"),
        ("404 NOT_FOUND - no exchange", "406 PRECONDITION_FAILED - x"),
        ("[Errno 111] Connection refused", "[Errno 104] Connection reset"),
        ("Response code: 404", "Response code: 500"),
        ("POST /charges/305 answered 404", "POST /charges/305 answered 500"),
        ("HTTPError: 404", "HTTPError: 500"),
        ("HTTPStatusError 404", "HTTPStatusError 500"),
        ("http status 404", "http status 500"),
        ("http 404", "http 500"),
        ("<Response [404]>", "<Response [500]>"),
        ("code=404", "code=500"),
        ("status_code=404", "status_code=500"),
        ("answered HTTP 404", "answered HTTP 500"),
        ("responded 404", "responded 500"),
        ("ClientResponseError: 404, message=x", "ClientResponseError: 500, message=x"),
        ("an error (status 404)", "an error (status 500)"),
        ("received status 404", "received status 500"),
        ("unexpected status: 404", "unexpected status: 500"),
        ("unexpected response 404", "unexpected response 503"),
        ("replied 404", "replied 500"),
        ("HTTP error 404", "HTTP error 500"),
        ("HTTP-404", "HTTP-500"),
        ("returns 404", "returns 500"),
        ("rejected with 404", "rejected with 500"),
        ("404: Not Found", "500: Internal Server Error"),
        ("404 page not found", "503 page not found"),
    ],
)
def test_statuses_of_answers_are_kept_apart(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_numbers_that_only_look_like_a_status_make_no_groups_of_their_own() -> None:
    templates = ("no account for customer {}", "POST /charges/{} failed", "order {} is void", "charge ({}) was refused")
    for template in templates:
        assert len({fingerprint(template.format(number)) for number in range(90, 620)}) == 1


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
