"""The page of clusters says what the last runs of `make proof-clusters` found, and names every cluster."""

from __future__ import annotations

from proof.clusters.engines import CLUSTERS
from proof.clusters.page import PAGE, build_table, load_records, merge
from proof.clusters.run import FAULTS

LOSES = ("tansu",)
"""Clusters that lose what they acknowledged, by a fault of their own that a test shows without Pillarbox."""


def test_the_table_is_what_the_results_say() -> None:
    assert build_table(load_records()) in PAGE.read_text(), "write it by make proof-clusters ARGS=--save"


def test_every_cluster_and_fault_is_described() -> None:
    page = PAGE.read_text()
    for name in (*CLUSTERS, *FAULTS):
        assert f"| `{name}`" in page or f"`{name}`," in page, name


def test_nothing_was_lost_where_the_engine_promises_it() -> None:
    records = load_records()
    assert records
    for record in records:
        other_faults = [fault for fault in record.faults if not (record.lost and fault.startswith("lost: "))]
        assert (record.ghosts, record.out_of_order, other_faults) == (0, 0, []), record
        assert record.lost == 0 or record.cluster in LOSES, record
        assert record.undone == 0 or CLUSTERS[record.cluster].may_undo
        assert record.version


def test_a_new_result_replaces_the_old_one_of_its_fault() -> None:
    first, *others = load_records()
    assert merge([first, *others], [first], order=list(CLUSTERS)) == [first, *others]
