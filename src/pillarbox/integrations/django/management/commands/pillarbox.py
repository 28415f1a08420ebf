"""`manage.py pillarbox …`: the commands of the `pillarbox` program, on Django's database."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from django.core.management.base import BaseCommand

from pillarbox.cli.app import pillarbox
from pillarbox.cli.failures import run
from pillarbox.integrations.django import conf

__all__ = ["Command"]


class Command(BaseCommand):
    """Everything behind the name goes to the program. It is told what the settings know; the environment overrules."""

    help = "Runs the pillarbox program on the database of this project, such as: manage.py pillarbox status"
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django wants a list; a relay should start in a hurry

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        names = conf.names()
        known = {
            "PILLARBOX_STORE": conf.store_url(),
            "PILLARBOX_SCHEMA": names.schema,
            "PILLARBOX_PREFIX": names.prefix,
        }
        for name, value in known.items():
            if value is not None:
                os.environ.setdefault(name, value)
        sys.exit(run(pillarbox, argv[2:]))

    def handle(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("It is started by manage.py alone: call the functions of pillarbox instead.")
