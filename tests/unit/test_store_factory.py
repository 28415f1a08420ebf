"""From a URL to the store it names, our own or another package's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pillarbox.errors import ConfigError
from pillarbox.message import Names
from pillarbox.stores.factory import open_store
from pillarbox.stores.urls import list_schemes

FOREIGN = """
from pillarbox.stores.memory import MemoryStore

class ForeignStore(MemoryStore):
    def __init__(self, url, *, names):
        super().__init__()
        self.url = url
        self.names = names
"""


@pytest.fixture
def foreign_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that brings a store, and one that cannot be imported."""
    (tmp_path / "foreign_store.py").write_text(FOREIGN)
    records = tmp_path / "foreign_store-1.0.dist-info"
    records.mkdir()
    (records / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-store\nVersion: 1.0\n")
    (records / "entry_points.txt").write_text(
        "[pillarbox.stores]\nforeign = foreign_store:ForeignStore\nbroken = no_such_module:Store\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("memory://?keep=off", "memory"),
        ("sqlite:///shop.db?synchronous=normal", "sqlite"),
        ("postgresql://h/db?pooler=transaction&keep=no-payload", "postgresql"),
    ],
)
def test_our_own_stores_are_made_without_connecting(url: str, name: str) -> None:
    assert open_store(url).features.name == name


def test_what_sqlite_cannot_do_is_refused_before_connecting() -> None:
    with pytest.raises(ConfigError, match="SQLite has no schemas"):
        open_store("sqlite:///shop.db", names=Names("mail"))
    with pytest.raises(ConfigError, match="names no file"):
        open_store("sqlite://")


@pytest.mark.usefixtures("foreign_package")
def test_another_package_brings_a_store_by_its_scheme() -> None:
    store = open_store("foreign://user:pw@there/shelf?colour=red", names=Names("mail"))

    assert "foreign" in list_schemes()
    assert type(store).__name__ == "ForeignStore"
    assert vars(store)["names"] == Names("mail")
    assert vars(store)["url"].options == {"colour": "red"}
    assert vars(store)["url"].redacted == "foreign://user:***@there/shelf?colour=***"


@pytest.mark.usefixtures("foreign_package")
def test_a_package_that_cannot_be_loaded_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"broken:// cannot be loaded .*no_such_module"):
        open_store("broken://there")


def test_without_such_a_package_the_scheme_is_unknown() -> None:
    with pytest.raises(ConfigError, match="No installed store is called 'foreign'"):
        open_store("foreign://there")


@pytest.mark.parametrize(("scheme", "near"), [("postgrsql", "postgresql"), ("mariabd", "mariadb"), ("sqlit", "sqlite")])
def test_a_misspelt_scheme_has_its_nearest_named(scheme: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"mariadb://, .*; the nearest is {near}://"):
        open_store(f"{scheme}://there/shop")
