"""A standby of a private PostgreSQL server: follows it, answers reads, takes no writes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.private_postgres import PrivatePostgres
from tests.support.private_program import free_port

__all__ = ["standby_of"]


@contextmanager
def standby_of(primary: PrivatePostgres) -> Iterator[PrivatePostgres]:
    """Made of a copy, for which the primary is stopped and started again. Gone at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="pillarbox-standby-"))
    shutil.chown(folder, primary.data.owner(), primary.data.group())
    standby = PrivatePostgres(primary.programs, folder, free_port(), primary.account)
    primary.stop()
    subprocess.run(["cp", "-a", primary.data, standby.data], check=True)  # with the owner
    primary.start()
    (standby.data / "standby.signal").touch()
    with (standby.data / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres'\n")
    with closing(standby):
        standby.start()
        yield standby
