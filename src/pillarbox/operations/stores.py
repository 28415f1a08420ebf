"""Questions to many stores at once: each is asked by itself, and one that does not answer has its own line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from pillarbox.contracts.store import Store
from pillarbox.errors import PillarboxError, StoreUnavailable
from pillarbox.redaction import redact_line
from pillarbox.relay.addresses import StoreAddress, Stores
from pillarbox.stores.factory import open_store
from pillarbox.stores.sharing import SharedConnections

__all__ = ["StoreAnswer", "ask_stores", "run_on_stores"]

T = TypeVar("T")

_AT_ONCE: Final = 8
_TIMEOUT: Final = 30.0
"""Seconds after which a store that does not answer is left out."""


class StoreAnswer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Answer of one store, or the reason why there is none."""

    name: str
    address: str = ""
    """Without secrets."""
    value: T | None = None
    error: str | None = None
    exit_code: int = 0
    """Of the error."""


async def ask_stores(
    stores: Mapping[str, StoreAddress],
    action: Callable[[str, Store], Awaitable[T]],
    *,
    shared: SharedConnections | None = None,
    at_once: int = _AT_ONCE,
    timeout: float | None = _TIMEOUT,
    reads_only: bool = False,
) -> list[StoreAnswer[T]]:
    """Open each store, await the action with it, and close it; a few at the same time. Answers come by name."""
    own = SharedConnections() if shared is None else shared
    slots = asyncio.Semaphore(at_once)

    async def ask(name: str, address: StoreAddress) -> StoreAnswer[T]:
        async with slots:
            try:
                async with asyncio.timeout(timeout):
                    store = open_store(address.url, names=address.names, reads_only=reads_only, shared=own)
                    await store.open()
                    try:
                        value = await action(name, store)
                    finally:
                        await store.close()
            except TimeoutError:
                error: PillarboxError = StoreUnavailable(f"The store did not answer within {timeout:g} s.")
            except PillarboxError as raised:
                error = raised
            else:
                return StoreAnswer(name=name, address=str(address), value=value)
        return StoreAnswer(
            name=name, address=str(address), error=redact_line(str(error)), exit_code=type(error).exit_code
        )

    try:
        return list(await asyncio.gather(*(ask(name, address) for name, address in sorted(stores.items()))))
    finally:
        if shared is None:
            own.close()


def run_on_stores(
    stores: Stores,
    action: Callable[[str, Store], Awaitable[T]],
    *,
    at_once: int = _AT_ONCE,
    timeout: float | None = _TIMEOUT,
    reads_only: bool = False,
) -> Sequence[StoreAnswer[T]]:
    """Ask all stores from synchronous code. A row that is no tenant is an answer too, with its error."""

    async def run() -> list[StoreAnswer[T]]:
        found = await stores.find()
        answers = await ask_stores(found.stores, action, at_once=at_once, timeout=timeout, reads_only=reads_only)
        return [*answers, *(StoreAnswer[T](name="", error=sentence, exit_code=2) for sentence in found.refused)]

    return asyncio.run(run())
