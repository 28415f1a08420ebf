"""What the doctor says of a MariaDB server."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

import pytest

from pillarbox.contracts.finding import Severity
from pillarbox.message import Names
from pillarbox.stores.mariadb.checks import MariadbFacts, build_findings
from pillarbox.stores.mariadb.schema import MariadbSchema
from pillarbox.stores.urls import parse_store_url
from tests.support.mariadb_server import connected
from tests.support.operations.doctor import codes, diagnose, severities

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


@pytest.fixture
async def url(mariadb_url: str) -> str:
    await MariadbSchema(parse_store_url(mariadb_url), names=Names()).install()
    return mariadb_url


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (MariadbFacts(), {}),
        (MariadbFacts(read_only=True), {"mysql.read-only": CRITICAL}),
        (MariadbFacts(nodes=3), {}),
        (MariadbFacts(nodes=2), {"mysql.few-nodes": WARNING}),
        (MariadbFacts(nodes=1, is_ready=False), {"mysql.node-not-ready": CRITICAL}),
        (MariadbFacts(engines=["pillarbox_outbox (MyISAM)"]), {"mysql.not-transactional": CRITICAL}),
        (MariadbFacts(flush_at_commit=2), {"mysql.commits-not-awaited": WARNING}),
        (MariadbFacts(sync_binlog=0), {}),
        (MariadbFacts(binary_log=True, sync_binlog=0), {"mysql.binary-log-not-awaited": INFO}),
        (MariadbFacts(id_steps=3), {"mysql.several-writers": WARNING}),
        (MariadbFacts(longest=timedelta(minutes=14)), {}),
        (MariadbFacts(longest=timedelta(minutes=16)), {"mysql.long-transaction": WARNING}),
    ],
)
def test_what_is_told_of_it(facts: MariadbFacts, found: dict[str, Severity]) -> None:
    assert {finding.code: finding.severity for finding in build_findings(facts)} == found


async def test_a_new_store_has_nothing_of_its_own_to_tell(url: str) -> None:
    """The server that the tests find may be set loosely; its tables are well."""
    loose = {"mysql.commits-not-awaited", "mysql.binary-log-not-awaited"}

    assert set(codes(await diagnose(url))) <= loose


async def test_no_tables(mariadb_url: str) -> None:
    assert severities(await diagnose(mariadb_url)) == {"store.schema-missing": CRITICAL}


async def test_a_table_without_transactions(url: str) -> None:
    with closing(connected(url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("alter table pillarbox_slot engine = MyISAM")

    assert severities(await diagnose(url))["mysql.not-transactional"] is CRITICAL


async def test_it_is_there_and_answers(url: str) -> None:
    report = await diagnose(url)

    assert [one.place for one in report.examined if one.about == "store"] == [url]
