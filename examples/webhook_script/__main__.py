"""Makes the file, starts the partner and a relay, and places an order: `make example NAME=webhook_script`."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from typing import Final

from examples.launching import Program, run_together
from examples.webhook_script.place import FILE, place

PORT: Final = os.environ.setdefault("PARTNER_PORT", "8003")
STORE: Final = f"sqlite:///{FILE}"
PARTNER: Final = f"http://127.0.0.1:{PORT}/hooks?secret=env:PARTNER_SECRET&allow_private=true"
"""A real partner has https:// and a public address, and needs no `allow_private`."""


def main() -> None:
    os.environ.setdefault("PARTNER_SECRET", secrets.token_urlsafe(32))
    subprocess.run([sys.executable, "-m", "pillarbox", "schema", "upgrade", "--store", STORE], check=True)
    run_together(
        Program("partner", "-m", "examples.webhook_script.partner"),
        Program("relay", "-m", "pillarbox", "relay", "--store", STORE, "--to", f"partner={PARTNER}"),
        first=lambda: place("teapot"),
    )


if __name__ == "__main__":
    main()
