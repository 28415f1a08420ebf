"""Admin pages to read, redrive and discard messages and failures. Django imports this file with its admin."""

# ruff: noqa: ARG002 - Django names the arguments of its methods, and may pass them by name

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.functional import cached_property

from pillarbox.contracts.store import Action, BulkResult, OperatorStore, Selection
from pillarbox.errors import PillarboxError
from pillarbox.integrations.django import conf
from pillarbox.integrations.django.models import Failure, JournalLine, Message
from pillarbox.message import State
from pillarbox.operations.bulk import BATCH_SIZE, change_all, describe_result, format_count
from pillarbox.operations.failures import group_errors
from pillarbox.operations.store_access import run_on_store
from pillarbox.redaction import redact_block, redact_line
from pillarbox.stores.rules import eligible_states
from pillarbox.stores.urls import parse_store_url

__all__ = ["FailureAdmin", "MessageAdmin"]

F = TypeVar("F", bound=Callable[..., Any])

CHANGE_LIMIT: Final = 10 * BATCH_SIZE
"""Messages that one request changes at most."""
LIST_LIMIT: Final = 10_000
"""Messages that a list counts and has pages for. Filters and search find the others."""
_SAMPLED_MESSAGES: Final = 1_000
_GROUPED_FAILURES: Final = 1_000
_JOURNAL_LINES: Final = 1_000
_NAMED_MESSAGES: Final = 20
_LONGEST_ID: Final = 18
_PAYLOAD_BYTES: Final = 256 * 1024
"""Of a payload that its page shows, as in the dashboard."""
_DATABASE: Final = "database"
_FILTERS: Final = frozenset({"database", "destination", "state__exact"})
_CONTENT: Final = ("payload", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAction:
    """Redrive or discard."""

    action: Action
    verb: str
    about: str
    asks_reason: bool = False

    @property
    def states(self) -> Sequence[State]:
        """States of the messages that it can change."""
        return eligible_states(self.action, Selection(states=list(State)))

    def run(self, ids: Sequence[int], *, by: str, reason: str, using: str) -> BulkResult:
        """Change those of these messages that it can. The journal notes by whom.

        The store opens a connection of its own: inside `transaction.atomic()` the two could wait for each other.
        """

        async def change_batch(store: OperatorStore, chosen: Selection) -> BulkResult:
            if self.action is Action.REDRIVEN:
                return await store.redrive(chosen, by=by, limit=BATCH_SIZE)
            return await store.discard(chosen, by=by, reason=reason, limit=BATCH_SIZE)

        url = parse_store_url(conf.build_store_url(using))
        return run_on_store(
            url, lambda store: change_all(store, Selection(ids=ids), change_batch), names=conf.get_names()
        )


REDRIVE: Final = MessageAction(
    action=Action.REDRIVEN, verb="redrive", about="They are sent again, with all their attempts."
)
DISCARD: Final = MessageAction(
    action=Action.DISCARDED,
    verb="discard",
    about="They are closed without being sent. They are kept, and can be redriven.",
    asks_reason=True,
)


def outside_transaction(view: F) -> F:
    """Exempt a view from ATOMIC_REQUESTS: the store writes on a connection of its own, which it could block."""
    for alias in settings.DATABASES:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def find_database(request: HttpRequest) -> str:
    """Return the database of the list, or of the list that a page was reached from."""
    alias = request.GET.get(_DATABASE) or QueryDict(request.GET.get("_changelist_filters")).get(_DATABASE)
    if alias is None:
        return conf.get_database()
    if alias not in conf.list_databases():
        raise Http404(f"{alias!r} is none of the databases that PILLARBOX in the settings lists.")
    return str(alias)


def is_id(text: str) -> bool:
    """Return whether the text can be the id of a message: a number that every database accepts."""
    return text.isdecimal() and len(text) <= _LONGEST_ID


def search_exactly(queryset: QuerySet[Message], text: str) -> QuerySet[Message]:
    """Find messages with exactly this key, message id or id. A search for parts of them would read every row."""
    condition = Q(key=text)
    if is_id(text):
        condition |= Q(id=int(text))
    with suppress(ValueError):
        condition |= Q(message_id=UUID(text))
    return queryset.filter(condition)


class LimitedPaginator(Paginator):
    """Paginator of the first messages, which does not count the rest."""

    @cached_property
    def count(self) -> int:
        found: int = self.object_list.order_by()[:LIST_LIMIT].count()
        return found


class DatabaseFilter(admin.SimpleListFilter):
    """Filter by database, if PILLARBOX lists more than one."""

    title = "database"
    parameter_name = _DATABASE

    def lookups(self, request: HttpRequest, model_admin: object) -> Sequence[tuple[str, str]]:
        others = [alias for alias in conf.list_databases() if alias != conf.get_database()]
        return [(alias, alias) for alias in others]

    def choices(self, changelist: Any) -> Any:
        # The database that is used needs no parameter.
        first, *others = super().choices(changelist)
        yield {**first, "display": conf.get_database()}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        return queryset  # `find_database` has chosen already, for every page


class DestinationFilter(admin.SimpleListFilter):
    """Filter by destination: those that relays have served, and those of the latest messages."""

    title = "destination"
    parameter_name = "destination"

    def lookups(self, request: HttpRequest, model_admin: object) -> Sequence[tuple[str, str]]:
        database = find_database(request)
        latest = (
            Message.objects.using(database).order_by("-id").values_list("destination", flat=True)[:_SAMPLED_MESSAGES]
        )
        found = {*latest, *_list_lane_destinations(database), *filter(None, [request.GET.get(self.parameter_name)])}
        return [(name, name) for name in sorted(found)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Message]) -> QuerySet[Message]:
        return queryset.filter(destination=self.value()) if self.value() else queryset


def _list_lane_destinations(database: str) -> Sequence[str]:
    connection = connections[database]
    with connection.cursor() as cursor:
        cursor.execute(f"select distinct destination from {connection.ops.quote_name(conf.get_table('lane'))}")  # noqa: S608
        return [name for (name,) in cursor.fetchall()]


class _ReasonForm(forms.Form):
    """Form for the reason why messages are discarded, for the journal."""

    reason = forms.CharField(max_length=500, widget=forms.TextInput(attrs={"size": 80, "class": "vTextField"}))


@admin.register(Message)
class MessageAdmin(admin.ModelAdmin):
    """All messages, newest first. The permission to view them shows them; the one to change them allows actions."""

    list_display: ClassVar[tuple[str, ...]] = (
        "id", "display_state", "destination", "topic", "type", "key", "created_at", "attempts",
    )  # fmt: skip
    list_filter: ClassVar[tuple[Any, ...]] = ("state", DestinationFilter, DatabaseFilter)
    search_fields = ("message_id", "key")
    search_help_text = "The whole key, message id or id."
    ordering: ClassVar[tuple[str, ...]] = ("-id",)
    sortable_by = ()
    actions = ("redrive", "discard")
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = LimitedPaginator
    change_list_template = "admin/pillarbox/change_list.html"
    change_form_template = "admin/pillarbox/change_form.html"
    fields: ClassVar = [
        *(field.name for field in Message._meta.fields if field.name not in (*_CONTENT, "last_error")),
        "error", "display_headers", "journal",
    ]  # fmt: skip

    # --- permissions ---

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        """Return False: nobody edits a message. `has_act_permission` is for redrive and discard."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        return bool(request.user.has_perm("pillarbox.view_message")) or self.has_act_permission(request)

    def has_act_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("pillarbox.change_message"))

    def has_payload_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and bool(request.user.has_perm("pillarbox.view_payload"))

    # --- lists ---

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        return super().get_queryset(request).using(find_database(request)).defer("payload")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        text = search_term.strip()
        return search_exactly(queryset, text) if text else queryset, False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        # Only the filters: any other condition could be used to guess a payload, piece by piece.
        return lookup in _FILTERS

    @outside_transaction
    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"shown": LIST_LIMIT, **(extra_context or {})})

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Message], *more: Any, **named: Any
    ) -> HttpResponse | None:
        # Django would answer an id that is not a number with a server error. Its newer versions pass more arguments.
        if not all(is_id(chosen) for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            self.message_user(request, "That is no selection of messages: choose them from the list.", messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *more, **named)

    # --- one message ---

    @admin.display(description="state", ordering="state")
    def display_state(self, message: Message) -> str:
        return f"{message.state} ({message.waits})" if message.waits else str(message.state)

    @admin.display(description="last error")
    def error(self, message: Message) -> str:
        return redact_line(message.last_error or "")

    @admin.display(description="headers")
    def display_headers(self, message: Message) -> str:
        return "\n".join(redact_line(f"{name}: {value}") for name, value in (message.headers or {}).items())

    @admin.display(description="journal")
    def journal(self, message: Message) -> str:
        lines = JournalLine.objects.using(message._state.db).filter(message_id=message.message_id).order_by("id")
        shown = [
            {
                "line": line,
                "error": redact_line(line.reason or line.error or "", limit=2_000),
                "detail": redact_block(line.detail or "", limit=50_000),
            }
            for line in lines[:_JOURNAL_LINES]
        ]
        table: str = render_to_string("admin/pillarbox/journal.html", {"lines": shown})
        return table

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Mapping[str, Any] | None = None
    ) -> HttpResponse:
        may = {"may_act": self.has_act_permission(request), "may_see_payload": self.has_payload_permission(request)}
        return super().change_view(request, object_id, form_url, {**may, **(extra_context or {})})

    def get_urls(self) -> list[Any]:
        def at(name: str, view: Any) -> Any:
            full = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
            return path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=full)

        own = [at("payload", self.payload_view), at("redrive", self.redrive_view), at("discard", self.discard_view)]
        return own + list(super().get_urls())

    def payload_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the payload as text, with the permission for it."""
        if not self.has_payload_permission(request):
            raise PermissionDenied
        message = self._get_message(request, object_id)
        whole = None if message.payload is None else bytes(message.payload)
        payload = None if whole is None else whole[:_PAYLOAD_BYTES].decode("utf-8", "backslashreplace")
        context = {
            "title": "Payload", "original": message, "payload": payload,
            "is_cut": whole is not None and len(whole) > _PAYLOAD_BYTES,
        }  # fmt: skip
        return self._render(request, "payload", context)

    @outside_transaction
    def redrive_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._change_one(request, object_id, REDRIVE)

    @outside_transaction
    def discard_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._change_one(request, object_id, DISCARD)

    # --- redrive and discard ---

    @admin.action(permissions=["act"], description="Redrive selected messages")
    def redrive(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._confirm_or_run(request, queryset, REDRIVE)

    @admin.action(permissions=["act"], description="Discard selected messages")
    def discard(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._confirm_or_run(request, queryset, DISCARD)

    def _change_one(self, request: HttpRequest, object_id: str, change: MessageAction) -> HttpResponse:
        if not self.has_act_permission(request):
            raise PermissionDenied
        message = self._get_message(request, object_id)
        page = self._confirm_or_run(request, self.get_queryset(request).filter(pk=message.pk), change)
        return HttpResponseRedirect(self._list_url(request)) if page is None else page

    def _confirm_or_run(
        self, request: HttpRequest, queryset: QuerySet[Message], change: MessageAction
    ) -> HttpResponse | None:
        """Return the page that asks for confirmation; after it was given, run the action and return None."""
        able = queryset.filter(state__in=[state.value for state in change.states]).order_by("id")
        ids = list(able.values_list("id", flat=True)[: CHANGE_LIMIT + 1])
        if refusal := _find_refusal(ids, change):
            self.message_user(request, refusal, messages.ERROR)
            return None
        is_confirmed = request.method == "POST" and "confirmed" in request.POST
        reason = _ReasonForm(request.POST if is_confirmed else None)
        if is_confirmed and (not change.asks_reason or reason.is_valid()):
            self._run(request, ids, change, reason=reason.cleaned_data["reason"] if change.asks_reason else "")
            return None
        context = {
            "title": f"{change.verb.capitalize()} {format_count(len(ids))}?",
            "change": change,
            "able": able.defer(*_CONTENT)[:_NAMED_MESSAGES],
            "more": max(len(ids) - _NAMED_MESSAGES, 0),
            "chosen": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "across": request.POST.get("select_across", "0"),
            "left_alone": queryset.order_by()[: CHANGE_LIMIT + 1].count() - len(ids),
            "form": reason if change.asks_reason else None,
            "list_url": self._list_url(request),
        }
        return self._render(request, "confirm", context)

    def _run(self, request: HttpRequest, ids: list[int], change: MessageAction, *, reason: str) -> None:
        by = f"django:{request.user.get_username()}"
        try:
            result = change.run(ids, by=by, reason=reason, using=find_database(request))
        except PillarboxError as error:
            self.message_user(request, redact_line(str(error)), messages.ERROR)
            return
        text = describe_result(change.action, result)
        self.message_user(request, text, messages.SUCCESS if result.count else messages.WARNING)

    # --- helpers ---

    def _get_message(self, request: HttpRequest, object_id: str) -> Message:
        message: Message | None = self.get_object(request, unquote(object_id))
        if message is None:
            raise Http404("There is no such message: it was never committed, or its retention is over.")
        return message

    def _list_url(self, request: HttpRequest) -> str:
        url = reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist", current_app=self.admin_site.name
        )
        kept = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return str(add_preserved_filters(kept, url))

    def _render(self, request: HttpRequest, name: str, context: Mapping[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        shared = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request), "media": self.media}
        whole = {**self.admin_site.each_context(request), **shared, **context}
        return TemplateResponse(request, f"admin/pillarbox/{name}.html", whole)


@admin.register(Failure)
class FailureAdmin(MessageAdmin):
    """Messages that failed or are held, longest failed first, with the reasons they have in common."""

    list_display = ("id", "display_state", "destination", "topic", "type", "key", "status_at", "attempts", "error")
    list_filter = (DestinationFilter, DatabaseFilter)
    ordering = ("status_at", "id")

    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(
            request, {"reasons": partial(self._group_reasons, request), **(extra_context or {})}
        )

    def _group_reasons(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Group failures as `pillarbox failures` does. The template calls this, so that an action does not cost it."""
        if not self.has_view_permission(request):
            return []
        first = self.get_queryset(request).only("id", "destination", "last_error", "status_at").order_by(*self.ordering)
        # What is secret is found in whole errors, and not in what is left of them.
        rows = (
            (one.destination, redact_line(one.last_error or ""), one.status_at, one.id)
            for one in first[:_GROUPED_FAILURES]
        )
        return [{"group": group, "error": group.text} for group in group_errors(rows)]


def _find_refusal(ids: list[int], change: MessageAction) -> str | None:
    if not ids:
        able = " or ".join(state.value for state in change.states)
        return f"None of the selected messages can be {change.action.value}: only what is {able} can."
    if len(ids) > CHANGE_LIMIT:
        return (
            f"More than {CHANGE_LIMIT:,} messages are too many for one request: filter further, or use "
            f"`manage.py pillarbox messages {change.verb}`."
        )
    return None
