"""How two schemas differ."""

from __future__ import annotations

from pillarbox.stores.catalog import compare_catalogs, normalize_sql

EXPECTED = {
    "table box": "table",
    "column box.id": "bigint",
    "column box.key": "text",
    "constraint on box: CHECK (id > 0)": "valid",
    "index box_idx on box": "create index",
    "view all": "select 1",
}


def told(found: dict[str, str]) -> list[str]:
    return [str(difference) for difference in compare_catalogs(expected=EXPECTED, found=found)]


def without(*items: str) -> dict[str, str]:
    return {item: definition for item, definition in EXPECTED.items() if item not in items}


def test_the_same_schema_does_not_differ() -> None:
    assert told(dict(EXPECTED)) == []


def test_each_difference_is_told_by_itself() -> None:
    found = without("index box_idx on box") | {"column box.key": "varchar", "column box.extra": "text"}

    assert told(found) == [
        "missing: index box_idx on box",
        "different: column box.key is varchar, should be text",
        "unexpected: column box.extra",
    ]


def test_a_missing_table_is_told_once_with_all_that_belongs_to_it() -> None:
    assert told({"view all": "select 1"}) == ["missing: table box"]


def test_columns_in_another_order_are_a_difference_and_a_missing_one_is_not_told_twice() -> None:
    swapped = ["table box", "column box.key", "column box.id", *list(EXPECTED)[3:]]

    assert told({item: EXPECTED[item] for item in swapped}) == [
        "different: order of columns in box is key, id, should be id, key"
    ]
    assert told(without("column box.id")) == ["missing: column box.id"]


def test_how_sql_was_written_makes_no_difference_but_its_texts_do() -> None:
    assert normalize_sql('CREATE  INDEX "I" on\n t(a)  -- why\n') == normalize_sql("create index i ON t ( a )")
    assert normalize_sql("x = 'A  b'") != normalize_sql("x = 'a b'")
    assert normalize_sql("x = '--a'") == "x = '--a'"
