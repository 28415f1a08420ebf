"""The partition that Python computes is the one that SQL computes."""

from __future__ import annotations

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pillarbox.message import compute_partition, new_message_id

EXPRESSION = "get_byte(decode(md5(key), 'hex'), 0) & 63"

_keys = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


def test_the_expression_is_the_documented_one() -> None:
    assert EXPRESSION in (compute_partition.__doc__ or "")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(_keys, min_size=50, max_size=200))
def test_python_and_postgresql_agree(postgres_url: str, keys: list[str]) -> None:
    ids = [new_message_id() for _ in range(10)]
    with psycopg.connect(postgres_url) as connection:
        asked = f"select {EXPRESSION} from unnest(%s::text[]) with ordinality as given (key, place) order by place"
        rows = connection.execute(asked, [keys + [str(one) for one in ids]]).fetchall()
    expected = [compute_partition(key, ids[0]) for key in keys] + [compute_partition(None, one) for one in ids]
    assert [partition for (partition,) in rows] == expected
