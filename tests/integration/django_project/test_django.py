"""Publishing from Django: with the row or not at all, wherever the code runs."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pillarbox.errors import NotInTransaction

django = pytest.importorskip("django")


@pytest.fixture(scope="session")
def project(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Django set up in this process, with the tables in both databases. The environment is for other processes."""
    environ = {
        "DJANGO_TEST_POSTGRES": postgres_url,
        "DJANGO_TEST_SQLITE": str(tmp_path_factory.mktemp("django") / "shop.db"),
        "DJANGO_SETTINGS_MODULE": "tests.integration.django_project.settings",
    }
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    django.setup()
    from django.core.management import call_command
    from django.db import connections

    for alias in connections:
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    yield environ
    for alias in connections:
        call_command("migrate", "pillarbox", "zero", database=alias, verbosity=0)
    connections.close_all()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(params=["default", "postgres"])
def using(request: pytest.FixtureRequest, project: dict[str, str]) -> Iterator[str]:
    """A database with empty tables."""
    alias = str(request.param)
    _execute(alias, "delete from pillarbox_outbox", "delete from shop_order")
    yield alias
    _execute(alias, "delete from pillarbox_outbox", "delete from shop_order")


def _execute(alias: str, *statements: str) -> None:
    from django.db import connections

    with connections[alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def words(alias: str) -> list[str]:
    """The committed messages by their word, in order."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("select subject from pillarbox_outbox order by id")
        return [word for (word,) in cursor.fetchall()]


def order(**values: Any) -> Any:
    from tests.integration.django_project.shop.models import Order

    return Order(**values)


def told(word: str) -> Any:
    from tests.integration.django_project.shop.models import Told

    return Told(1, word)


# --- publishing ----------------------------------------------------------------------------------


def test_a_message_commits_with_its_block_or_not_at_all(using: str) -> None:
    from django.db import transaction

    from pillarbox.integrations.django import publish

    with transaction.atomic(using=using):
        publish(told("kept"), using=using)
    with suppress(LookupError), transaction.atomic(using=using):
        publish(told("lost"), using=using)
        raise LookupError
    with transaction.atomic(using=using):
        publish([told("many"), told("of them")], using=using)
        with suppress(LookupError), transaction.atomic(using=using):
            publish(told("undone"), using=using)
            raise LookupError
    assert words(using) == ["kept", "many", "of them"]


def test_outside_a_block_nothing_is_published(using: str) -> None:
    from pillarbox.integrations.django import publish

    with pytest.raises(NotInTransaction, match=r"not inside transaction\.atomic"):
        publish(told("alone"), using=using)
    assert words(using) == []


def test_a_connection_is_a_handle_of_any_outbox(using: str) -> None:
    from django.db import connection, connections, transaction

    from pillarbox.integrations.django import outbox

    with transaction.atomic(using=using):
        outbox().publish(connections[using], told("by the connection"))
    with transaction.atomic():
        outbox().publish(connection, told("by the proxy"))
    assert "by the connection" in words(using)
    assert "by the proxy" in words("default")


def test_an_inbox_works_in_a_block(using: str) -> None:
    from django.db import connections, transaction

    from pillarbox import Inbox
    from pillarbox.testing.samples import sample

    inbox, message = Inbox(consumer="shop"), sample()
    with transaction.atomic(using=using):
        assert inbox.accept(connections[using], message)
    with transaction.atomic(using=using):
        assert not inbox.accept(connections[using], message)


# --- models --------------------------------------------------------------------------------------


def test_a_model_publishes_what_it_raised_when_it_is_saved(using: str) -> None:
    placed = order(note="new")
    placed.tell("placed")
    assert words(using) == []
    placed.save(using=using)
    placed.tell("changed")
    placed.save(using=using)
    placed.save(using=using)
    placed.tell("deleted")
    placed.delete(using=using)
    assert words(using) == ["placed", "changed", "deleted"]
    assert placed.raised_events == ()


def test_a_model_whose_event_cannot_be_published_is_not_saved(using: str) -> None:
    from pillarbox.errors import UnknownType

    placed = order(note="new")
    placed.raise_event(object())
    with pytest.raises(UnknownType):
        placed.save(using=using)
    assert not type(placed).objects.using(using).exists()


# --- requests ------------------------------------------------------------------------------------


@pytest.fixture
def atomic_requests(project: dict[str, str]) -> Iterator[None]:
    from django.db import connections

    settings = connections["default"].settings_dict
    settings["ATOMIC_REQUESTS"] = True
    yield
    settings["ATOMIC_REQUESTS"] = False


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_a_request_is_a_block_where_the_settings_say_so(using: str) -> None:
    from django.test import Client

    client = Client(raise_request_exception=False)
    assert client.get("/sync/kept").status_code == 200
    assert client.get("/sync/fails").status_code == 500
    assert words(using) == ["kept"]


@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_an_async_view_has_the_bridge(using: str) -> None:
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient

    client = AsyncClient(raise_request_exception=False)
    assert async_to_sync(client.get)("/async/kept").status_code == 200
    assert async_to_sync(client.get)("/async/fails").status_code == 500
    assert words(using) == ["kept"]


# --- tables, checks, commands --------------------------------------------------------------------


def test_sqlmigrate_prints_the_statements(using: str) -> None:
    from django.core.management import call_command

    out = io.StringIO()
    call_command("sqlmigrate", "pillarbox", "0001", database=using, stdout=out)
    assert "pillarbox_outbox" in out.getvalue()
    call_command("makemigrations", "pillarbox", check=True, dry_run=True, stdout=io.StringIO())


@pytest.mark.parametrize(
    ("given", "finding"),
    [
        ({}, "pillarbox.E001"),
        ({"source": "/shop", "routes": "broker", "destination": "x"}, "pillarbox.E002"),
        ({"source": "/shop", "routes": "broker", "using": "nowhere"}, "pillarbox.E003"),
        ({"source": "/shop"}, "pillarbox.E004"),
        ({"outbox": "nowhere.outbox"}, "pillarbox.E004"),
        ({"source": "/shop", "routes": "broker"}, None),
    ],
)
def test_a_mistake_in_the_settings_is_found(project: dict[str, str], given: Any, finding: str | None) -> None:
    from django.test import override_settings

    from pillarbox.integrations.django.checks import check_settings

    with override_settings(PILLARBOX=given):
        assert [found.id for found in check_settings()] == ([] if finding is None else [finding])


@pytest.mark.parametrize("using", ["default", "postgres"], indirect=True)
def test_manage_py_runs_the_commands_of_the_program(using: str, project: dict[str, str]) -> None:
    from django.db import transaction

    from pillarbox.integrations.django import publish

    with transaction.atomic(using=using):
        publish(told("seen by the command"), using=using)
    program = (
        "import django.conf, sys; from django.core.management import execute_from_command_line as go;"
        f"django.conf.settings.PILLARBOX['using'] = {using!r}; go(['manage.py', 'pillarbox', *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "messages", "list", "-o", "json"],
        capture_output=True, text=True, env=os.environ | project, cwd=Path(__file__).parents[3], timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "seen by the command" in done.stdout
    assert msgspec.json.decode(done.stdout)


# --- the kit -------------------------------------------------------------------------------------


def test_the_kit_sees_what_a_test_case_never_commits(using: str) -> None:
    from django.test import TestCase

    from pillarbox.integrations.django import publish
    from pillarbox.integrations.django.testing import DjangoKit
    from tests.integration.django_project.shop.models import Told

    kit = DjangoKit(using=using)

    class Case(TestCase):
        databases = {"default", "postgres"}  # noqa: RUF012

        def runTest(self) -> None:
            publish(told("seen"), using=using, headers={"a": "b"})
            found = kit.assert_published(Told, word="seen", count=1, headers={"a": "b"})
            assert found == told("seen")
            kit.assert_not_published(Told, word="other")
            with pytest.raises(AssertionError, match="and at least one should be"):
                kit.assert_published(Told, word="other")

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    assert result.wasSuccessful(), [*result.errors, *result.failures]
    assert words(using) == []
