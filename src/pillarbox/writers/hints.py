"""Notes on the errors of a driver, which keep their class: an application may catch it."""

from __future__ import annotations

from pillarbox.database_errors import is_missing_table
from pillarbox.message import Names

__all__ = ["hint_at_tables"]


def hint_at_tables(error: Exception, names: Names) -> None:
    """Add a note that says what to do to an error which says that a table is missing."""
    if not is_missing_table(error):
        return
    where = f" in the schema {names.schema}" if names.schema else ""
    note = (
        f"This database has no Pillarbox tables whose names begin with {names.prefix!r}{where}: run `pillarbox schema "
        "install` with the URL of the database that the application writes to, or add them with Alembic or Django."
    )
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
