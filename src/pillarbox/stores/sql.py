"""SQL lives in files, one statement each, written with the default names and valid as it stands."""

from __future__ import annotations

from importlib.resources import files

from pillarbox.names import Names

__all__ = ["Statements"]


class Statements:
    """The statements of one store, with the configured names in them. Each is read once."""

    def __init__(self, package: str, names: Names, *, quote: str = '"') -> None:
        self._quote = quote
        self._folder = files(package) / "sql"
        self._names = names
        self._texts: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = self._names.applied(
                (self._folder / f"{name}.sql").read_text("utf-8"), quote=self._quote
            )
        return self._texts[name]

    def filled(self, name: str, where: str) -> str:
        """A statement whose `/* where */` mark is replaced by the conditions of a selection."""
        return self[name].replace("/* where */", f"and {where}" if where else "")
