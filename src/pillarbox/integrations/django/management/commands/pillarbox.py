"""`manage.py pillarbox …`: the commands of the `pillarbox` program, on Django's database."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from pillarbox.cli import main
from pillarbox.errors import PillarboxError
from pillarbox.integrations.django import conf

__all__ = ["Command"]


class Command(BaseCommand):
    """Runs the program with the arguments after the name.

    The store and its names come from the settings, unless the environment has them.
    """

    help = "Runs the pillarbox program on the database of this project, such as: manage.py pillarbox status"
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django wants a list; a relay should start in a hurry

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        try:
            variables = _build_variables()
        except PillarboxError as error:
            self.stderr.write(f"Error: {error}")
            sys.exit(error.exit_code)
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        main(_remove_django_options(argv[2:]))

    def handle(self, *_: Any, **__: Any) -> None:
        raise CommandError("It is started by manage.py alone: call the functions of pillarbox instead.")


def _build_variables() -> Mapping[str, str]:
    names = conf.get_names()
    schema = {} if names.schema is None else {"PILLARBOX_SCHEMA": names.schema}
    return {"PILLARBOX_STORE": conf.build_store_url(), "PILLARBOX_PREFIX": names.prefix} | schema


def _remove_django_options(arguments: Sequence[str]) -> list[str]:
    """Remove the options of every manage.py command, which Django has read already."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return parser.parse_known_args(arguments)[1]
