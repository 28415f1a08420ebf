"""`python -m pillarbox`: the program."""

from __future__ import annotations

from pillarbox.cli import main

if __name__ == "__main__":
    main()
