"""Where the demo takes place: a folder, a store with nothing else in it, a line. Set up before, struck afterwards."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from pillarbox.demo.books import Book, book_at
from pillarbox.demo.intakes import Intake, intake_of
from pillarbox.demo.ledger import Ledger
from pillarbox.demo.line import Line
from pillarbox.errors import ConfigError
from pillarbox.names import Names
from pillarbox.stores.schema import schema_at
from pillarbox.stores.url_secrets import expanded
from pillarbox.stores.urls import StoreUrl, store_url

__all__ = ["Place", "Stage", "place_for", "stage"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A store for the demo alone. `text` is its URL with all secrets filled in."""

    text: str
    url: StoreUrl
    names: Names

    @property
    def settings(self) -> dict[str, str]:
        """For the environment of a process that uses it."""
        schema = {} if self.names.schema is None else {"PILLARBOX_SCHEMA": self.names.schema}
        return {"PILLARBOX_STORE": self.text} | schema


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything is in place."""

    folder: Path
    place: Place
    book: Book
    ledger: Ledger
    ledger_file: Path
    line: Line
    intake: Intake


def place_for(store: str | None, *, folder: Path) -> Place:
    """A new file, or a new schema on a server; `ConfigError` for a file that is there already."""
    text = (
        f"sqlite:///{folder / 'shop.db'}?synchronous=normal" if store is None else expanded(store.strip(), os.environ)
    )
    url = store_url(text)
    if url.scheme != "sqlite":
        return Place(text=text, url=url, names=Names(f"pillarbox_demo_{secrets.token_hex(4)}"))
    path = Path(url.path).absolute()
    if not url.path or path.exists():
        raise ConfigError("The demo makes its own tables and removes them: give --store a file that is not there yet.")
    _, mark, options = text.partition("?")
    whole = f"sqlite:///{quote(str(path))}{mark}{options}"
    return Place(text=whole, url=store_url(whole), names=Names())


@asynccontextmanager
async def stage(store: str | None, *, line: Line, keep: bool) -> AsyncIterator[Stage]:
    """Set everything up, and remove it afterwards unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="pillarbox-demo-"))
    is_set_up = False
    try:
        place = place_for(store, folder=folder)
        book = book_at(place.url, names=place.names)
        ledger_file = folder / "consumer.db"
        intake = intake_of(line)
        async with _tables(place, book, keep=keep), _prepared(intake):
            ledger = await Ledger.created(ledger_file)
            is_set_up = True
            yield Stage(
                folder=folder, place=place, book=book, ledger=ledger, ledger_file=ledger_file, line=line, intake=intake
            )
            ledger.close()
    finally:
        if not (keep and is_set_up):
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _prepared(intake: Intake) -> AsyncIterator[None]:
    """At a broker nothing is kept: it is somebody's, and everything was read."""
    await intake.prepare()
    try:
        yield
    finally:
        await intake.remove()


@asynccontextmanager
async def _tables(place: Place, book: Book, *, keep: bool) -> AsyncIterator[None]:
    await schema_at(place.url, names=place.names).install()
    await book.open()
    try:
        await book.create()
        yield
    finally:
        if not keep:
            await book.remove()
        await book.close()
