"""The admin pages for messages and failures: to read, and to redrive and discard. Django loads it with its admin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse

from pillarbox.cli.confirming import counted
from pillarbox.cli.failing import grouped
from pillarbox.errors import PillarboxError
from pillarbox.integrations.django import listing
from pillarbox.integrations.django.acting import DISCARD, MOST, REDRIVE, Change
from pillarbox.integrations.django.messages import Failure, JournalLine, Message
from pillarbox.transports.redaction import redacted

__all__ = ["FailureAdmin", "MessageAdmin"]

# ruff: noqa: ARG002 - Django names the arguments of its methods, and may pass them by name

_NAMED: Final = 20
_GROUPED: Final = 1_000
_LINES: Final = 1_000
_FILTERS: Final = frozenset({"database", "destination", "state__exact"})
_CONTENT: Final = ("payload", "headers")


class _Reason(forms.Form):
    """Why a message is discarded, for the journal."""

    reason = forms.CharField(max_length=500, widget=forms.TextInput(attrs={"size": 80, "class": "vTextField"}))


@admin.register(Message)
class MessageAdmin(admin.ModelAdmin):
    """All messages, newest first. Who may not view messages sees none; who may not change them cannot act."""

    list_display: ClassVar[tuple[str, ...]] = (
        "id", "shown_state", "destination", "topic", "type", "key", "created_at", "attempts",
    )  # fmt: skip
    list_filter: ClassVar[tuple[Any, ...]] = ("state", listing.DestinationFilter, listing.DatabaseFilter)
    search_fields = ("message_id", "key")
    search_help_text = "The whole key, message id or id."
    ordering: ClassVar[tuple[str, ...]] = ("-id",)
    sortable_by = ()
    actions = ("redrive", "discard")
    list_per_page = 100
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = listing.FirstPages
    change_list_template = "admin/pillarbox/change_list.html"
    change_form_template = "admin/pillarbox/change_form.html"
    fields: ClassVar = [
        *(field.name for field in Message._meta.fields if field.name not in (*_CONTENT, "last_error")),
        "error", "shown_headers", "journal",
    ]  # fmt: skip

    # --- who may do what ---

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        """Nobody edits a message; `has_act_permission` is for what can be done with it."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Message | None = None) -> bool:
        return bool(request.user.has_perm("pillarbox.view_message")) or self.has_act_permission(request)

    def has_act_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("pillarbox.change_message"))

    def has_payload_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and bool(request.user.has_perm("pillarbox.view_payload"))

    # --- lists ---

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        return super().get_queryset(request).using(listing.database_of(request)).defer("payload")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        text = search_term.strip()
        return listing.searched(queryset, text) if text else queryset, False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """The filters alone: any other condition could be used to guess a payload, piece by piece."""
        return lookup in _FILTERS

    @listing.outside_blocks
    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"shown": listing.SHOWN, **(extra_context or {})})

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Message], *more: Any, **named: Any
    ) -> HttpResponse | None:
        """As Django's, whose newer versions say more; an id that is none would be an error of the server there."""
        if not all(listing.is_id(chosen) for chosen in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            self.message_user(request, "That is no selection of messages: choose them from the list.", messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return super().response_action(request, queryset, *more, **named)

    # --- one message ---

    @admin.display(description="state", ordering="state")
    def shown_state(self, message: Message) -> str:
        return f"{message.state} ({message.waits})" if message.waits else str(message.state)

    @admin.display(description="last error")
    def error(self, message: Message) -> str:
        return redacted(message.last_error or "")

    @admin.display(description="headers")
    def shown_headers(self, message: Message) -> str:
        return "\n".join(redacted(f"{name}: {value}") for name, value in (message.headers or {}).items())

    @admin.display(description="journal")
    def journal(self, message: Message) -> str:
        lines = JournalLine.objects.using(message._state.db).filter(message_id=message.message_id).order_by("id")
        shown = [
            {"line": line, "error": redacted(line.error or ""), "detail": redacted(line.detail or "")}
            for line in lines[:_LINES]
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
        """The payload as text, for those who may see it."""
        if not self.has_payload_permission(request):
            raise PermissionDenied
        message = self._found(request, object_id)
        payload = None if message.payload is None else bytes(message.payload).decode("utf-8", "backslashreplace")
        context = {"title": "Payload", "original": message, "payload": payload}
        return self._page(request, "payload", context)

    @listing.outside_blocks
    def redrive_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._one(request, object_id, REDRIVE)

    @listing.outside_blocks
    def discard_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._one(request, object_id, DISCARD)

    # --- acting ---

    @admin.action(permissions=["act"], description="Redrive selected messages")
    def redrive(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._asked(request, queryset, REDRIVE)

    @admin.action(permissions=["act"], description="Discard selected messages")
    def discard(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse | None:
        return self._asked(request, queryset, DISCARD)

    def _one(self, request: HttpRequest, object_id: str, change: Change) -> HttpResponse:
        if not self.has_act_permission(request):
            raise PermissionDenied
        message = self._found(request, object_id)
        asking = self._asked(request, self.get_queryset(request).filter(pk=message.pk), change)
        return HttpResponseRedirect(self._list_url(request)) if asking is None else asking

    def _asked(self, request: HttpRequest, queryset: QuerySet[Message], change: Change) -> HttpResponse | None:
        """The page that asks whether it is meant; or, when it was, what was asked for, and None."""
        able = queryset.filter(state__in=[state.value for state in change.states]).order_by("id")
        ids = list(able.values_list("id", flat=True)[: MOST + 1])
        if refusal := _refusal(ids, change):
            self.message_user(request, refusal, messages.ERROR)
            return None
        is_meant = request.method == "POST" and "confirmed" in request.POST
        reason = _Reason(request.POST if is_meant else None)
        if is_meant and (not change.asks_reason or reason.is_valid()):
            self._carry_out(request, ids, change, reason=reason.cleaned_data["reason"] if change.asks_reason else "")
            return None
        context = {
            "title": f"{change.verb.capitalize()} {counted(len(ids))}?",
            "change": change,
            "able": able.defer(*_CONTENT)[:_NAMED],
            "more": max(len(ids) - _NAMED, 0),
            "chosen": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "across": request.POST.get("select_across", "0"),
            "left_alone": queryset.order_by()[: MOST + 1].count() - len(ids),
            "form": reason if change.asks_reason else None,
            "list_url": self._list_url(request),
        }
        return self._page(request, "confirm", context)

    def _carry_out(self, request: HttpRequest, ids: list[int], change: Change, *, reason: str) -> None:
        by = f"django:{request.user.get_username()}"
        try:
            moved = change.carry_out(ids, by=by, reason=reason, using=listing.database_of(request))
        except PillarboxError as error:
            self.message_user(request, redacted(str(error)), messages.ERROR)
            return
        text = f"{counted(moved.count)} {change.action.value}."
        if moved.without_payload:
            text += f" {moved.without_payload:,} were left alone: their payload was not kept."
        self.message_user(request, text, messages.SUCCESS if moved.count else messages.WARNING)

    # --- within ---

    def _found(self, request: HttpRequest, object_id: str) -> Message:
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

    def _page(self, request: HttpRequest, name: str, context: Mapping[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        shared = {"opts": self.opts, "preserved_filters": self.get_preserved_filters(request), "media": self.media}
        whole = {**self.admin_site.each_context(request), **shared, **context}
        return TemplateResponse(request, f"admin/pillarbox/{name}.html", whole)


@admin.register(Failure)
class FailureAdmin(MessageAdmin):
    """Messages that failed or are held, those that failed first at the top, with the reasons they have in common."""

    list_display = ("id", "shown_state", "destination", "topic", "type", "key", "status_at", "attempts", "error")
    list_filter = (listing.DestinationFilter, listing.DatabaseFilter)
    ordering = ("status_at", "id")

    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"reasons": partial(self._reasons, request), **(extra_context or {})})

    def _reasons(self, request: HttpRequest) -> list[dict[str, Any]]:
        """As `pillarbox failures` tells them. Asked for by the page alone, and so not when somebody acts."""
        if not self.has_view_permission(request):
            return []
        first = self.get_queryset(request).only("id", "destination", "last_error", "status_at").order_by(*self.ordering)
        return [{"group": group, "error": redacted(group.error)} for group in grouped(list(first[:_GROUPED]))]


def _refusal(ids: list[int], change: Change) -> str | None:
    if not ids:
        able = " or ".join(state.value for state in change.states)
        return f"None of the selected messages can be {change.action.value}: only what is {able} can."
    if len(ids) > MOST:
        return (
            f"More than {MOST:,} messages are too many for one request: filter further, or use "
            f"`manage.py pillarbox messages {change.verb}`."
        )
    return None
