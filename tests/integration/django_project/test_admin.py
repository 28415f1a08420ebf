"""The admin pages: what they show to whom, and that acting goes the way of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MESSAGES, FAILURES = "/admin/pillarbox/message/", "/admin/pillarbox/failure/"


@pytest.fixture(autouse=True)
def used(using: str) -> Iterator[str]:
    """The project uses this database, so that the pages show it without being asked for another."""
    from django.conf import settings
    from django.test import override_settings

    with override_settings(PILLARBOX=settings.PILLARBOX | {"using": using}):
        yield using


@pytest.fixture
def people(project: dict[str, str]) -> Iterator[Any]:
    """Makes clients that are logged in with these permissions."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    def logged_in(name: str, *permissions: str, **options: Any) -> Any:
        user = User.objects.create_user(name, is_staff=True)
        found = Permission.objects.filter(content_type__app_label="pillarbox", codename__in=permissions)
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        client = Client(**options)
        client.force_login(user)
        return client

    yield logged_in
    User.objects.all().delete()


@pytest.fixture
def viewer(people: Any) -> Any:
    return people("victor", "view_message")


@pytest.fixture
def operator(people: Any) -> Any:
    return people("olga", "view_message", "change_message")


def chosen(action: str, *messages: Any, **more: str) -> dict[str, Any]:
    return {"action": action, "_selected_action": [str(one.id) for one in messages], "index": "0", **more}


def told_to(response: Any) -> list[str]:
    """The sentences on the page that follows."""
    return [str(one) for one in response.context["messages"]]


# --- looking -------------------------------------------------------------------------------------


def test_the_list_shows_what_is_open_and_closed(using: str, viewer: Any) -> None:
    from tests.integration.django_project.rows import closed, written

    written("waits", using=using)
    closed("gone wrong", using=using, status="failed")
    text = viewer.get(MESSAGES).content.decode()
    assert "2 messages" in text
    for word in ("pending", "failed", "django.told", "broker"):
        assert word in text
    assert "gone wrong" not in text  # which is in the payload


def test_filters_and_search_find_messages(using: str, viewer: Any) -> None:
    from tests.integration.django_project.rows import closed, written

    first = written("a", using=using, key="order-7", destinations="billing")
    closed("b", using=using, key="order-8")

    def ids(**query: str) -> set[int]:
        response = viewer.get(MESSAGES, query)
        assert response.status_code == 200
        return {one.id for one in response.context["cl"].result_list}

    assert ids(state__exact="pending") == ids(destination="billing") == ids(q="order-7") == {first.id}
    assert ids(q=str(first.message_id)) == ids(q=f" {first.id} ") == {first.id}
    assert ids(q="order-") == ids(q="9" * 30) == ids(state__exact="no state") == ids(destination="nowhere") == set()
    assert "billing" in viewer.get(MESSAGES).content.decode()


@pytest.mark.parametrize("lookup", ["payload__contains", "headers__contains", "message_id__gte", "last_error__regex"])
def test_a_payload_cannot_be_guessed_by_lookups(using: str, viewer: Any, lookup: str) -> None:
    assert viewer.get(MESSAGES, {lookup: "x"}).status_code == 400


def test_the_detail_page_has_the_journal_and_no_payload(using: str, viewer: Any) -> None:
    from tests.integration.django_project.rows import closed

    message = closed(
        "the secret word", using=using, error="amqp://me:hunter2@host refused",
        headers={"x-token": "abcdefghij", "tenant": "blue"},
    )  # fmt: skip
    text = viewer.get(f"{MESSAGES}{message.id}/change/").content.decode()
    for word in (str(message.message_id), "relay-1", "Traceback of it", "tenant: blue", "refused"):
        assert word in text
    for secret in ("hunter2", "abcdefghij", "the secret word&quot;}", "Show payload", "Redrive…", 'name="_save"'):
        assert secret not in text


def test_the_payload_is_shown_as_text_to_those_who_may_see_it(using: str, viewer: Any, people: Any) -> None:
    from tests.integration.django_project.rows import closed

    message = closed("<script>alert(1)</script>", using=using, error="<img src=x onerror=alert(2)>")
    page, payload = f"{MESSAGES}{message.id}/change/", f"{MESSAGES}{message.id}/payload/"
    assert viewer.get(payload).status_code == 403
    auditor = people("anna", "view_message", "view_payload")
    assert payload in auditor.get(page).content.decode()
    shown = auditor.get(payload).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    for url in (page, payload, MESSAGES, FAILURES):
        text = auditor.get(url).content.decode()
        assert "<script>alert" not in text
        assert "<img src=x" not in text
    assert people("paul", "view_payload").get(payload).status_code == 403


def test_a_payload_that_was_not_kept_or_is_no_text_has_a_page_too(using: str, people: Any) -> None:
    from tests.integration.django_project.rows import closed, written

    auditor = people("anna", "view_message", "view_payload")
    binary = written("x", using=using)
    _execute(using, "update pillarbox_outbox set payload = %s", b"\xff\x00<b>")
    assert "\\xff\x00&lt;b&gt;" in auditor.get(f"{MESSAGES}{binary.id}/payload/").content.decode()
    bare = closed("y", using=using, status="delivered")
    _execute(using, "update pillarbox_history set payload = %s", None)
    assert "It was not kept." in auditor.get(f"{MESSAGES}{bare.id}/payload/").content.decode()


def test_the_page_of_a_large_payload_shows_its_beginning(using: str, people: Any) -> None:
    from tests.integration.django_project.rows import written

    auditor, message = people("anna", "view_message", "view_payload"), written("x", using=using)
    for size, is_cut in ((256 * 1024, False), (256 * 1024 + 1, True)):
        _execute(using, "update pillarbox_outbox set payload = %s", b"~" * size)
        page = auditor.get(f"{MESSAGES}{message.id}/payload/").content.decode()
        assert page.count("~") == 256 * 1024
        assert ("The page shows the first 256 KiB." in page) == is_cut


def test_failures_have_a_page_with_their_reasons(using: str, viewer: Any) -> None:
    from tests.integration.django_project.rows import closed, written

    written("fine", using=using)
    closed("x", using=using, status="delivered")
    failed = [closed(word, using=using, error=f"timeout of call {4711 + n}") for n, word in enumerate("ab")]
    held = written("c", using=using)
    _execute(
        using, "update pillarbox_outbox set waits = 'held', last_error = 'no token=hunter2' where id = %s", held.id
    )
    response = viewer.get(FAILURES)
    text = response.content.decode()
    assert [one.id for one in response.context["cl"].result_list] == [*(one.id for one in failed), held.id]
    assert "timeout of call #" in text  # both, as one reason
    assert "timeout of call 4711" in text
    assert "failed (held)" in text
    assert "hunter2" not in text
    assert viewer.get(f"{FAILURES}{failed[0].id}/change/").status_code == 200
    assert viewer.get(f"{FAILURES}{held.id}/change/").status_code == 200


def test_a_long_list_ends_somewhere(using: str, viewer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.contrib import admin

    from pillarbox.integrations.django import admin as listing
    from pillarbox.integrations.django.models import Message
    from tests.integration.django_project.rows import written

    monkeypatch.setattr(listing, "LIST_LIMIT", 3)
    monkeypatch.setattr(admin.site.get_model_admin(Message), "list_per_page", 2)
    messages = [written("x", using=using) for _ in range(5)]
    response = viewer.get(MESSAGES, {"p": "2"})
    assert [one.id for one in response.context["cl"].result_list] == [messages[2].id]
    assert "Pages end after 3 messages" in response.content.decode()
    assert "Show counts" not in response.content.decode()  # of every choice, which would look at all
    assert "e=1" in viewer.get(MESSAGES, {"p": "3"}).headers["location"]


# --- who may what --------------------------------------------------------------------------------


def test_without_permission_there_is_nothing(using: str, people: Any) -> None:
    from django.test import Client

    from tests.integration.django_project.rows import closed, state_of

    message = closed("x", using=using)
    stranger = people("stan")
    urls = [
        MESSAGES,
        FAILURES,
        *(f"{MESSAGES}{message.id}/{name}/" for name in ("change", "payload", "redrive", "discard")),
    ]
    for url in urls:
        assert stranger.get(url).status_code == 403
        assert stranger.post(url, chosen("redrive", message, confirmed="yes")).status_code == 403
        assert "/login/" in Client().get(url).headers["location"]
    assert "Messages" not in stranger.get("/admin/").content.decode()
    assert state_of(message) == "failed"


def test_a_viewer_cannot_act(using: str, viewer: Any) -> None:
    from tests.integration.django_project.rows import closed, state_of

    message = closed("x", using=using)
    assert 'value="redrive"' not in viewer.get(MESSAGES).content.decode()
    for url in (MESSAGES, FAILURES):
        viewer.post(url, chosen("redrive", message, confirmed="yes"))
        viewer.post(url, chosen("discard", message, confirmed="yes", reason="because"))
    for action in ("redrive", "discard"):
        assert viewer.post(f"{MESSAGES}{message.id}/{action}/", {"confirmed": "yes", "reason": "r"}).status_code == 403
    assert state_of(message) == "failed"


def test_nobody_adds_edits_or_deletes(using: str, project: dict[str, str]) -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    from pillarbox.integrations.django.models import Message
    from tests.integration.django_project.rows import written

    message = written("x", using=using)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    try:
        assert client.get(f"{MESSAGES}add/").status_code == 403
        assert client.post(f"{MESSAGES}{message.id}/change/", {"topic": "other"}).status_code == 403
        assert client.post(f"{MESSAGES}{message.id}/delete/", {"post": "yes"}).status_code == 403
        client.post(MESSAGES, chosen("delete_selected", message, post="yes"))
        assert "delete_selected" not in client.get(MESSAGES).content.decode()
    finally:
        User.objects.all().delete()
    with pytest.raises(TypeError, match="not written by Django"):
        message.save()
    with pytest.raises(TypeError, match="not deleted by Django"):
        message.delete()
    assert Message.objects.using(using).get().topic == message.topic


# --- acting --------------------------------------------------------------------------------------


def test_redriving_is_asked_for_and_then_done(using: str, operator: Any) -> None:
    from tests.integration.django_project.rows import closed, journal_of, state_of

    failed, delivered = closed("x", using=using), closed("y", using=using, status="delivered")
    asking = operator.post(MESSAGES, chosen("redrive", failed, delivered))
    assert asking.status_code == 200
    text = asking.content.decode()
    assert "Redrive 1 message?" in text
    assert "1 of the selected cannot be redriven" in text
    assert state_of(failed) == "failed"
    done = operator.post(MESSAGES, chosen("redrive", failed, delivered, confirmed="yes"), follow=True)
    assert told_to(done) == ["1 message redriven."]
    assert (state_of(failed), state_of(delivered)) == ("pending", "delivered")
    assert journal_of(failed)[-1] == ("redriven", "django:olga", None)


def test_discarding_needs_a_reason(using: str, operator: Any) -> None:
    from tests.integration.django_project.rows import closed, journal_of, state_of, written

    failed, pending = closed("x", using=using), written("y", using=using)
    for reason in ("", "   ", "x" * 501, "a\x00b"):
        asking = operator.post(MESSAGES, chosen("discard", failed, pending, confirmed="yes", reason=reason))
        assert "errorlist" in asking.content.decode()
    assert (state_of(failed), state_of(pending)) == ("failed", "pending")
    done = operator.post(FAILURES, chosen("discard", failed, confirmed="yes", reason=" sent by hand "), follow=True)
    assert told_to(done) == ["1 message discarded."]
    assert state_of(failed) == "discarded"
    assert journal_of(failed)[-1] == ("discarded", "django:olga", "sent by hand")


@pytest.mark.parametrize("place", [MESSAGES, FAILURES])
def test_one_message_is_redriven_or_discarded_from_its_page(using: str, operator: Any, place: str) -> None:
    from tests.integration.django_project.rows import closed, state_of

    first, second = closed("x", using=using), closed("y", using=using)
    page = operator.get(f"{place}{first.id}/change/").content.decode()
    for action in ("redrive", "discard"):
        assert f"{place}{first.id}/{action}/" in page
    assert "Redrive 1 message?" in operator.get(f"{place}{first.id}/redrive/").content.decode()
    assert state_of(first) == "failed"
    assert operator.post(f"{place}{first.id}/redrive/", {"confirmed": "yes"}).headers["location"] == place
    operator.post(f"{place}{second.id}/discard/", {"confirmed": "yes", "reason": "r"})
    assert (state_of(first), state_of(second)) == ("pending", "discarded")


def test_all_that_match_can_be_chosen(using: str, operator: Any) -> None:
    from tests.integration.django_project.rows import closed, state_of

    failed = [closed("x", using=using) for _ in range(3)]
    other = closed("y", using=using, destinations="elsewhere")
    url = f"{MESSAGES}?destination=broker"
    choice = chosen("redrive", failed[0], select_across="1")
    assert "Redrive 3 messages?" in operator.post(url, choice).content.decode()
    assert told_to(operator.post(url, choice | {"confirmed": "yes"}, follow=True)) == ["3 messages redriven."]
    assert [state_of(one) for one in [*failed, other]] == ["pending"] * 3 + ["failed"]


@pytest.mark.parametrize("ids", [["abc"], ["-1"], ["9" * 30], ["1; drop table pillarbox_outbox"], ["¹"]])
def test_a_bad_selection_is_told_in_one_sentence(using: str, operator: Any, ids: list[str]) -> None:
    choice = {"action": "redrive", "_selected_action": ids, "index": "0", "confirmed": "yes"}
    done = operator.post(MESSAGES, choice, follow=True)
    assert told_to(done) == ["That is no selection of messages: choose them from the list."]


def test_what_cannot_be_changed_is_told_in_one_sentence(
    using: str, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pillarbox.integrations.django import admin
    from tests.integration.django_project.rows import closed, state_of, written

    delivered, failed = closed("y", using=using, status="delivered"), [closed("x", using=using) for _ in range(2)]
    done = operator.post(MESSAGES, chosen("redrive", delivered), follow=True)
    assert told_to(done) == ["None of the selected messages can be redriven: only what is failed or discarded can."]
    gone = operator.post(MESSAGES, chosen("redrive", written("z", using=using), confirmed="yes"), follow=True)
    assert "can be redriven" in told_to(gone)[0]
    assert operator.get(f"{MESSAGES}99999999/redrive/").status_code == 404
    assert operator.get(f"{MESSAGES}abc/payload/").status_code == 403
    monkeypatch.setattr(admin, "CHANGE_LIMIT", 1)
    many = operator.post(MESSAGES, chosen("redrive", *failed, confirmed="yes"), follow=True)
    assert "manage.py pillarbox messages redrive" in told_to(many)[0]
    assert {state_of(one) for one in failed} == {"failed"}


def test_a_store_that_refuses_is_told_in_one_sentence(
    using: str, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pillarbox.errors import StoreUnavailable
    from pillarbox.integrations.django import admin as acting
    from tests.integration.django_project.rows import closed

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("The store at postgresql://me:hunter2@host is away: try again.")

    monkeypatch.setattr(acting, "run_on_store", away)
    done = operator.post(MESSAGES, chosen("redrive", closed("x", using=using), confirmed="yes"), follow=True)
    assert told_to(done) == ["The store at postgresql://me:***@host is away: try again."]


def test_a_request_from_elsewhere_changes_nothing(using: str, people: Any) -> None:
    from tests.integration.django_project.rows import closed, state_of

    strict = people("olga", "view_message", "change_message", enforce_csrf_checks=True)
    message = closed("x", using=using)
    for url in (MESSAGES, FAILURES, f"{MESSAGES}{message.id}/redrive/"):
        assert strict.post(url, chosen("redrive", message, confirmed="yes")).status_code == 403
    assert state_of(message) == "failed"
    page = strict.post(MESSAGES, chosen("redrive", message), headers={"X-CSRFToken": _token(strict)})
    assert "csrfmiddlewaretoken" in page.content.decode()


def test_a_block_around_every_request_does_not_stop_the_store(using: str, operator: Any) -> None:
    from django.db import connections

    from tests.integration.django_project.rows import closed, state_of

    message, other = closed("x", using=using), closed("y", using=using)
    for alias in connections:
        connections[alias].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        operator.post(MESSAGES, chosen("redrive", message, confirmed="yes"))
        operator.post(f"{FAILURES}{other.id}/redrive/", {"confirmed": "yes"})
    finally:
        for alias in connections:
            connections[alias].settings_dict["ATOMIC_REQUESTS"] = False
    assert (state_of(message), state_of(other)) == ("pending", "pending")


def test_an_async_server_acts_too(using: str, operator: Any) -> None:
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient

    from tests.integration.django_project.rows import closed, state_of

    message, client = closed("x", using=using), AsyncClient()
    client.cookies = operator.cookies
    answer = async_to_sync(client.post)(MESSAGES, chosen("redrive", message, confirmed="yes"))
    assert answer.status_code == 302
    assert state_of(message) == "pending"


# --- several databases ---------------------------------------------------------------------------


def test_another_database_is_a_filter_that_every_page_keeps(using: str, operator: Any) -> None:
    from pillarbox.integrations.django.testing import DjangoKit
    from tests.integration.django_project.rows import closed, state_of

    other = "postgres" if using == "default" else "default"
    closed("here", using=using)
    there = closed("there", using=other, key="k-there")
    try:
        assert "k-there" not in operator.get(MESSAGES).content.decode()
        response = operator.get(MESSAGES, {"database": other})
        assert [one.id for one in response.context["cl"].result_list] == [there.id]
        kept = f"?_changelist_filters=database%3D{other}"
        page = operator.get(f"{MESSAGES}{there.id}/change/{kept}").content.decode()
        assert str(there.message_id) in page
        assert "Traceback of it" in page
        assert f"redrive/{kept}" in page
        back = operator.post(f"{MESSAGES}{there.id}/redrive/{kept}", {"confirmed": "yes"})
        assert back.headers["location"] == f"{MESSAGES}?database={other}"
        assert state_of(there) == "pending"
        assert operator.get(MESSAGES, {"database": "nowhere"}).status_code == 404
    finally:
        DjangoKit(using=other).clear()


# --- without it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_without_the_admin_everything_else_works(project: dict[str, str]) -> None:
    program = """
import django, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["pillarbox.integrations.django"], PILLARBOX={"source": "/shop", "routes": "broker"},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, USE_TZ=True)
django.setup()
from django.core.management import call_command
from django.db import transaction
from pillarbox.integrations.django import publish
from pillarbox.integrations.django.models import Message
call_command("migrate", verbosity=0)
with transaction.atomic():
    publish({}, type="x")
assert Message.objects.get().type == "x"
assert "django.contrib.admin" not in sys.modules and "pillarbox.integrations.django.admin" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, env=dict(os.environ),
        cwd=Path(__file__).parents[3], timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def _execute(using: str, statement: str, *values: object) -> None:
    from django.db import connections

    with connections[using].cursor() as cursor:
        cursor.execute(statement, values)


def _token(client: Any) -> str:
    client.get(MESSAGES)
    return str(client.cookies["csrftoken"].value)
