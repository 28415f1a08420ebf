"""`manage.py pillarbox …`: the commands of the `pillarbox` program, on Django's database."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from pillarbox.cli.app import pillarbox
from pillarbox.cli.failures import run
from pillarbox.errors import PillarboxError
from pillarbox.integrations.django import conf

__all__ = ["Command"]


class Command(BaseCommand):
    """Everything behind the name goes to the program. It is told what the settings know; the environment overrules."""

    help = "Runs the pillarbox program on the database of this project, such as: manage.py pillarbox status"
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django wants a list; a relay should start in a hurry

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        try:
            known = _known()
        except PillarboxError as error:
            self.stderr.write(f"Error: {error}")
            sys.exit(error.exit_code)
        for name, value in known.items():
            os.environ.setdefault(name, value)
        sys.exit(run(pillarbox, _for_the_program(argv[2:])))

    def handle(self, *_: Any, **__: Any) -> None:
        raise CommandError("It is started by manage.py alone: call the functions of pillarbox instead.")


def _known() -> Mapping[str, str]:
    names = conf.names()
    schema = {} if names.schema is None else {"PILLARBOX_SCHEMA": names.schema}
    return {"PILLARBOX_STORE": conf.store_url(), "PILLARBOX_PREFIX": names.prefix} | schema


def _for_the_program(arguments: Sequence[str]) -> list[str]:
    """Without what every command of manage.py takes, and Django has read already."""
    theirs = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    theirs.add_argument("--settings")
    theirs.add_argument("--pythonpath")
    return theirs.parse_known_args(arguments)[1]
