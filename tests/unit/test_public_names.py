"""What `import pillarbox` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pillarbox

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
