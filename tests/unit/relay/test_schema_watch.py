"""Watch over the version of the tables: a relay ends where it may not use them, and goes on where it cannot tell."""

from __future__ import annotations

import asyncio

import pytest

from pillarbox.errors import PillarboxError, SchemaMissing, SchemaNewer, SchemaOutdated, StoreUnavailable
from pillarbox.relay.schema_watch import SchemaWatch
from pillarbox.telemetry import Telemetry


class Tables:
    """Store whose tables fit at first, and then not any more."""

    def __init__(self, *answers: PillarboxError | None) -> None:
        self._answers = list(answers)
        self.looks = 0

    async def check_schema(self) -> int:
        self.looks += 1
        if self._answers and (error := self._answers.pop(0)) is not None:
            raise error
        return 9


@pytest.mark.parametrize("error", [SchemaOutdated("downgraded"), SchemaNewer("upgraded")], ids=["older", "newer"])
async def test_a_relay_ends_after_tables_became_ones_that_it_may_not_use(error: PillarboxError) -> None:
    tables = Tables(None, error)
    with pytest.raises(type(error)):
        async with asyncio.timeout(10):
            await SchemaWatch(tables, interval=0.01, telemetry=Telemetry()).run()
    assert tables.looks == 2


@pytest.mark.parametrize("error", [SchemaMissing("dropped"), StoreUnavailable("away")], ids=["missing", "away"])
async def test_tables_that_are_missing_or_away_are_waited_for(error: PillarboxError) -> None:
    tables = Tables(error)
    watch = SchemaWatch(tables, interval=0.01, telemetry=Telemetry())
    await watch.run_once()
    await watch.run_once()
    assert tables.looks == 2
