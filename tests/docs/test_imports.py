"""README, docs and examples import from `pillarbox` or from one obvious module, and only what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".md", ".py")),
]
PUBLIC = {
    "pillarbox",
    "pillarbox.brokers",
    "pillarbox.contracts",
    "pillarbox.dashboard",
    "pillarbox.operations",
    "pillarbox.testing",
    *(f"pillarbox.brokers.{name}" for name in ("aws", "http", "kafka", "mqtt", "nats", "rabbitmq", "redis")),
    *(f"pillarbox.brokers.{name}" for name in ("handlers", "memory")),
    *(f"pillarbox.integrations.{name}" for name in ("alembic", "asgi", "django", "faststream", "sqlalchemy")),
    *(f"pillarbox.stores.{name}" for name in ("mariadb", "memory", "postgres", "sqlite")),
}
"""The modules that people import from: a folder of the package, or the module of one technology."""


def read_code(document: Path) -> Iterator[str]:
    text = document.read_text("utf-8")
    if document.suffix == ".py":
        yield text
    else:
        yield from map(dedent, re.findall(r"^ *```python\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))


def read_imports(document: Path) -> list[tuple[str, list[str]]]:
    """The modules of Pillarbox that a document imports, with the names it takes from each."""
    found: list[tuple[str, list[str]]] = []
    for code in read_code(document):
        tree = compile(
            code, str(document), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.append((node.module, [alias.name for alias in node.names]))
            elif isinstance(node, ast.Import):
                found.extend((alias.name, []) for alias in node.names)
    return [(module, names) for module, names in found if module.partition(".")[0] == "pillarbox"]


def name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def test_documents_import_from_pillarbox() -> None:
    assert len([one for document in DOCUMENTS for one in read_imports(document)]) > 60


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_a_document_imports_from_one_obvious_module(document: Path) -> None:
    assert [module for module, _ in read_imports(document) if module not in PUBLIC] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_a_document_imports_what_exists(document: Path) -> None:
    for module, names in read_imports(document):
        if module == "pillarbox.integrations.django":
            continue  # needs Django's settings
        assert [name for name in names if not hasattr(import_module(module), name)] == []
