"""The list of breaks fits today's code: a break that does not apply would say nothing, and nobody would notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.mutants.breaks import AREAS, Break, Unfit, find_faults, load_breaks, select_breaks

ROOT = AREAS.parents[2]
SOURCES = ROOT / "src" / "pillarbox"


def sample(**changes: object) -> Break:
    values = {"name": "a price is too low", "file": "shop.py", "old": "+ 1", "new": "- 1", "tests": ["test_shop.py"]}
    return Break(**{**values, **changes})  # type: ignore[arg-type]


def test_every_break_fits_the_code_and_names_tests_that_are_there() -> None:
    assert list(find_faults(load_breaks(), ROOT)) == []


def test_there_are_many_over_all_areas_and_stores() -> None:
    breaks = load_breaks()
    assert len(breaks) >= 160
    files = [Path(one.file) for one in breaks]
    broken = {file.relative_to("src/pillarbox").parent for file in files if file.is_relative_to("src/pillarbox")}
    for folder in ("stores", "brokers"):
        technologies = [path for path in (SOURCES / folder).iterdir() if path.is_dir() and path.name != "__pycache__"]
        untouched = {path.name for path in technologies} - {
            parent.parts[1] for parent in broken if len(parent.parts) > 1
        }
        assert untouched == set()
    assert {"cli", "consumer", "integrations", "operations", "relay", "writers"} <= {str(path) for path in broken}
    assert {one.file.rpartition(".")[2] for one in breaks} >= {"py", "sql"}


@pytest.mark.parametrize(("text", "reason"), [("price = 1", "occurs 0 times"), ("price + 1 + 1", "occurs 2 times")])
def test_the_old_text_must_be_there_once(text: str, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        sample().apply(text)
    assert sample().apply("price + 1") == "price - 1"
    with pytest.raises(Unfit, match="changes nothing"):
        sample(new="+ 1").apply("price + 1")


def test_what_does_not_fit_any_more_is_told(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def price(): return 1 + 1\n")
    (tmp_path / "test_shop.py").write_text("def test_price(): ...\n")
    good = sample(match="price", tests=["test_shop.py::test_price"])
    assert list(find_faults([good], tmp_path)) == []
    bad = [
        sample(name="1", old="+ 2"),
        sample(name="2", file="gone.py"),
        sample(name="3", tests=["test_gone.py"]),
        sample(name="4", tests=["test_shop.py::test_gone"]),
        sample(name="5", match="price or gone"),
        sample(name="6", tests=[]),
        sample(name="6"),
    ]
    faults = [fault.partition(": ")[2] for fault in find_faults(bad, tmp_path)]
    assert [fault.partition(": ")[0] for fault in faults] == ["1", "2", "3", "4", "5", "6", "6"]


def test_an_area_or_a_part_of_a_name_selects() -> None:
    breaks = [sample(area="shop"), sample(name="the shop is closed", area="billing"), sample(name="x", area="other")]
    assert select_breaks(breaks, "shop") == breaks[:1]
    assert select_breaks(breaks, "SHOP is") == breaks[1:2]
    assert select_breaks(breaks, "nothing") == []
