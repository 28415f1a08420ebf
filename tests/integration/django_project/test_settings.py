"""What the settings are turned into: tables, checks, the store's URL, and `manage.py pillarbox`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from pillarbox import Outbox
from pillarbox.errors import ConfigError
from tests.integration.django_project.published import told


def test_sqlmigrate_prints_the_statements(using: str) -> None:
    from django.core.management import call_command

    out = io.StringIO()
    call_command("sqlmigrate", "pillarbox", "0001", database=using, stdout=out)
    assert "pillarbox_outbox" in out.getvalue()
    call_command("makemigrations", "pillarbox", check=True, dry_run=True, stdout=io.StringIO())


OWN = Outbox(routes="broker", source="/shop", prefix="own_")


@pytest.mark.parametrize(
    ("given", "finding"),
    [
        ({}, "pillarbox.E001"),
        ({"source": "/shop", "routes": "broker", "destination": "x"}, "pillarbox.E002"),
        ({"source": "/shop", "routes": "broker", "using": "nowhere"}, "pillarbox.E003"),
        ({"source": "/shop"}, "pillarbox.E004"),
        ({"source": "/shop", "routes": "broker", "databases": ["nowhere"]}, "pillarbox.E003"),
        ({"outbox": "nowhere.outbox"}, "pillarbox.E004"),
        ({"outbox": "os.path"}, "pillarbox.E004"),
        ({"source": "/shop", "routes": "broker", "prefix": "No Name"}, "pillarbox.E004"),
        ({"outbox": f"{__name__}.OWN"}, "pillarbox.E006"),
        ({"outbox": f"{__name__}.OWN", "prefix": "own_"}, None),
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


def test_a_database_that_cannot_be_used_is_found(project: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections
    from django.db.backends.postgresql import psycopg_any

    from pillarbox.integrations.django.checks import check_settings

    def found() -> list[str]:
        return [finding.id for finding in check_settings()]

    assert found() == []
    with monkeypatch.context() as patch:
        patch.setattr(connections["postgres"], "vendor", "oracle")
        assert found() == ["pillarbox.E005"]
    with monkeypatch.context() as patch:
        patch.setattr(psycopg_any, "is_psycopg3", False)
        assert found() == ["pillarbox.E007"]
    with monkeypatch.context() as patch:
        patch.setitem(connections["default"].settings_dict, "NAME", "file:memorydb_default?mode=memory&cache=shared")
        assert found() == ["pillarbox.W001"]


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "/a b/sh?op.db"}, "sqlite:////a%20b/sh%3Fop.db"),
        ({"NAME": Path("shop.db")}, "sqlite:///shop.db"),
        ({"NAME": "file:memorydb_default?mode=memory&cache=shared"}, None),
        ({"NAME": ":memory:"}, None),
    ],
)
def test_the_store_of_an_sqlite_database(
    project: dict[str, str], monkeypatch: pytest.MonkeyPatch, database: dict[str, Any], url: str | None
) -> None:
    assert url_of("default", database, monkeypatch) == url


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "me", "PASSWORD": "p@:/?#"},
         "postgresql://me:p%40%3A%2F%3F%23@db:5433/shop"),
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "HOST": "/run/pg", "USER": "me", "PORT": "5433"},
         "postgresql://me@/shop?host=%2Frun%2Fpg&port=5433"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "options": "-c search_path=a", "pool": True}},
         "postgresql://db/shop?options=-c%20search_path%3Da&sslmode=require"),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, None),
    ],
)  # fmt: skip
def test_the_store_of_a_postgresql_database(
    project: dict[str, str], monkeypatch: pytest.MonkeyPatch, database: dict[str, Any], url: str | None
) -> None:
    assert url_of("postgres", database, monkeypatch) == url


def url_of(alias: str, database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str | None:
    from django.db import connections

    from pillarbox.integrations.django import conf
    from pillarbox.stores.urls import parse_store_url

    whole = {"HOST": "", "PORT": "", "USER": "", "PASSWORD": "", "OPTIONS": {}} | database
    monkeypatch.setattr(connections[alias], "settings_dict", whole)
    try:
        url = conf.build_store_url(alias)
    except ConfigError:
        return None
    parse_store_url(url)  # which can be read
    return url


def test_a_schema_and_a_prefix_are_made_and_used(
    project: dict[str, str], postgres_url: str, postgres_schema: str
) -> None:
    """In a schema of their own; Django's tables are in another, which the connection names."""
    from tests.integration.django_project import settings

    database = {**settings.DATABASES["postgres"], "OPTIONS": {"options": f"-c search_path={postgres_schema}"}}
    own = f"{postgres_schema}_own"
    done = _managed(
        project,
        "call_command('migrate', verbosity=0);"
        "call_command('makemigrations', 'pillarbox', check=True, dry_run=True, verbosity=0);"
        "from django.db import transaction; from pillarbox.integrations.django import publish;"
        "from pillarbox.integrations.django.models import Message, JournalLine;"
        "from pillarbox.integrations.django.testing import DjangoKit;"
        "transaction.atomic()(publish)({}, type='x');"
        "print(Message.objects.get().type, JournalLine.objects.count(), DjangoKit().drain());"
        "DjangoKit().clear(); print(Message.objects.count());"
        "call_command('migrate', 'pillarbox', 'zero', verbosity=0)",
        DATABASES={"default": database},
        PILLARBOX={"source": "/s", "routes": "b", "schema": own, "prefix": "box_"},
        INSTALLED_APPS=["pillarbox.integrations.django"],
    )
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        found = connection.execute("select tablename from pg_tables where schemaname = %s", [own]).fetchall()
        connection.execute(f'drop schema if exists "{own}" cascade')
    assert (done.returncode, done.stdout) == (0, "x 0 1\n0\n"), done.stderr
    assert found == []


def test_the_program_says_in_one_sentence_what_is_wrong(project: dict[str, str]) -> None:
    done = _managed(
        project, "execute_from_command_line(['manage.py', 'pillarbox', 'status', '--settings', 'x'])",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "in memory" in done.stderr


def test_the_program_is_not_given_what_django_has_read(using: str, project: dict[str, str]) -> None:
    arguments = ["manage.py", "pillarbox", "messages", "--settings=x", "list", "--pythonpath", "y", "-o", "json"]
    done = _managed(project, f"execute_from_command_line({arguments!r})", PILLARBOX={"using": using})
    assert (done.returncode, msgspec.json.decode(done.stdout)) == (0, {"messages": []}), done.stderr


def _managed(project: dict[str, str], code: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with these settings instead of the project's."""
    program = (
        "import django, sys; from tests.integration.django_project import settings as own;"
        "from django.conf import settings; from django.core.management import call_command, execute_from_command_line;"
        f"given = {settings!r};"
        "settings.configure(**{n: v for n, v in vars(own).items() if n.isupper()} | given); django.setup();" + code
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False,
        env={name: value for name, value in (os.environ | project).items() if name != "DJANGO_SETTINGS_MODULE"},
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
