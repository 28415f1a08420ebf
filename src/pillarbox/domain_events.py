"""Domain events: an aggregate raises them, and whatever stores the aggregate publishes them.

This module knows no database: a domain model that uses it needs no other part of Pillarbox to be tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from typing import Unpack

    from pillarbox.publish_options import PublishOptions

__all__ = ["Aggregate", "RaisedEvent", "add_listener", "discard_events", "get_raised_events"]

_ATTRIBUTE: Final = "_pillarbox_raised"
_NUMBERS: Final = count()
_LISTENERS: Final[list[Callable[[object], None]]] = []


class Aggregate:
    """Gives a class `raise_event`. It adds no column, no field and no constructor argument.

    class Order(Aggregate, Base):
        def place(self) -> None:
            self.status = "placed"
            self.raise_event(lambda: OrderPlaced(order_id=self.id))
    """

    def raise_event(self, event: object, **options: Unpack[PublishOptions]) -> None:
        """Raise an event, which is published when the aggregate is stored. The options are those of `Outbox.publish`.

        A function is called then and returns the event: for what only the database knows, such as a primary key.
        """
        # Not by setattr: the class may be frozen, and the attribute is none of its fields.
        self.__dict__.setdefault(_ATTRIBUTE, []).append(RaisedEvent(next(_NUMBERS), event, options))
        for listener in _LISTENERS:
            listener(self)

    @property
    def raised_events(self) -> tuple[object, ...]:
        """The events that are not yet published, as they were given. For tests of the model."""
        return tuple(raised.event for raised in get_raised_events(self))

    def take_events(self) -> list[object]:
        """Build and return the events that are not yet published, and drop them here.

        For repositories without an attached session.
        """
        raised = list(get_raised_events(self))
        events = [one.build() for one in raised]
        discard_events(self, raised)
        return events


class RaisedEvent(NamedTuple):
    """An event that is not yet published, with its number in the process and the options of `publish`."""

    number: int
    event: object
    options: Mapping[str, Any]

    def build(self) -> object:
        """Return the event; call the function if it was given as one."""
        return self.event() if callable(self.event) else self.event


def get_raised_events(aggregate: object) -> list[RaisedEvent]:
    """Return the events that are not yet published, in the order they were raised."""
    found: list[RaisedEvent] = vars(aggregate).get(_ATTRIBUTE, [])
    return found


def discard_events(aggregate: object, published: list[RaisedEvent] | None = None) -> None:
    """Drop these events, or all."""
    if published is None:
        vars(aggregate).pop(_ATTRIBUTE, None)
        return
    numbers = {raised.number for raised in published}
    waiting = get_raised_events(aggregate)
    waiting[:] = [raised for raised in waiting if raised.number not in numbers]


def add_listener(listener: Callable[[object], None]) -> None:
    """Call a function with every aggregate that raises an event. Adding it twice is harmless."""
    if listener not in _LISTENERS:
        _LISTENERS.append(listener)
