"""Pages of actions on messages: counted first, asked, run as a job, and the job's progress and result."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from pillarbox.contracts.store import Selection, Store
from pillarbox.dashboard.actions import ACTIONS, TYPED_ABOVE, FormError, Order, Verb, describe_command, parse_order
from pillarbox.dashboard.filters import Filters, parse_filters, to_query, to_selection
from pillarbox.dashboard.jobs import Job, run_change, run_probe
from pillarbox.dashboard.listing import MatchCount, count_matches, list_page
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.errors import NoSuchMessage, UnknownDestination
from pillarbox.message import SKIPPED_DESTINATION, State
from pillarbox.operations.documents import to_message_document
from pillarbox.stores.rules import eligible_states

__all__ = [
    "ask_defer",
    "ask_discard",
    "ask_redrive",
    "ask_replay",
    "cancel",
    "defer",
    "discard",
    "redrive",
    "redrive_probe",
    "replay",
    "show_job",
    "to_job_id",
]

_EXAMPLES = 3
_JOBS_LOOKED_AT = 1_000
"""Lines of the journal in which the result of a job is looked for."""


async def ask_redrive(view: View) -> Page:
    return await _ask(view, Verb.REDRIVE)


async def ask_defer(view: View) -> Page:
    return await _ask(view, Verb.DEFER)


async def ask_replay(view: View) -> Page:
    return await _ask(view, Verb.REPLAY)


async def ask_discard(view: View) -> Page:
    return await _ask(view, Verb.DISCARD)


async def redrive(view: View) -> Page | Redirect:
    return await _start(view, Verb.REDRIVE)


async def defer(view: View) -> Page | Redirect:
    return await _start(view, Verb.DEFER)


async def replay(view: View) -> Page | Redirect:
    return await _start(view, Verb.REPLAY)


async def discard(view: View) -> Page | Redirect:
    return await _start(view, Verb.DISCARD)


async def _ask(view: View, verb: Verb, *, form: Mapping[str, str] | None = None, refusal: str = "") -> Page:
    """Count what would be changed, by state, show some of it, and ask."""
    form = {} if form is None else form
    filters = parse_filters(form or view.query)
    store = await view.open()
    now = await store.now()
    selection, counts = await _count(store, verb, filters, to=form.get("to") or None, now=now)
    total, more = _sum(counts)
    found = msgspec.structs.replace(selection, states=list(counts))
    examples = (await list_page(store, found, limit=_EXAMPLES, newest=False)).messages if counts else []
    tries = await store.count_tries(examples) if examples else {}
    rule = ACTIONS[verb]
    context = {
        "rule": rule,
        "destinations": await _list_destinations(view),
        "needs_destination": rule.takes_destination and _needs_destination(form.get("to"), counts),
        "filters": filters,
        "fields": _list_fields(filters),
        "counts": counts,
        "total": total,
        "examples": examples,
        "tries": tries,
        "more": more,
        "is_typed": more or total > TYPED_ABOVE,
        "command": describe_command(filters, Order(verb=verb)),
        "job": form.get("job") or secrets.token_hex(8),
        "form": form,
        "refusal": refusal,
        "back": view.url("messages", to_query(filters)),
        "at": now,
    }
    document = {
        "action": rule.action.value, "matched": total,
        "matched_by_state": {state.value: one.count for state, one in counts.items()}, "more": more,
        "examples": [to_message_document(one, tries=tries) for one in examples], "dry_run": True,
    }  # fmt: skip
    return Page("confirm.html", verb.value.capitalize(), context, document, 400 if refusal else 200, "messages")


def _list_fields(filters: Filters) -> list[tuple[str, str]]:
    """List the filters as hidden fields of a form."""
    values = {name: getattr(filters, name) for name in filters.__struct_fields__}
    values["ids"] = ",".join(map(str, filters.ids))
    return [(name, str(value)) for name, value in values.items() if value not in (None, "")]


async def _count(
    store: Store, verb: Verb, filters: Filters, *, to: str | None, now: datetime
) -> tuple[Selection, Mapping[State, MatchCount]]:
    if filters.phase is not None:
        raise FormError("Actions know no phases: tick the messages, or take the phase out of the address.")
    if filters == Filters():
        raise FormError(f"Say which messages to {verb.value}: tick some, or set a filter such as the destination.")
    selection = to_selection(filters, now=now)
    rule = ACTIONS[verb]
    counts = await count_matches(store, selection, eligible_states(rule.action, selection, to=to))
    if not counts and rule.takes_destination and to is None:
        # What no route took has no destination of its own: it is counted, and the form asks for one.
        states = eligible_states(rule.action, selection, to=SKIPPED_DESTINATION)
        counts = await count_matches(store, selection, [one for one in states if one is State.SKIPPED])
    return selection, counts


def _needs_destination(to: str | None, counts: Mapping[State, MatchCount]) -> bool:
    return not (to or "").strip() and State.SKIPPED in counts


async def _list_destinations(view: View) -> list[str]:
    """List the destinations that messages can be sent to: those of the configuration, and those of the tables."""
    status = (await view.sample()).status
    counted = set() if status is None else {one.name for one in status.destinations}
    return sorted({*view.source.destinations, *counted} - {SKIPPED_DESTINATION})


def _sum(counts: Mapping[State, MatchCount]) -> tuple[int, bool]:
    """Return how many messages match in all, and whether there may be more."""
    return sum(one.count for one in counts.values()), any(one.more for one in counts.values())


async def _start(view: View, verb: Verb) -> Page | Redirect:
    """Start the job that a form asks for; ask again, with the reason, if something is missing."""
    job_id = to_job_id(view.form)
    if (known := view.dashboard.jobs.get(job_id, store=view.source.name)) is not None:
        return _redirect(view, known)
    filters = parse_filters(view.form)
    store = await view.open()
    now = await store.now()
    selection, counts = await _count(store, verb, filters, to=view.form.get("to") or None, now=now)
    total, more = _sum(counts)
    needs_destination = ACTIONS[verb].takes_destination and _needs_destination(view.form.get("to"), counts)
    try:
        order = parse_order(
            verb, view.form, total=total, more=more, needs_destination=needs_destination,
            known=await _list_destinations(view) if view.form.get("to") else None,
        )  # fmt: skip
    except (FormError, UnknownDestination) as error:
        return await _ask(view, verb, form=view.form, refusal=str(error))
    job = _build_job(view, order, filters, job_id=job_id, total=total, more=more, now=now)
    return _redirect(view, view.dashboard.jobs.start(job, lambda one: run_change(one, store, selection, order)))


async def redrive_probe(view: View) -> Page | Redirect:
    """Redrive one failed message; the rest of its group follows if it is delivered."""
    job_id = to_job_id(view.form)
    if (known := view.dashboard.jobs.get(job_id, store=view.source.name)) is not None:
        return _redirect(view, known)
    filters = parse_filters(view.form).with_state(State.FAILED.value)
    store = await view.open()
    now = await store.now()
    selection, counts = await _count(store, Verb.REDRIVE, filters, to=None, now=now)
    found = await store.find(selection, limit=1, payloads=False)
    if not found:
        raise NoSuchMessage("No failed message matches any more: somebody redrove or discarded them.")
    probe_id = found[0].id
    total, more = _sum(counts)
    order = parse_order(Verb.REDRIVE, {**view.form, "to": ""}, total=total, more=more)
    job = _build_job(view, order, filters, job_id=job_id, total=total, more=more, now=now)
    job.title = f"Redrive message {probe_id} as a probe, then the rest"
    return _redirect(
        view, view.dashboard.jobs.start(job, lambda one: run_probe(one, store, selection, order, probe_id=probe_id))
    )


def _build_job(
    view: View, order: Order, filters: Filters, *, job_id: str, total: int, more: bool, now: datetime
) -> Job:
    return Job(
        job_id, store=view.source.name, title=describe_command(filters, order), done_word=order.rule.done, total=total,
        more=more, by=view.user.name, reason=order.reason, started_at=now,
    )  # fmt: skip


def to_job_id(form: Mapping[str, str]) -> str:
    """Return the id that a page gave its form, so that sending it twice is one job; a new one for programs."""
    given = form.get("job", "")
    is_usable = 8 <= len(given) <= 64 and given.isascii() and given.isalnum()
    return given if is_usable else secrets.token_hex(8)


def _redirect(view: View, job: Job) -> Redirect:
    return Redirect(view.url(f"jobs/{job.id}"), job.to_document())


# --- jobs ---


async def show_job(view: View) -> Page:
    """Show what a job has done so far, and its result."""
    job = view.dashboard.jobs.get(view.path("job"), store=view.source.name)
    if job is None:
        return await _show_kept_job(view)
    context: dict[str, Any] = {"job": job, "kept": None}
    return Page("job.html", "Job", context, job.to_document(), section="activity")


async def _show_kept_job(view: View) -> Page:
    """Show the result of a job that another process ran, or this one before it was started again, by the journal."""
    store = await view.open()
    mark = f", job {view.path('job')}"
    lines = await store.journal(messages=False, limit=_JOBS_LOOKED_AT)
    kept = next((line for line in reversed(lines) if (line.detail or "").endswith(mark)), None)
    if kept is None:
        _find_job(view)
    context = {"job": None, "kept": kept, "at": await store.now()}
    return Page(
        "job.html", "Job", context, {"id": view.path("job"), "state": "ended", "journal": kept}, section="activity"
    )


async def cancel(view: View) -> Redirect:
    """Stop a job after the batch that runs now."""
    job = _find_job(view)
    if job.is_running:
        job.is_cancelled = True
        job.note = f"Cancelled by {view.user.name}; what is done stays done."
    return _redirect(view, job)


def _find_job(view: View) -> Job:
    job = view.dashboard.jobs.get(view.path("job"), store=view.source.name)
    if job is None:
        raise NoSuchMessage(
            "This process runs no such job. If another one runs it, its result is in the journal when it is done: see "
            "Activity."
        )
    return job
