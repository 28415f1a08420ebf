"""Models that raise events: published with the row, each once, or kept for the next try."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.django_project.published import order, told, words


def test_a_model_publishes_what_it_raised_when_it_is_saved(using: str) -> None:
    placed = order(note="new")
    placed.tell("placed")
    assert words(using) == []
    placed.save(using=using)
    placed.tell("changed")
    placed.save(using=using)
    placed.save(using=using)
    placed.tell("deleted")
    placed.delete(using=using)
    assert words(using) == ["placed", "changed", "deleted"]
    assert placed.raised_events == ()


def test_a_model_whose_event_cannot_be_published_is_not_saved(using: str) -> None:
    from pillarbox.errors import UnknownType

    placed = order(note="new")
    placed.raise_event(object())
    with pytest.raises(UnknownType):
        placed.save(using=using)
    assert not type(placed).objects.using(using).exists()


def test_what_was_raised_waits_on_when_saving_fails(using: str) -> None:
    from pillarbox.errors import UnknownType

    placed = order(note="new")
    placed.tell("first")
    placed.raise_event(object())
    with pytest.raises(UnknownType):
        placed.save(using=using)
    assert words(using) == []
    assert len(placed.raised_events) == 2
    placed.take_events()
    placed.id = None
    placed.tell("second")
    placed.save(using=using)
    assert words(using) == ["second"]


def test_an_event_that_is_raised_by_another_is_not_lost(using: str) -> None:
    def first() -> object:
        placed.tell("second")
        return told("first")

    placed = order(note="new")
    placed.raise_event(first)
    placed.save(using=using)
    assert words(using) == ["first", "second"]
    placed.raise_event(first)
    placed.delete(using=using)
    assert words(using) == ["first", "second"] * 2
    assert placed.raised_events == ()


def test_an_event_that_a_signal_raises_is_not_lost(using: str) -> None:
    from django.db.models.signals import post_delete, post_save

    from tests.integration.django_project.shop.models import Order

    def tell(instance: Order, signal: object, **_: object) -> None:
        instance.tell("saved" if signal is post_save else "deleted")

    for signal in (post_save, post_delete):
        signal.connect(tell, sender=Order)
    try:
        placed = order(note="new")
        placed.tell("placed")
        placed.save(using=using)
        placed.delete(using)  # by position, as Django allows
    finally:
        for signal in (post_save, post_delete):
            signal.disconnect(tell, sender=Order)
    assert words(using) == ["placed", "saved", "deleted"]


def test_a_model_is_saved_by_every_way_that_calls_save(using: str) -> None:
    from tests.integration.django_project.shop.models import Order

    made = Order.objects.using(using).create(note="new")
    made.tell("changed")
    made.save(using=using, update_fields=["note"])
    made.tell("nothing to save")
    made.save(using=using, update_fields=[])
    Order.objects.using(using).filter(id=made.id).update(note="bypassed")
    assert words(using) == ["changed", "nothing to save"]


def test_a_block_that_rolls_back_takes_the_messages_with_it(using: str) -> None:
    from django.db import transaction

    placed = order(note="new")
    placed.tell("lost")
    with transaction.atomic(using=using):
        placed.save(using=using)
        transaction.set_rollback(True, using=using)
    assert words(using) == []
    assert not type(placed).objects.using(using).exists()


def test_messages_pass_through_dumpdata_and_are_not_loaded(using: str, tmp_path: Path) -> None:
    from django.core.management import call_command
    from django.db import transaction

    from pillarbox.integrations.django import publish
    from pillarbox.integrations.django.models import Message

    with transaction.atomic(using=using):
        publish(told("kept"), using=using)
    file = tmp_path / "all.json"
    call_command("dumpdata", "pillarbox", database=using, output=str(file), verbosity=0)
    assert "django.told" in file.read_text()
    call_command("loaddata", str(file), database=using, verbosity=0)
    assert Message.objects.using(using).count() == 1


def test_messages_are_asked_for_by_time_and_id(using: str) -> None:
    from datetime import timedelta

    from django.db import transaction

    from pillarbox.integrations.django import publish
    from pillarbox.integrations.django.models import Message

    with transaction.atomic(using=using):
        message_id = publish(told("x"), using=using, headers={"a": "b"})
    all_of = Message.objects.using(using)
    found = all_of.get(message_id=message_id)
    assert found.created_at.tzinfo is not None
    assert found.headers == {"a": "b"}
    assert all_of.filter(created_at__gte=found.created_at, message_id__in=[str(message_id)]).exists()
    assert not all_of.filter(created_at__gt=found.created_at + timedelta(seconds=1)).exists()
    stored = found.to_message()
    assert (stored.message_id, stored.kind.value, stored.state.value, stored.subject) == (
        message_id,
        "event",
        "pending",
        "x",
    )
