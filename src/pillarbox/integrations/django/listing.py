"""Lists of messages in the admin: which database, which filters, and never all of a large table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, QueryDict
from django.utils.functional import cached_property

from pillarbox.integrations.django import conf
from pillarbox.integrations.django.messages import Message

__all__ = [
    "SHOWN",
    "DatabaseFilter",
    "DestinationFilter",
    "FirstPages",
    "database_of",
    "is_id",
    "outside_blocks",
    "searched",
]

# ruff: noqa: ARG002 - Django names the arguments of its methods, and may pass them by name
F = TypeVar("F", bound=Callable[..., Any])
SHOWN: Final = 10_000
"""How many messages a list counts and has pages for. Filters and search find the others."""
_SAMPLED: Final = 1_000
_LONGEST_ID: Final = 18
_DATABASE: Final = "database"


def outside_blocks(view: F) -> F:
    """A view that ATOMIC_REQUESTS leaves alone: a block would stop the store, which writes by its own connection."""
    for alias in settings.DATABASES:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def database_of(request: HttpRequest) -> str:
    """The database that the list, or the list that a page was reached from, is about."""
    given = request.GET.get(_DATABASE) or QueryDict(request.GET.get("_changelist_filters")).get(_DATABASE)
    if given is None:
        return conf.alias()
    if given not in conf.databases():
        raise Http404(f"{given!r} is none of the databases that PILLARBOX in the settings lists.")
    return str(given)


def is_id(text: str) -> bool:
    """Whether it can be the id of a message: a number that every database takes."""
    return text.isdecimal() and len(text) <= _LONGEST_ID


def searched(queryset: QuerySet[Message], text: str) -> QuerySet[Message]:
    """Those whose key, message id or id it is, exactly: parts of them would be looked for in every row."""
    wanted = Q(key=text)
    if is_id(text):
        wanted |= Q(id=int(text))
    with suppress(ValueError):
        wanted |= Q(message_id=UUID(text))
    return queryset.filter(wanted)


class FirstPages(Paginator):
    """Pages of the first messages, without counting the rest."""

    @cached_property
    def count(self) -> int:
        found: int = self.object_list.order_by()[:SHOWN].count()
        return found


class DatabaseFilter(admin.SimpleListFilter):
    """Another database of those that PILLARBOX lists. Not shown where there is one alone."""

    title = "database"
    parameter_name = _DATABASE

    def lookups(self, request: HttpRequest, model_admin: object) -> Sequence[tuple[str, str]]:
        others = [alias for alias in conf.databases() if alias != conf.alias()]
        return [(alias, alias) for alias in others]

    def choices(self, changelist: Any) -> Any:
        """The one that is used needs no parameter."""
        first, *others = super().choices(changelist)
        yield {**first, "display": conf.alias()}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        """As it came: `database_of` has chosen already, for every page."""
        return queryset


class DestinationFilter(admin.SimpleListFilter):
    """A destination: those that relays have served, and those of the latest messages."""

    title = "destination"
    parameter_name = "destination"

    def lookups(self, request: HttpRequest, model_admin: object) -> Sequence[tuple[str, str]]:
        database = database_of(request)
        latest = Message.objects.using(database).order_by("-id").values_list("destination", flat=True)[:_SAMPLED]
        found = {*latest, *_served(database), *filter(None, [request.GET.get(self.parameter_name)])}
        return [(name, name) for name in sorted(found)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        return queryset.filter(destination=self.value()) if self.value() else queryset


def _served(database: str) -> Sequence[str]:
    connection = connections[database]
    with connection.cursor() as cursor:
        cursor.execute(f"select distinct destination from {connection.ops.quote_name(conf.table('lane'))}")  # noqa: S608
        return [name for (name,) in cursor.fetchall()]
