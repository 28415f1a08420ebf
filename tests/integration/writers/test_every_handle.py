"""What holds for every handle: the message shares the fate of the business data."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from pillarbox.contracts.writer import Insert
from pillarbox.message import Kind, Waits
from tests.support.writers.handles import Handle, insert, undo
from tests.support.writers.places import HAPPENED, Place, batch, message, orders, outbox, subjects


async def test_message_and_business_row_appear_with_the_commit(handle: Handle, place: Place) -> None:
    await handle.begin()
    await handle.order(1)
    await insert(handle, batch(place, "a"))
    await handle.flush_written()
    assert (orders(place), subjects(place)) == ([], [])
    await handle.commit()
    assert (orders(place), subjects(place)) == ([1], ["a"])


async def test_publishing_first_is_fine(handle: Handle, place: Place) -> None:
    await handle.begin()
    await insert(handle, batch(place, "a"))
    await handle.order(1)
    await handle.commit()
    assert (orders(place), subjects(place)) == ([1], ["a"])


async def test_a_message_alone_is_committed_too(handle: Handle, place: Place) -> None:
    await handle.begin()
    await insert(handle, batch(place, "a"))
    assert subjects(place) == []
    await handle.commit()
    assert subjects(place) == ["a"]


@pytest.mark.parametrize("written", [True, False])
async def test_rollback_takes_both(handle: Handle, place: Place, written: bool) -> None:
    await handle.begin()
    await handle.order(1)
    await insert(handle, batch(place, "a"))
    if written:
        await handle.flush_written()
    await handle.rollback()
    assert (orders(place), subjects(place)) == ([], [])


async def test_closing_without_commit_takes_both(handle: Handle, place: Place, kind: str) -> None:
    other = type(handle)()
    await other.open(place)
    await other.begin()
    await other.order(1)
    await insert(other, batch(place, "a"))
    await other.close()
    assert (orders(place), subjects(place)) == ([], [])


async def test_handle_is_used_again_after_commit_and_rollback(handle: Handle, place: Place) -> None:
    endings = (handle.commit, handle.rollback, handle.commit, handle.rollback, handle.commit)
    for number, ends in enumerate(endings, start=1):
        await handle.begin()
        await handle.order(number)
        await insert(handle, batch(place, str(number)))
        await ends()
    assert (orders(place), subjects(place)) == ([1, 3, 5], ["1", "3", "5"])


async def test_savepoint_takes_back_only_what_came_after_it(handle: Handle, place: Place) -> None:
    await handle.begin()
    await handle.order(1)
    await insert(handle, batch(place, "before"))
    async with handle.savepoint():
        await handle.order(2)
        await insert(handle, batch(place, "undone"))
        undo()
    await insert(handle, batch(place, "after"))
    await handle.order(3)
    await handle.commit()
    assert (orders(place), subjects(place)) == ([1, 3], ["before", "after"])


async def test_released_savepoint_keeps_everything_in_order(handle: Handle, place: Place) -> None:
    await handle.begin()
    await insert(handle, batch(place, "before"))
    async with handle.savepoint():
        await handle.order(1)
        await insert(handle, batch(place, "inside"))
    await insert(handle, batch(place, "after"))
    await handle.commit()
    assert (orders(place), subjects(place)) == ([1], ["before", "inside", "after"])


async def test_many_keep_their_order(handle: Handle, place: Place) -> None:
    names = [str(number) for number in range(3_000)]
    await handle.begin()
    await insert(handle, batch(place, *names))
    await handle.commit()
    assert subjects(place) == names


async def test_many_are_rolled_back_together(handle: Handle, place: Place) -> None:
    await handle.begin()
    await insert(handle, batch(place, *map(str, range(3_000))))
    await handle.rollback()
    assert subjects(place) == []


@pytest.mark.parametrize("count", [1, 2, 100])
async def test_a_batch_is_one_statement(handle: Handle, place: Place, count: int) -> None:
    await handle.begin()
    await insert(handle, batch(place, *map(str, range(count))))  # asyncpg looks array types up, once
    await handle.rollback()
    await handle.begin()
    async with handle.statements() as seen:
        await insert(handle, batch(place, *map(str, range(count))))
        await handle.commit()
    assert len(seen) == 1, seen
    assert len(outbox(place)) == count


async def test_every_field_comes_back(handle: Handle, place: Place) -> None:
    full = message(
        "unicode ✉ '\"\\ %s $1 ? :x",
        key="κλειδί-é-'",
        kind=Kind.COMMAND,
        payload=bytes(range(256)),
        content_type="application/octet-stream",
        headers={"trace": "ä", "q'uote": '"', "empty": ""},
        correlation_id="c-1",
        causation_id="c-0",
    )
    bare = msgspec.structs.replace(message(), subject=None, payload=b"")
    other = message(destination="b", type="t", topic="u", source="/v", event_time=HAPPENED + timedelta(days=1))
    batches = [[full], [bare], [bare, full], [full, full], [bare, other]]
    for sent in batches:
        await handle.begin()
        await insert(handle, Insert(names=place.names, messages=sent))
        await handle.commit()
    got = outbox(place)
    assert [known(one) for one in got] == [known(one) for sent in batches for one in sent]
    assert all(one.created_at == one.status_at and one.attempts == 0 and one.waits is None for one in got)
    nulls = place.query("select count(*) as n from pillarbox_outbox where headers is null")
    assert nulls == [{"n": 4}]


def known(given: object) -> dict[str, object]:
    fields = msgspec.structs.asdict(given)  # type: ignore[arg-type]
    hidden = {"id", "created_at", "status_at", "available_at", "waits", "attempts"}
    return {name: value for name, value in fields.items() if name not in hidden} | {"headers": fields["headers"] or {}}


@pytest.mark.parametrize("count", [1, 2])
async def test_delay_counts_from_the_databases_now(handle: Handle, place: Place, count: int) -> None:
    delay = timedelta(days=2, seconds=3, microseconds=4)
    await handle.begin()
    await insert(handle, batch(place, *"ab"[:count], delay=delay))
    await handle.commit()
    for got in outbox(place):
        assert got.waits == Waits.DEFERRED
        assert got.created_at is not None
        assert got.available_at == got.created_at + delay


@pytest.mark.parametrize("others", [0, 1])
async def test_fixed_time_is_kept_exactly(handle: Handle, place: Place, others: int) -> None:
    due = HAPPENED + timedelta(days=400, microseconds=1)
    messages = [message("due", available_at=due), *(message("now") for _ in range(others))]
    await handle.begin()
    await insert(handle, Insert(names=place.names, messages=messages))
    await handle.commit()
    expected = [(due, Waits.DEFERRED)] + [(None, None)] * others
    assert [(got.available_at, got.waits) for got in outbox(place)] == expected


async def test_own_time_goes_before_the_delay_of_the_batch(handle: Handle, place: Place) -> None:
    messages = [message("fixed", available_at=HAPPENED), message("delayed")]
    await handle.begin()
    await insert(handle, Insert(names=place.names, messages=messages, delay=timedelta(hours=1)))
    await handle.commit()
    fixed, delayed = outbox(place)
    assert fixed.available_at == HAPPENED
    assert delayed.created_at is not None
    assert delayed.available_at == delayed.created_at + timedelta(hours=1)
    assert {fixed.waits, delayed.waits} == {Waits.DEFERRED}


async def test_no_message_is_no_statement(handle: Handle, place: Place) -> None:
    await handle.begin()
    async with handle.statements() as seen:
        await insert(handle, batch(place))
        await handle.commit()
    assert seen == []
