"""Domain events: an aggregate says what has happened to it, and what stores the aggregate publishes that.

Nothing here knows a database: a domain model that uses it needs no other part of Pillarbox to be tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from typing import Unpack

    from pillarbox.options import GivenOptions

__all__ = ["Aggregate", "Raised", "forget", "hear", "raised_by"]

_KEY: Final = "_pillarbox_raised"
_NUMBERS: Final = count()
_HEARERS: Final[list[Callable[[object], None]]] = []


class Raised(NamedTuple):
    """An event that waits, with its place among all events of the process and the options of `publish`."""

    number: int
    event: object
    options: Mapping[str, Any]

    def made(self) -> object:
        return self.event() if callable(self.event) else self.event


class Aggregate:
    """Gives a class `raise_event`. It adds no column, no field and no constructor argument.

    class Order(Aggregate, Base):
        def place(self) -> None:
            self.status = "placed"
            self.raise_event(lambda: OrderPlaced(order_id=self.id))
    """

    def raise_event(self, event: object, **options: Unpack[GivenOptions]) -> None:
        """Let an event wait until the aggregate is stored. The options are those of `Outbox.publish`.

        A function is called then, and answers the event: for what only the database knows, such as a primary key.
        """
        # Not by setattr: the class may be frozen, and the attribute is none of its fields.
        self.__dict__.setdefault(_KEY, []).append(Raised(next(_NUMBERS), event, options))
        for heard in _HEARERS:
            heard(self)

    @property
    def raised_events(self) -> tuple[object, ...]:
        """The events that wait, as they were given. For tests of the model."""
        return tuple(raised.event for raised in raised_by(self))

    def take_events(self) -> list[object]:
        """The events that wait, made; afterwards none does. For repositories without an attached session."""
        waiting = list(raised_by(self))
        events = [raised.made() for raised in waiting]
        forget(self, waiting)
        return events


def raised_by(aggregate: object) -> list[Raised]:
    """What waits, in the order it was raised."""
    found: list[Raised] = vars(aggregate).get(_KEY, [])
    return found


def forget(aggregate: object, published: list[Raised] | None = None) -> None:
    """Let these no longer wait, or none at all."""
    if published is None:
        vars(aggregate).pop(_KEY, None)
        return
    numbers = {raised.number for raised in published}
    waiting = raised_by(aggregate)
    waiting[:] = [raised for raised in waiting if raised.number not in numbers]


def hear(heard: Callable[[object], None]) -> None:
    """Have a function called with every aggregate that raises an event. Saying it twice is harmless."""
    if heard not in _HEARERS:
        _HEARERS.append(heard)
