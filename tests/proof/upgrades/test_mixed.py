"""Rolling upgrades: writers and relays of two releases share a store, whose schema goes up and down meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from proof.databases import BACKENDS, ServerMissing
from proof.upgrades.releases import Release, build_releases
from proof.upgrades.run import run_mixed

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("mixed-versions")]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Release]:
    return build_releases(tmp_path_factory.mktemp("releases"))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_nothing_is_lost_and_nobody_dies(backend: str, releases: Mapping[str, Release], tmp_path: Path) -> None:
    try:
        result = run_mixed(backend, releases, tmp_path, rounds=1, messages=20)
    except ServerMissing as error:
        pytest.skip(str(error))
    assert result.is_good, result
    assert min(result.by_release["old"], result.by_release["new"], result.filled) > 0
