"""The short form of the chain: everybody between A and C dies at every point, and every effect happens once, in order.

How long it takes is the machine's business; how often somebody dies, and where, is not left to chance.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proof.chain import lines as brokers
from proof.chain import lines as http
from proof.chain.lines import LINES, Line
from proof.chain.run import Script, run
from proof.processes import ForkServer
from tests.support.nats_server import NatsServer
from tests.support.servers import found

_KILLS: Final = {"relay A": 4, "consumer B": 7, "relay B": 4, "consumer C": 7}
_PATIENCE: Final = 200.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "line"
    folder.mkdir()
    return folder


@pytest.fixture(params=LINES)
def line(request: pytest.FixtureRequest, place: Path) -> Iterator[Line]:
    """With servers as all tests find them: missing, they are skipped, or in CI a failure."""
    if request.param == "http":
        with http.line(place) as made:
            yield made
        return
    url, _ = request.getfixturevalue("postgres_url"), request.getfixturevalue("rabbitmq_url")
    with found(NatsServer(), environ=os.environ), brokers.build_broker_line(place, database=url) as made:
        yield made


@pytest.mark.timeout(300)
def test_whatever_dies_every_effect_happens_once_and_in_order(line: Line, place: Path, fork_server: ForkServer) -> None:
    script = Script(kills=_KILLS, seed=1, seconds=_PATIENCE)
    result = run("short", line, script, fork_server=fork_server, folder=place)
    print(result.log)  # noqa: T201 - shown when the test fails
    assert result.verdict.holds, result.verdict
    assert result.kills == sum(_KILLS.values())
    assert result.hit == result.points == 20
    assert result.verdict.duplicates > 0
