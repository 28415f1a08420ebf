"""Lists of messages look at a bounded number of rows, say where they stopped, and lose nothing on the way."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import msgspec
import pytest

from pillarbox.contracts.store import Selection
from pillarbox.dashboard import listing
from pillarbox.dashboard.listing import MatchCount, count_matches, find_by_message_id, list_page
from pillarbox.message import State
from pillarbox.stores.memory import MemoryStore
from pillarbox.testing.samples import sample
from tests.support.dashboard.seed import Relaying
from tests.support.dashboard.story import MemoryWriter


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_WINDOW", 10)
    monkeypatch.setattr(listing, "LOOKED_AT", 30)


async def put(store: MemoryStore, count: int, *, rare: int) -> None:
    """Put messages of which every `rare`th has the topic `rare`."""
    await MemoryWriter(store).insert([sample(topic="rare" if n % rare == 0 else "often") for n in range(count)])


@pytest.mark.parametrize("newest", [True, False])
async def test_a_rare_match_is_found_by_going_on(newest: bool) -> None:
    store = MemoryStore()
    await put(store, 200, rare=50)
    everything = [one.id for one in await store.find(Selection(topic="rare"), limit=100)]
    found: list[int] = []
    selection, pages = Selection(topic="rare"), 0
    while True:
        page = await list_page(store, selection, limit=2, newest=newest)
        found += [one.id for one in page.messages]
        pages += 1
        if page.next is None:
            break
        selection = msgspec.structs.replace(selection, **({"before": page.next} if newest else {"after": page.next}))
    assert found == sorted(everything, reverse=newest)
    assert 4 <= pages <= 9


async def test_a_page_that_ended_early_says_so() -> None:
    store = MemoryStore()
    await put(store, 200, rare=1_000)

    page = await list_page(store, Selection(topic="nothing"), limit=50, newest=True)
    assert (list(page.messages), page.is_cut, page.next) == ([], True, 171)
    whole = await list_page(store, Selection(), limit=50, newest=True)
    assert (len(whole.messages), whole.is_cut) == (50, False)


async def test_gaps_between_ids_cost_nothing() -> None:
    store = MemoryStore()
    await put(store, 5, rare=5)
    first = await store.find(Selection(), limit=1)
    await store.discard(Selection(), by="ann", reason="no", limit=10)
    for _ in range(3):
        await put(store, 100, rare=1_000)
        await store.discard(Selection(states=[State.PENDING]), by="ann", reason="no", limit=1_000)
    await store.redrive(Selection(ids=[first[0].id], states=[State.DISCARDED]), by="ann", limit=1)
    await put(store, 5, rare=5)

    page = await list_page(store, Selection(topic="rare", states=[State.PENDING]), limit=10, newest=True)
    assert [one.topic for one in page.messages] == ["rare", "rare"]
    assert (page.next, page.is_cut) == (None, False)


async def test_states_that_walk_and_states_that_do_not_are_one_list() -> None:
    store = MemoryStore()
    await MemoryWriter(store).insert([sample(destination="mail", key=None) for _ in range(60)])
    relay = Relaying(store, "mail")
    await relay.start()
    ids = [one.id for one in await store.find(Selection(), limit=100)]
    await relay.deliver("mail", ids[:20])
    await relay.fail("mail", ids[20:40], "no")
    found: list[int] = []
    selection = Selection(destination="mail")
    while True:
        page = await list_page(store, selection, limit=7, newest=True)
        found += [one.id for one in page.messages]
        if page.next is None:
            break
        selection = msgspec.structs.replace(selection, before=page.next)
    assert found == ids[::-1]


async def test_counting_ends_and_says_so() -> None:
    store = MemoryStore()
    await put(store, 100, rare=10)

    counts = await count_matches(store, Selection(topic="rare"), [State.PENDING, State.FAILED])
    assert counts == {State.PENDING: MatchCount(3, more=True)}
    counts = await count_matches(store, Selection(topic="rare", after=80), [State.PENDING])
    assert counts == {State.PENDING: MatchCount(2, more=False)}


async def test_a_message_is_found_by_its_message_id_among_many() -> None:
    store = MemoryStore()
    messages = [sample(correlation_id="shared") for _ in range(200)]
    await MemoryWriter(store).insert(messages)
    wanted = messages[-1]

    (found,) = await find_by_message_id(store, wanted.message_id, correlation_id="shared")
    assert found.message_id == wanted.message_id
    for unknown in (uuid4(), UUID(int=0), UUID(int=2**128 - 1), UUID("f0000000-0000-4000-8000-000000000000")):
        assert await find_by_message_id(store, unknown) == []


async def test_a_walk_ends_where_everything_was_written_before_the_time_that_is_asked_for() -> None:
    store = MemoryStore()
    await put(store, 200, rare=1_000)
    later = await store.now() + timedelta(hours=3)

    page = await list_page(store, Selection(since=later), limit=10, newest=True)
    assert (list(page.messages), page.next) == ([], None)
