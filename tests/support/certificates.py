"""Certificates for tests, made by the `openssl` program: a private authority and what it signed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Authority"]


class Authority:
    """Signs certificates. Each file it returns holds a certificate and its key."""

    def __init__(self, folder: Path, *, name: str = "test authority", alternative: str | None = None) -> None:
        if shutil.which("openssl") is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)("There is no openssl program; install it.")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.file = folder / "authority.pem"
        self._key = folder / "authority.key"
        more = [] if alternative is None else ["-addext", f"subjectAltName={alternative}"]
        _openssl("req", "-x509", *_new(self._key), "-subj", f"/CN={name}", "-days", "2", *more, "-out", self.file)

    @property
    def own(self) -> Path:
        """Its own certificate, which it signed itself, with the key."""
        file = self._folder / "own.pem"
        file.write_text(self.file.read_text() + self._key.read_text())
        return file

    def signed(self, name: str, *, alternative: str, days: int = 2) -> Path:
        """A certificate for this alternative name, such as `DNS:shop.test` or `IP:127.0.0.1`; below 0 days, expired."""
        key, request, file = (self._folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n")
        _openssl("req", *_new(key), "-subj", f"/CN={name}", "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial",
            "-days", str(days), "-extfile", extensions, "-out", file,
        )  # fmt: skip
        file.write_text(file.read_text() + key.read_text())
        return file


def _new(key: Path) -> tuple[str | Path, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
