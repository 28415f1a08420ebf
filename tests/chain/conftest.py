from __future__ import annotations

from collections.abc import Iterator

import pytest

from chain.run import NURSERY
from crash.processes import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where the programs come from."""
    with Nursery(tmp_path_factory.mktemp("chain"), module=NURSERY) as nursery:
        yield nursery
