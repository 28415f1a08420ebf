"""The same on MariaDB, with PyMySQL in the place of mysqlclient; and what only MariaDB does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, Final

import pytest
from pymysql.constants.COMMAND import COM_QUERY

from tests.integration.django_project.conftest import empty
from tests.integration.django_project.published import told, words
from tests.integration.django_project.test_admin import (  # noqa: F401 - they run here once more
    operator,
    people,
    test_discarding_needs_a_reason,
    test_filters_and_search_find_messages,
    test_redriving_is_asked_for_and_then_done,
    test_the_detail_page_has_the_journal_and_no_payload,
    test_the_list_shows_what_is_open_and_closed,
    used,
    viewer,
)
from tests.integration.django_project.test_consumer import (  # noqa: F401
    Scene,
    scene,
    test_a_block_that_was_told_to_roll_back_has_failed,
    test_a_handler_s_models_commit_with_the_record,
    test_what_a_handler_publishes_commits_with_it,
    test_what_fails_leaves_nothing_behind,
)
from tests.integration.django_project.test_models import (  # noqa: F401
    test_a_block_that_rolls_back_takes_the_messages_with_it,
    test_a_model_is_saved_by_every_way_that_calls_save,
    test_a_model_publishes_what_it_raised_when_it_is_saved,
    test_a_model_whose_event_cannot_be_published_is_not_saved,
    test_messages_are_asked_for_by_time_and_id,
)
from tests.integration.django_project.test_outbox import (  # noqa: F401
    test_a_block_of_another_database_is_none,
    test_a_command_goes_the_same_way,
    test_a_connection_is_a_handle_of_any_outbox,
    test_a_message_commits_with_its_block_or_not_at_all,
    test_a_transaction_by_hand_is_one_too,
    test_an_inbox_works_in_a_block,
    test_models_are_saved_and_deleted_from_async_code,
    test_outside_a_block_nothing_is_published,
)
from tests.integration.django_project.test_outbox_kit import (  # noqa: F401
    test_a_test_case_hides_no_missing_block,
    test_in_a_transaction_test_case_messages_are_delivered_and_cleared,
    test_the_kit_sees_what_a_test_case_never_commits,
)
from tests.integration.django_project.test_settings import url_of
from tests.support.consumer.scene import Ticked
from tests.support.mariadb_server import connected


@pytest.fixture(params=["mariadb"])
def using(request: pytest.FixtureRequest, project: dict[str, str]) -> Iterator[str]:
    """A database with empty tables, in the place of those that `conftest` has for everyone."""
    empty("mariadb")
    yield "mariadb"
    empty("mariadb")


def test_errors_are_django_s_own(using: str) -> None:
    from django.db import Error, connections, transaction

    from pillarbox.integrations.django import publish

    def cut() -> None:
        with suppress(Error), connections[using].cursor() as cursor:
            cursor.execute("kill connection_id()")
        publish(told("lost"), using=using)

    with pytest.raises(Error):
        transaction.atomic(using=using)(cut)()
    assert words(using) == []


def test_a_deadlock_that_a_handler_caught_is_no_commit(scene: Scene, project: dict[str, str]) -> None:  # noqa: F811
    """MariaDB has rolled back everything, the record of the inbox too, and would go on in a new transaction.

    The rival changed more rows, so it is the one that survives.
    """
    from django.db import DatabaseError, connections

    rival = connected(project["DJANGO_TEST_MARIADB"])
    rival.query(f"insert into shop_order (id, note) values {', '.join(f'({n}, 0)' for n in range(902, 1500))}")
    calls: list[int] = []

    def swallowing(event: Ticked) -> None:
        calls.append(event.number)
        if len(calls) == 1:
            with connections[scene.using].cursor() as cursor:
                cursor.execute("insert into shop_order (id, note) values (901, 'ours')")
                rival._execute_command(
                    COM_QUERY, "insert into shop_order (id, note) values (901, 'x')"
                )  # not waited for
                with suppress(DatabaseError):
                    cursor.execute("insert into shop_order (id, note) values (902, 'ours')")
        scene.note(event)

    with closing(rival):
        scene.run(swallowing)
    assert len(calls) == 2
    assert scene.left() == ([("1",)], [("done", 0)])


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop", "HOST": "db", "PORT": 3307, "USER": "me", "PASSWORD": "p@:/?#"},
         "mysql://me:p%40%3A%2F%3F%23@db:3307/shop"),
        ({"NAME": "shop", "HOST": "/run/my.sock", "USER": "me", "PORT": "3307"},
         "mysql://me@/shop?unix_socket=%2Frun%2Fmy.sock"),
        ({"NAME": "shop", "OPTIONS": {"unix_socket": "/run/my.sock", "charset": "utf8mb4"}},
         "mysql:///shop?unix_socket=%2Frun%2Fmy.sock"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"ssl": {"ca": "/ca", "cert": "/c", "key": "/k", "cipher": "x"}}},
         "mysql://db/shop?ssl_ca=%2Fca&ssl_cert=%2Fc&ssl_key=%2Fk"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"ssl_mode": "DISABLED"}}, "mysql://db/shop?ssl=off"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"ssl_mode": "required"}}, "mysql://db/shop?ssl=unverified"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"ssl_mode": "REQUIRED", "ssl": {"ca": "/ca"}}},
         "mysql://db/shop?ssl_ca=%2Fca"),
        ({"NAME": "", "OPTIONS": {"read_default_file": "/my.cnf"}}, None),
    ],
)  # fmt: skip
def test_the_store_of_a_mysql_database(
    project: dict[str, str], monkeypatch: pytest.MonkeyPatch, database: dict[str, Any], url: str | None
) -> None:
    assert url_of("mariadb", database, monkeypatch) == url


def test_the_store_finds_what_django_made(project: dict[str, str], using: str) -> None:
    from django.core.management import call_command

    from pillarbox.integrations.django import conf
    from pillarbox.stores.factory import open_schema
    from pillarbox.stores.urls import parse_store_url

    schema = open_schema(parse_store_url(conf.build_store_url(using)), names=conf.get_names())
    assert not asyncio.run(schema.verify())
    call_command("check", databases=[using])


_WITH_A_SCHEMA: Final = """
import sys
import django
from django.conf import settings
from tests.integration.django_project.settings import DATABASES

settings.configure(
    DATABASES={"default": DATABASES["mariadb"]}, INSTALLED_APPS=["pillarbox.integrations.django"], USE_TZ=True,
    PILLARBOX={"source": "/s", "routes": "b", "schema": sys.argv[1], "prefix": "box_"},
)
django.setup()
from django.db import connection, transaction
from pillarbox.integrations.django import publish
from pillarbox.integrations.django.models import JournalLine, Message
from pillarbox.integrations.django.operations import ChangeTables
from pillarbox.integrations.django.testing import DjangoKit
from pillarbox.stores.migrations import latest_version

change = ChangeTables(since=0, to=latest_version("mysql"))
with connection.schema_editor() as editor:
    change.database_forwards("pillarbox", editor)
transaction.atomic()(publish)({}, type="x")
print(Message.objects.get().type, JournalLine.objects.count(), DjangoKit().drain())
DjangoKit().clear()
print(Message.objects.count())
with connection.schema_editor() as editor:
    change.database_backwards("pillarbox", editor)
"""


def test_a_schema_and_a_prefix_are_made_and_used(project: dict[str, str], mariadb_url: str) -> None:
    """Another database on the same server: that is what MariaDB calls a schema."""
    schema = mariadb_url.rpartition("/")[2]
    told = [sys.executable, "-c", _WITH_A_SCHEMA, schema]
    ran = subprocess.run(told, capture_output=True, text=True, check=False, env={**os.environ, **project})
    assert (ran.stdout, ran.stderr) == ("x 0 1\n0\n", "")
    with closing(connected(mariadb_url)) as connection, connection.cursor() as cursor:
        cursor.execute("show tables")
        assert cursor.fetchall() == ()
