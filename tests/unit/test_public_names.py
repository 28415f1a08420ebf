"""What `import pillarbox` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import pillarbox

PACKAGES = ["pillarbox", "pillarbox.brokers", "pillarbox.contracts", "pillarbox.operations", "pillarbox.brokers.http"]

OPTIONAL = {
    "aiohttp", "aiosqlite", "asyncpg", "attr", "click", "cloudevents", "opentelemetry", "psycopg", "pydantic", "rich",
    "sqlalchemy", "uvloop",
}  # fmt: skip


def test_the_public_names_are_sorted_and_there() -> None:
    assert pillarbox.__all__ == sorted(pillarbox.__all__)
    assert all(hasattr(pillarbox, name) for name in pillarbox.__all__)


def test_importing_it_loads_no_optional_package() -> None:
    program = "import sys, pillarbox; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "msgspec" in loaded
    assert loaded & OPTIONAL == set()


def test_importing_it_loads_neither_relay_nor_consumer_nor_store() -> None:
    program = "import sys, pillarbox; print(*{'.'.join(name.split('.')[:2]) for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pillarbox.outbox" in loaded
    assert loaded & {f"pillarbox.{name}" for name in ("relay", "consumer", "stores", "brokers", "operations")} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_and_has_the_names_it_imports_late(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_does_not_exist_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Rellay'"):
        import_module(package).Rellay  # noqa: B018
