"""Several telemetries hear of everything."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pillarbox.telemetry import CompositeTelemetry, Telemetry

CALLS = [name for name, _ in inspect.getmembers(Telemetry, inspect.isfunction) if name.startswith("on_")]


@pytest.mark.parametrize("name", CALLS)
def test_each_of_several_hears_of_it(name: str) -> None:
    heard: list[tuple[int, tuple[object, ...], dict[str, object]]] = []

    class Listener(Telemetry):
        def __init__(self, number: int) -> None:
            def note(*arguments: Any, **named: Any) -> None:
                heard.append((number, arguments, named))

            setattr(self, name, note)

    parameters = list(inspect.signature(getattr(Telemetry, name)).parameters.values())[1:]
    arguments = tuple(one.name for one in parameters if one.kind is not one.KEYWORD_ONLY)
    named = {one.name: one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    getattr(CompositeTelemetry(Listener(1), Listener(2)), name)(*arguments, **named)
    assert heard == [(1, arguments, named), (2, arguments, named)]
