"""Pages of actions on messages: counted first, asked, run as a job, and the job's progress and result."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from pillarbox.contracts.store import Order as FindOrder
from pillarbox.contracts.store import Selection, Store
from pillarbox.dashboard.actions import ACTIONS, TYPED_ABOVE, FormError, Order, Verb, describe_command, parse_order
from pillarbox.dashboard.filters import Filters, parse_filters, to_query, to_selection
from pillarbox.dashboard.jobs import Job, run_change, run_probe
from pillarbox.dashboard.view import Page, Redirect, View
from pillarbox.errors import NoSuchMessage
from pillarbox.message import State
from pillarbox.operations.bulk import count_by_state
from pillarbox.operations.documents import to_message_document

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
    total = sum(counts.values())
    examples = await store.find(
        msgspec.structs.replace(selection, states=list(counts)), limit=_EXAMPLES, payloads=False, order=FindOrder.ID
    ) if counts else []  # fmt: skip
    rule = ACTIONS[verb]
    context = {
        "rule": rule,
        "filters": filters,
        "fields": _list_fields(filters),
        "counts": counts,
        "total": total,
        "examples": examples,
        "is_typed": total > TYPED_ABOVE,
        "command": describe_command(filters, Order(verb=verb)),
        "job": form.get("job") or secrets.token_hex(8),
        "form": form,
        "refusal": refusal,
        "back": view.url("messages", to_query(filters)),
        "at": now,
    }
    document = {
        "action": rule.action.value, "matched": total,
        "matched_by_state": {state.value: count for state, count in counts.items()},
        "examples": [to_message_document(one) for one in examples], "dry_run": True,
    }  # fmt: skip
    return Page("confirm.html", verb.value.capitalize(), context, document, 400 if refusal else 200, "messages")


def _list_fields(filters: Filters) -> list[tuple[str, str]]:
    """List the filters as hidden fields of a form."""
    values = {name: getattr(filters, name) for name in filters.__struct_fields__}
    values["ids"] = ",".join(map(str, filters.ids))
    return [(name, str(value)) for name, value in values.items() if value not in (None, "")]


async def _count(
    store: Store, verb: Verb, filters: Filters, *, to: str | None, now: datetime
) -> tuple[Selection, dict[State, int]]:
    if filters == Filters():
        raise FormError(f"Say which messages to {verb.value}: tick some, or set a filter such as the destination.")
    selection = to_selection(filters, now=now)
    return selection, await count_by_state(store, ACTIONS[verb].action, selection, to=to)


async def _start(view: View, verb: Verb) -> Page | Redirect:
    """Start the job that a form asks for; ask again, with the reason, if something is missing."""
    job_id = to_job_id(view.form)
    if (known := view.dashboard.jobs.get(job_id)) is not None:
        return _redirect(view, known)
    filters = parse_filters(view.form)
    store = await view.open()
    now = await store.now()
    selection, counts = await _count(store, verb, filters, to=view.form.get("to") or None, now=now)
    total = sum(counts.values())
    try:
        order = parse_order(verb, view.form, total=total)
    except FormError as error:
        return await _ask(view, verb, form=view.form, refusal=str(error))
    job = _build_job(view, order, filters, job_id=job_id, total=total, now=now)
    return _redirect(view, view.dashboard.jobs.start(job, lambda one: run_change(one, store, selection, order)))


async def redrive_probe(view: View) -> Page | Redirect:
    """Redrive one failed message; the rest of its group follows if it is delivered."""
    job_id = to_job_id(view.form)
    if (known := view.dashboard.jobs.get(job_id)) is not None:
        return _redirect(view, known)
    filters = parse_filters(view.form).with_state(State.FAILED.value)
    store = await view.open()
    now = await store.now()
    selection, counts = await _count(store, Verb.REDRIVE, filters, to=None, now=now)
    found = await store.find(selection, limit=1, payloads=False)
    if not found:
        raise NoSuchMessage("No failed message matches any more: somebody redrove or discarded them.")
    order = Order(verb=Verb.REDRIVE, reason=" ".join(view.form.get("reason", "").split()))
    probe_id = found[0].id
    job = _build_job(view, order, filters, job_id=job_id, total=sum(counts.values()), now=now)
    job.title = f"Redrive message {probe_id} as a probe, then the rest"
    return _redirect(
        view, view.dashboard.jobs.start(job, lambda one: run_probe(one, store, selection, order, probe_id=probe_id))
    )


def _build_job(view: View, order: Order, filters: Filters, *, job_id: str, total: int, now: datetime) -> Job:
    return Job(
        job_id, store=view.source.name, title=describe_command(filters, order), done_word=order.rule.done, total=total,
        by=view.user.name, reason=order.reason, started_at=now,
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
    job = _find_job(view)
    context: dict[str, Any] = {"job": job}
    return Page("job.html", "Job", context, job.to_document(), section="activity")


async def cancel(view: View) -> Redirect:
    """Stop a job after the batch that runs now."""
    job = _find_job(view)
    if job.is_running:
        job.is_cancelled = True
        job.note = f"Cancelled by {view.user.name}; what is done stays done."
    return _redirect(view, job)


def _find_job(view: View) -> Job:
    job = view.dashboard.jobs.get(view.path("job"))
    if job is None or job.store != view.source.name:
        raise NoSuchMessage("There is no such job: the dashboard was started again, or it is long over. See Activity.")
    return job
