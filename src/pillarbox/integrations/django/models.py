"""Models that raise domain events, and those that show messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import models, router, transaction

from pillarbox.aggregates import Aggregate, Raised, forget, raised_by
from pillarbox.integrations.django.messages import Failure, JournalLine, Message
from pillarbox.integrations.django.publishing import publish

__all__ = ["AggregateModel", "Failure", "JournalLine", "Message"]


class AggregateModel(Aggregate, models.Model):
    """A model whose `save` and `delete` publish what was raised on it, in one transaction with the row.

    An event that is raised by a function knows the primary key that saving made. When saving fails, what was raised
    waits on. What bypasses `save`, such as `QuerySet.update` and `bulk_create`, publishes nothing.
    """

    class Meta:
        abstract = True

    def save(self, *args: Any, using: str | None = None, **kwargs: Any) -> None:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            super().save(*args, using=using, **kwargs)
            published = self._published(using=using)
        forget(self, published)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> Any:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            before = [(raised, raised.made()) for raised in raised_by(self)]  # while it still has its key
            result = super().delete(using=using, keep_parents=keep_parents)
            published = self._published(before, using=using)
        forget(self, published)
        return result

    def _published(self, made: Sequence[tuple[Raised, object]] = (), *, using: str) -> list[Raised]:
        """Publish what was made, then all that waits, then what that raised; answers all of it."""
        done: dict[int, Raised] = {}
        while made or (made := [(one, one.made()) for one in raised_by(self) if one.number not in done]):
            for raised, event in made:
                publish(event, using=using, **raised.options)
                done[raised.number] = raised
            made = ()
        return list(done.values())
