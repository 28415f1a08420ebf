"""What an operator cannot do is refused, with both states and the message by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from pillarbox.errors import IllegalTransition, NoSuchMessage
from pillarbox.message import Message, State
from pillarbox.protocols import Claim, Moved, Selection, Store
from pillarbox.testing.harness import StoreHarness
from pillarbox.testing.samples import sample
from pillarbox.testing.store_contract.arrange import (
    HOUR,
    LANE,
    MANY,
    NEAR,
    SECOND,
    close,
    everything,
    fail,
    own,
    park,
    put,
    settled,
    state_of,
)

__all__ = ["RefusingContract"]

_Act = Callable[[Selection], Awaitable[Moved]]


def _acts(harness: StoreHarness) -> dict[str, _Act]:
    store, until = harness.store, harness.clock.now() + HOUR
    return {
        "redrive": lambda selection: store.redrive(selection, by="ann", limit=MANY),
        "replay": lambda selection: store.replay(selection, by="ann", limit=MANY),
        "discard": lambda selection: store.discard(selection, by="ann", reason="no", limit=MANY),
        "defer": lambda selection: store.defer(selection, until=until, by="ann", limit=MANY),
    }


_BECOMES = {"redrive": State.PENDING, "replay": State.PENDING, "discard": State.DISCARDED, "defer": State.PENDING}
_REFUSED = {
    "redrive": (State.PENDING, State.SENDING, State.DELIVERED, State.SKIPPED),
    "replay": (State.PENDING, State.SENDING, State.FAILED, State.SKIPPED, State.DISCARDED),
    "discard": (State.SENDING, State.DELIVERED, State.SKIPPED, State.DISCARDED),
    "defer": (State.SENDING, State.DELIVERED, State.FAILED, State.SKIPPED, State.DISCARDED),
}


async def _one_of_each(harness: StoreHarness) -> dict[State, Message]:
    store = harness.store
    messages = dict(zip(State, await put(harness, *(sample(key=NEAR) for _ in State)), strict=True))
    fence = await own(store, LANE)
    for state, message in messages.items():
        if state.is_closed:
            await close(store, fence, message, state)
    await store.claim(fence, Claim(1, [messages[State.SENDING].id]))
    return {state: message for state, message in messages.items() if await _is(store, message, state)}


async def _is(store: Store, message: Message, state: State) -> bool:
    assert await state_of(store, message) is state
    return True


class RefusingContract:
    """`IllegalTransition` and `NoSuchMessage`."""

    async def test_a_wrong_state_is_refused_by_id(self, harness: StoreHarness) -> None:
        messages = await _one_of_each(harness)
        before = await everything(harness.store)
        for name, act in _acts(harness).items():
            for state in _REFUSED[name]:
                message = messages[state]
                for selection in (Selection(ids=[message.id]), Selection(message_ids=[message.message_id])):
                    with pytest.raises(IllegalTransition) as refused:
                        await act(selection)
                    text = str(refused.value)
                    assert str(message.id) in text or str(message.message_id) in text, (name, state)
                    assert state in text, (name, state)
                    assert _BECOMES[name] in text, (name, state)
        assert await everything(harness.store) == before

    async def test_what_does_not_exist_is_said_so(self, harness: StoreHarness) -> None:
        await put(harness, sample(key=NEAR))
        before = await everything(harness.store)
        for act in _acts(harness).values():
            for selection in (Selection(ids=[987654]), Selection(message_ids=[uuid4()])):
                with pytest.raises(NoSuchMessage):
                    await act(selection)
        assert await everything(harness.store) == before

    async def test_without_names_nothing_is_an_error(self, harness: StoreHarness) -> None:
        (sending,) = await put(harness, sample(key=NEAR, topic="sending"))
        await harness.store.claim(await own(harness.store, LANE), Claim(1, [sending.id]))
        for act in _acts(harness).values():
            assert await act(Selection(topic="sending")) == Moved(0, 0)
            assert await act(Selection(topic="none", after=5)) == Moved(0, 5)

    async def test_a_parked_message_cannot_be_deferred(self, harness: StoreHarness) -> None:
        (message,) = await put(harness, sample(key=NEAR))
        await park(harness.store, await own(harness.store, LANE), message)
        with pytest.raises(IllegalTransition):
            await _acts(harness)["defer"](Selection(ids=[message.id]))

    async def test_among_several_names_the_able_ones_move(self, harness: StoreHarness) -> None:
        store = harness.store
        failed, pending = await put(harness, sample(key=NEAR), sample(key=SECOND))
        await settled(store, await own(store, LANE), fail(failed))
        moved = await store.redrive(Selection(ids=[failed.id, pending.id, 987654]), by="ann", limit=MANY)
        assert moved == Moved(1, failed.id)
