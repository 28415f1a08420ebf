"""Values as PostgreSQL reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from pillarbox.stores.postgres.psycopg_driver import to_literal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", ""),
        ("a 'b' {c}", "a 'b' {c}"),
        (True, "true"),
        (False, "false"),
        (-7, "-7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "2026-01-02T03:04:05.000006+00:00"),
        (timedelta(days=-1, seconds=1, microseconds=2), "-1 days 1 seconds 2 microseconds"),
        ([], "{}"),
        ((1, 2), "{1,2}"),
        ([True], '{"true"}'),
        (["", "null", None, 'a"b', "c\\d", "e,f", "{g}"], '{"","null",null,"a\\"b","c\\\\d","e,f","{g}"}'),
    ],
)
def test_each_kind_of_value(value: object, text: str | None) -> None:
    assert to_literal(value) == text


def test_what_the_store_never_passes_is_refused() -> None:
    with pytest.raises(TypeError, match="float"):
        to_literal(1.5)
