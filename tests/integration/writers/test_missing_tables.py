"""Publishing where no tables are: the driver's own error, with a note that says what to do."""

from __future__ import annotations

import msgspec
import pytest

from pillarbox import writers
from pillarbox.contracts.writer import Accept, Insert
from pillarbox.message import Names
from tests.support.writers.handles import Handle, insert, resolve
from tests.support.writers.places import Place, batch

NOTE = "run `pillarbox schema install` with the URL of the database"


def elsewhere(place: Place) -> Names:
    """Names of tables that are not there."""
    return Names(place.names.schema, "none_")


async def publish(handle: Handle, given: Insert) -> None:
    await insert(handle, given)
    await handle.flush_written()
    await handle.commit()


async def test_an_insert_keeps_the_class_and_says_what_to_do(handle: Handle, place: Place) -> None:
    await handle.begin()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - every driver has its own
        await publish(handle, msgspec.structs.replace(batch(place, "a"), names=elsewhere(place)))
    assert not type(caught.value).__module__.startswith("pillarbox")
    (note,) = [note for note in caught.value.__notes__ if NOTE in note]
    assert "begin with 'none_'" in note


async def test_an_inbox_command_says_it_too(handle: Handle, place: Place) -> None:
    await handle.begin()
    command = Accept(names=elsewhere(place), consumer="mail", source="/shop", message_id="1")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - every driver has its own
        await resolve(writers.execute(handle.tx, command))
    assert [note for note in caught.value.__notes__ if NOTE in note]


async def test_another_error_gets_no_note(handle: Handle, place: Place) -> None:
    await handle.begin()
    one = batch(place, "a")
    broken = msgspec.structs.replace(one.messages[0], payload=None)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - every driver has its own
        await publish(handle, msgspec.structs.replace(one, messages=[broken]))
    assert not [note for note in getattr(caught.value, "__notes__", ()) if NOTE in note]
