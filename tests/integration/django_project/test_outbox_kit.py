"""The kit in Django's own test classes, which differ in what they commit."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.errors import NotInTransaction
from tests.integration.django_project.published import told, words


def ran(base: Any, work: Callable[[], None]) -> None:
    """Run the work as a test of this class of Django's."""

    class Case(base):
        databases = "__all__"

        def runTest(self) -> None:
            work()

    result = unittest.TestResult()
    unittest.TestSuite([Case()]).run(result)
    assert result.wasSuccessful(), [*result.errors, *result.failures]


def test_the_kit_sees_what_a_test_case_never_commits(using: str) -> None:
    from django.db import transaction
    from django.test import TestCase

    from pillarbox.integrations.django import publish
    from pillarbox.integrations.django.testing import DjangoKit
    from tests.integration.django_project.shop.models import Told

    kit = DjangoKit(using=using)

    def work() -> None:
        with transaction.atomic(using=using):
            publish(told("seen"), using=using, headers={"a": "b"})
        found = kit.assert_published(Told, word="seen", count=1, headers={"a": "b"})
        assert found == told("seen")
        kit.assert_not_published(Told, word="other")
        with pytest.raises(AssertionError, match="and at least one should be"):
            kit.assert_published(Told, word="other")
        with pytest.raises(TypeError, match="use TransactionTestCase"):
            kit.drain()

    ran(TestCase, work)
    assert words(using) == []


def test_a_test_case_hides_no_missing_block(using: str) -> None:
    from django.test import TestCase

    from pillarbox.integrations.django import publish

    def work() -> None:
        with pytest.raises(NotInTransaction, match="but the one that TestCase puts around a test"):
            publish(told("alone"), using=using)

    ran(TestCase, work)


def test_in_a_transaction_test_case_messages_are_delivered_and_cleared(using: str) -> None:
    from django.db import transaction
    from django.test import TransactionTestCase

    from pillarbox.integrations.django import publish
    from pillarbox.integrations.django.testing import DjangoKit
    from tests.integration.django_project.shop.models import Told

    kit = DjangoKit(using=using)

    def work() -> None:
        with transaction.atomic(using=using):
            publish(told("sent"), using=using)
        assert kit.drain() == 1
        assert [message.subject for message in kit.transport("broker").received] == ["sent"]
        kit.assert_published(Told, word="sent", count=1)
        kit.clear()
        kit.assert_not_published(Told)

    ran(TransactionTestCase, work)


def test_settings_that_a_test_overrides_make_another_outbox(project: dict[str, str]) -> None:
    from django.test import override_settings

    from pillarbox.integrations.django import outbox

    before = outbox()
    with override_settings(PILLARBOX={"source": "/other", "routes": "broker"}):
        assert outbox().source == "/other"
    assert outbox().source == before.source == "/shop"
