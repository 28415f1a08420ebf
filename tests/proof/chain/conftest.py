from __future__ import annotations

from collections.abc import Iterator

import pytest

from proof.chain.run import NURSERY
from proof.processes import ForkServer


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Where the programs come from."""
    with ForkServer(tmp_path_factory.mktemp("chain"), module=NURSERY) as fork_server:
        yield fork_server
