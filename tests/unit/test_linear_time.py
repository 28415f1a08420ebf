"""Texts from outside are read in time that grows with their length, whoever wrote them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

from pillarbox.durations import parse_duration
from pillarbox.errors import ConfigError
from pillarbox.fingerprint import MAX_FINGERPRINT
from pillarbox.operations.failures import group_errors
from pillarbox.redaction import redact

LENGTH: Final = 20_000
_TEXTS: Final[dict[str, Callable[[int], str]]] = {
    "digits": lambda n: "1" * n,
    "digits without a unit": lambda n: "1" * n + "x",
    "dots": lambda n: "1." * (n // 2),
    "hours": lambda n: "1h" * (n // 2),
    "hexadecimal": lambda n: "a" * n + "_",
    "halves of ids": lambda n: "aaaaaaaa-aaaa-" * (n // 14),
    "words": lambda n: ("a" * 20 + "_ ") * (n // 22),
    "quotes": lambda n: "'" * n,
    "open quotes": lambda n: "'a\n\"" * (n // 4),
    "one open quote": lambda n: "'" + "a" * n,
    "zeros": lambda n: "0x" * (n // 2),
    "logins": lambda n: "://a:" * (n // 5),
    "passwords": lambda n: "password" * (n // 8),
    "options": lambda n: "--" * (n // 2),
    "lists": lambda n: "secret=(" * (n // 8),
    "cookies": lambda n: "cookie: " * (n // 8),
    "spoken passwords": lambda n: "password '" * (n // 10),
    "ports": lambda n: "a://b:1 " * (n // 8),
}


def read_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration") as refused:
        parse_duration(text)
    assert len(str(refused.value)) < 300


def read_failure(text: str) -> None:
    (group,) = group_errors([("billing", text, None, 1)])
    assert len(group.text) <= MAX_FINGERPRINT


def measure(read: Callable[[str], object], text: str) -> float:
    """Return the least time of several, which is the one that nobody disturbed."""
    times = []
    for _ in range(5):
        began_at = time.process_time()
        read(text)
        times.append(time.process_time() - began_at)
    return min(times)


@pytest.mark.parametrize("read", [read_duration, read_failure, redact])
@pytest.mark.parametrize("text", _TEXTS.values(), ids=_TEXTS)
def test_four_times_the_length_takes_about_four_times_as_long(
    read: Callable[[str], object], text: Callable[[int], str]
) -> None:
    short, long = measure(read, text(LENGTH)), measure(read, text(4 * LENGTH))
    # With the square of the length it would be 16 times, and seconds. What takes no time has no ratio.
    assert long < max(0.05, 9 * short)
