"""A short form of the chain: every process between A and C dies at every point; every effect happens once, in order.

How often each process dies, and where, is fixed; how long the run takes is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proof.chain.lines import LINES, Line, build_broker_line, build_http_line
from proof.chain.run import Scenario, run
from proof.processes import ForkServer
from tests.support.nats_server import NatsServer
from tests.support.servers import found

_KILLS: Final = {"relay A": 4, "consumer B": 7, "relay B": 4, "consumer C": 7}
_PATIENCE: Final = 200.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "line"
    path.mkdir()
    return path


@pytest.fixture(params=LINES)
def line(request: pytest.FixtureRequest, folder: Path) -> Iterator[Line]:
    """With servers as all tests find them: missing, they are skipped, or in CI a failure."""
    if request.param == "http":
        with build_http_line(folder) as made:
            yield made
        return
    url, _ = request.getfixturevalue("postgres_url"), request.getfixturevalue("rabbitmq_url")
    with found(NatsServer(), environ=os.environ), build_broker_line(folder, database=url) as made:
        yield made


@pytest.mark.timeout(300)
def test_whatever_dies_every_effect_happens_once_and_in_order(
    line: Line, folder: Path, fork_server: ForkServer
) -> None:
    scenario = Scenario(kills=_KILLS, seed=1, seconds=_PATIENCE)
    result = run("short", line, scenario, fork_server=fork_server, folder=folder)
    print(result.log)  # noqa: T201 - shown when the test fails
    assert result.verdict.holds, result.verdict
    assert result.kills == sum(_KILLS.values())
    assert result.hit == result.points == 20
    assert result.verdict.duplicates > 0
