from __future__ import annotations

from collections.abc import Iterator

import pytest

from proof.chain.programs import MODULE
from proof.processes import ForkServer


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The fork server that starts the programs."""
    with ForkServer(tmp_path_factory.mktemp("chain"), module=MODULE) as fork_server:
        yield fork_server
