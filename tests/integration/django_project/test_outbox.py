"""Publishing from Django: with the row or not at all, wherever the code runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from pillarbox import Outbox
from pillarbox.errors import NotInTransaction
from tests.integration.django_project.published import told, words

# --- publishing ----------------------------------------------------------------------------------


def test_a_message_commits_with_its_block_or_not_at_all(using: str) -> None:
    from django.db import transaction

    from pillarbox.integrations.django import publish

    with transaction.atomic(using=using):
        publish(told("kept"), using=using)
    with suppress(LookupError), transaction.atomic(using=using):
        publish(told("lost"), using=using)
        raise LookupError
    with transaction.atomic(using=using):
        publish([told("many"), told("of them")], using=using)
        with suppress(LookupError), transaction.atomic(using=using):
            publish(told("undone"), using=using)
            raise LookupError
    assert words(using) == ["kept", "many", "of them"]


def test_outside_a_block_nothing_is_published(using: str) -> None:
    from pillarbox.integrations.django import publish

    with pytest.raises(NotInTransaction, match=r"not inside transaction\.atomic"):
        publish(told("alone"), using=using)
    assert words(using) == []


def test_a_transaction_by_hand_is_one_too(using: str) -> None:
    from django.db import transaction

    from pillarbox.integrations.django import publish

    transaction.set_autocommit(False, using=using)
    try:
        publish(told("lost"), using=using)
        transaction.rollback(using=using)
        publish(told("kept"), using=using)
        transaction.commit(using=using)
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)
    assert words(using) == ["kept"]


def test_a_block_of_another_database_is_none(using: str) -> None:
    from django.db import transaction

    from pillarbox.integrations.django import publish

    other = "postgres" if using == "default" else "default"
    with transaction.atomic(using=other), pytest.raises(NotInTransaction, match=using):
        publish(told("alone"), using=using)
    assert words(using) == words(other) == []


def test_a_block_that_is_broken_takes_no_message(using: str) -> None:
    from django.db import DatabaseError, connections, transaction

    from pillarbox.integrations.django import publish

    with transaction.atomic(using=using):
        transaction.set_rollback(True, using=using)
        with pytest.raises(transaction.TransactionManagementError):
            publish(told("lost"), using=using)
    elsewhere = Outbox(routes="broker", source="/shop", prefix="nowhere_")
    with pytest.raises(DatabaseError), transaction.atomic(using=using):  # Django's own error, not the driver's
        elsewhere.publish(connections[using], told("lost"))
    assert words(using) == []


def test_a_command_goes_the_same_way(using: str) -> None:
    from django.db import transaction

    from pillarbox.errors import WrongKind
    from pillarbox.integrations.django import send
    from pillarbox.integrations.django.models import Message

    with transaction.atomic(using=using):
        send({"order": 7}, type="charge", using=using)
        with pytest.raises(WrongKind):
            send(told("an event"), using=using)
    assert Message.objects.using(using).get().kind == "command"


def test_a_connection_is_a_handle_of_any_outbox(using: str) -> None:
    from django.db import connection, connections, transaction

    from pillarbox.integrations.django import outbox

    with transaction.atomic(using=using):
        outbox().publish(connections[using], told("by the connection"))
    with transaction.atomic():
        outbox().publish(connection, told("by the proxy"))
    assert "by the connection" in words(using)
    assert "by the proxy" in words("default")


def test_an_inbox_works_in_a_block(using: str) -> None:
    from django.db import connections, transaction

    from pillarbox import Inbox
    from pillarbox.testing.samples import sample

    inbox, message = Inbox(consumer="shop"), sample()
    with transaction.atomic(using=using):
        assert inbox.accept(connections[using], message)
    with transaction.atomic(using=using):
        assert not inbox.accept(connections[using], message)


# --- requests ------------------------------------------------------------------------------------


@pytest.fixture
def atomic_requests(project: dict[str, str]) -> Iterator[None]:
    from django.db import connections

    settings = connections["default"].settings_dict
    settings["ATOMIC_REQUESTS"] = True
    yield
    settings["ATOMIC_REQUESTS"] = False


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_a_request_is_a_block_where_the_settings_say_so(using: str) -> None:
    from django.test import Client

    client = Client(raise_request_exception=False)
    assert client.get("/sync/kept").status_code == 200
    assert client.get("/sync/fails").status_code == 500
    assert words(using) == ["kept"]


@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_an_async_view_has_the_bridge(using: str) -> None:
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient

    client = AsyncClient(raise_request_exception=False)
    assert async_to_sync(client.get)("/async/kept").status_code == 200
    assert async_to_sync(client.get)("/async/fails").status_code == 500
    assert words(using) == ["kept"]


@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_an_async_view_that_publishes_without_the_bridge_is_told_of_it(using: str) -> None:
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient

    with pytest.raises(NotInTransaction, match="in_atomic"):
        async_to_sync(AsyncClient().get)("/bare")
    assert words(using) == []


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("using", ["default"], indirect=True)
def test_an_async_view_may_be_left_out_of_atomic_requests(using: str) -> None:
    from asgiref.sync import async_to_sync
    from django.test import AsyncClient

    client = AsyncClient(raise_request_exception=False)
    assert async_to_sync(client.get)("/async/kept").status_code == 200
    assert words(using) == ["kept"]


def test_models_are_saved_and_deleted_from_async_code(using: str) -> None:
    from asgiref.sync import async_to_sync

    from tests.integration.django_project.published import order

    async def work() -> None:
        placed = order(note="new")
        placed.tell("placed")
        await placed.asave(using=using)
        placed.tell("deleted")
        await placed.adelete(using=using)

    async_to_sync(work)()
    assert words(using) == ["placed", "deleted"]
