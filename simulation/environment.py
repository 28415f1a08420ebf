"""What relays take from the machine and the release they run on, made repeatable and cheap while a seed runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from random import Random
from typing import Final
from unittest.mock import patch
from uuid import UUID

from pillarbox.message import SKIPPED_DESTINATION
from pillarbox.relay.breaker import Breaker
from pillarbox.relay.pipeline import Pipeline
from pillarbox.relay.relay import Relay
from pillarbox.relay.standing import Standing
from simulation.scenario import LANES, Scenario

__all__ = ["simulated"]

_NEVER: Final = 1e9
_SHORTEST_NAP: Final = 0.02
_SWEEP: Final = 1.0
_FIRST: Final = timedelta(seconds=0.2)
_LONGEST: Final = timedelta(seconds=1)
"""Leases are short here, and so is what else takes seconds: more happens in a storm, and its end comes sooner."""


@contextmanager
def simulated(scenario: Scenario) -> Iterator[None]:
    """Ids come from the seed; there are few lanes; the safety net is taken away, as nothing may need it."""
    dice = Random(scenario.seed)

    def drawn_id() -> UUID:
        return UUID(int=dice.getrandbits(128), version=4)

    changes: dict[str, object] = {
        "pillarbox.relay.standing.uuid4": drawn_id,
        "pillarbox.relay.shares.PARTITIONS": LANES,
        "pillarbox.relay.intake._NET_INTERVAL": _NEVER,
        "pillarbox.relay.intake._SWEEP_INTERVAL": _SWEEP,
        "pillarbox.relay.wake._SHORTEST": _SHORTEST_NAP,
        "pillarbox.relay.work.Breaker": partial(Breaker, first=_FIRST, longest=_LONGEST),
        "pillarbox.relay.relay.version": lambda _: "simulated",
    }
    with ExitStack() as patches:
        for name, new in changes.items():
            patches.enter_context(patch(name, new))
        if not scenario.skips:
            patches.enter_context(patch.object(Relay, "_assembled", _without_skipping))
        try:
            yield
        finally:
            asyncio._set_running_loop(None)


_assembled: Final = Relay._assembled


def _without_skipping(relay: Relay, standing: Standing) -> dict[str, Pipeline]:
    """Where nothing is skipped, nobody needs to look for it: that is half of what an idle relay does."""
    pipelines = _assembled(relay, standing)
    pipelines.pop(SKIPPED_DESTINATION)
    return pipelines
