"""The store of runs whose cluster is the broker: a file that all processes of the machine share."""

from __future__ import annotations

from pathlib import Path

from proof.clusters.cluster import Target

__all__ = ["make_sqlite_store"]


def make_sqlite_store(folder: Path, *, to: str) -> Target:
    """Return a target with a store in this folder."""
    return Target(backend="sqlite", store=f"sqlite:///{folder / 'store.db'}", to=to)
