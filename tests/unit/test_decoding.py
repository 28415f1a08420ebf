"""Ids of incoming messages that an inbox can keep."""

from __future__ import annotations

import pytest

from pillarbox.decoding import to_usable_id
from pillarbox.message import MAX_TEXT


@pytest.mark.parametrize("text", ["m-1", "ä" * (MAX_TEXT // 2), "urn:uuid:1 with spaces"])
def test_an_id_that_can_be_kept_is_kept(text: str) -> None:
    assert to_usable_id(text) == text


@pytest.mark.parametrize("text", ["x" * (MAX_TEXT + 1), "ä" * MAX_TEXT, "a\x00b", "a\nb", "\ud800"])
def test_another_is_a_digest_of_its_own(text: str) -> None:
    assert to_usable_id(text).startswith("sha256:")
    assert to_usable_id(text) == to_usable_id(text)
    assert to_usable_id(text) != to_usable_id(f"{text}.")
