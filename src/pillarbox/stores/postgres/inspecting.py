"""Looking at the server: the settings that lose commits, the rights of this login, who holds things up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pillarbox.protocols import Finding
from pillarbox.stores.postgres.facts import PostgresFacts, findings_of
from pillarbox.stores.postgres.grants import Right, rights
from pillarbox.stores.postgres.parts import Parts

__all__ = ["Inspecting"]

_SETTINGS: Final = (
    "in_recovery", "read_only", "fsync", "full_page_writes", "synchronous_commit", "synchronous_standbys", "standbys",
    "login",
)  # fmt: skip
"""In the order in which they are told."""


class Inspecting(Parts):
    """The inspecting part of the store."""

    async def inspect(self) -> Sequence[Finding]:
        """What is set on the server, or missing there, that could lose or delay messages. Changes nothing."""
        return findings_of(await self.facts())

    async def facts(self) -> PostgresFacts:
        """What the findings are drawn from."""
        async with self._database.asking() as connection:
            settings = await connection.fetchrow(self._sql["inspect_settings"])
            return PostgresFacts(
                **dict(zip(_SETTINGS, settings, strict=True)),
                role_commits=dict(await connection.fetch(self._sql["inspect_roles"])),
                pins=dict(await connection.fetch(self._sql["inspect_pins"])),
                hidden_sessions=await connection.fetchval(self._sql["inspect_hidden"]),
                missing_rights=await self._missing_rights(connection),
            )

    async def _missing_rights(self, connection: Any) -> Sequence[str]:
        needed = list(rights("relay", names=self._names))
        asked = ([one.table for one in needed], [one.privilege for one in needed], [one.column for one in needed])
        return [str(Right(*row)) for row in await connection.fetch(self._sql["inspect_rights"], *asked)]
