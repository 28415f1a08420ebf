"""Objects of the user's own code are imported by one function, from the current folder too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox.errors import ConfigError
from pillarbox.user_code import import_object

PROGRAM = """
from pillarbox.user_code import import_object
for name in ("own_module:thing", "own_package.inner:thing"):
    print(import_object(name, what="a thing", example="module:thing"))
"""


def test_modules_of_the_current_folder_are_found_by_any_program(tmp_path: Path) -> None:
    (tmp_path / "own_module.py").write_text("thing = 'first'")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package/inner.py").write_text("import own_module\nthing = own_module.thing + ' again'")
    # -I: the interpreter leaves the current folder out, as an installed program does.
    ran = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert ran.stdout.split("\n") == ["first", "first again", ""]


@pytest.mark.parametrize("name", ["shop", "shop:", ":handlers", "shop:handlers.all", "shop/x:handlers", ""])
def test_a_text_that_names_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"does not name handlers: write handlers:package\.module:attribute"):
        import_object(name, what="handlers", example="handlers:package.module:attribute")


def test_whatever_a_module_raises_is_one_sentence_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "raising_module.py").write_text("raise RuntimeError('cannot connect with password=hunter2')")
    with pytest.raises(ConfigError, match="consumer raising_module:it cannot be loaded: RuntimeError: ") as caught:
        import_object("raising_module:it", what="a consumer", example="module:consumer")
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_error_of_pillarbox_is_repeated_as_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "module_with_a_wrong_url.py").write_text(
        "from pillarbox import Consumer\nconsumer = Consumer('a', receiver='redis://h?group=g', database=print)\n"
    )
    with pytest.raises(ConfigError) as refused:
        import_object("module_with_a_wrong_url:consumer", what="a consumer", example="module:consumer")
    assert str(refused.value) == (
        "The consumer module_with_a_wrong_url:consumer cannot be loaded: The redis receiver needs a stream: add "
        "stream=NAME."
    )
