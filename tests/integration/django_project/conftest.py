"""Django set up once in a process, and its databases."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.mariadb_server import scratch_mariadb

django = pytest.importorskip("django")


@pytest.fixture(scope="session")
def project(
    postgres_url: str, mariadb_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Django set up in this process, with the tables in each database. The environment is for other processes."""
    with scratch_mariadb(mariadb_server) as mariadb_url:
        yield from _set_up(postgres_url, mariadb_url, tmp_path_factory)


def _set_up(postgres_url: str, mariadb_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    environ = {
        "DJANGO_TEST_MARIADB": mariadb_url,
        "DJANGO_TEST_POSTGRES": postgres_url,
        "DJANGO_TEST_SQLITE": str(tmp_path_factory.mktemp("django") / "shop.db"),
        "DJANGO_SETTINGS_MODULE": "tests.integration.django_project.settings",
    }
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    django.setup()
    from django.core.management import call_command
    from django.db import connections
    from django.test.utils import setup_test_environment, teardown_test_environment

    setup_test_environment()
    for alias in connections:
        call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    yield environ
    teardown_test_environment()
    for alias in connections:
        call_command("migrate", "pillarbox", "zero", database=alias, verbosity=0)
    connections.close_all()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(params=["default", "postgres"])
def using(request: pytest.FixtureRequest, project: dict[str, str]) -> Iterator[str]:
    """A database with empty tables."""
    alias = str(request.param)
    empty(alias)
    yield alias
    empty(alias)


def empty(alias: str) -> None:
    from pillarbox.integrations.django.testing import DjangoKit
    from tests.integration.django_project.shop.models import Order

    DjangoKit(using=alias).clear()
    Order.objects.using(alias).all().delete()
