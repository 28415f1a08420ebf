"""Dashboards over filled stores of every kind, and clients that ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from pillarbox.dashboard import Dashboard, Role
from tests.support.dashboard.client import Client, as_role
from tests.support.dashboard.seed import Filled, fill
from tests.support.dashboard.stores import KINDS, OpenStore, open_kind


@pytest.fixture(params=KINDS)
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[OpenStore]:
    """An empty store of each kind."""
    async with open_kind(request.param, request) as found:
        yield found


@pytest.fixture
async def memory(request: pytest.FixtureRequest) -> AsyncIterator[OpenStore]:
    """An empty memory store."""
    async with open_kind("memory", request) as found:
        yield found


@pytest.fixture
async def filled(opened: OpenStore) -> Filled:
    """What a bad day left in the store `opened`."""
    return await fill(opened.store, opened.writer)


@pytest.fixture
async def build_client() -> AsyncIterator[Callable[..., Client]]:
    """Builds clients of dashboards over a store, by default as an owner."""
    dashboards: list[Dashboard] = []

    def build(opened: OpenStore, *, role: Role = Role.OWNER, **options: object) -> Client:
        dashboard = Dashboard({"orders": opened.build()}, authorize=as_role(role), **options)  # type: ignore[arg-type]
        dashboards.append(dashboard)
        return Client(dashboard)

    yield build
    for one in dashboards:
        await one.close()
