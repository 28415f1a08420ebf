"""Runs a module as a program that ends with the demo: `python -m pillarbox.demo.leash MODULE ARGUMENT…`

The runner holds the other end of standard input. When it dies, however it dies, the pipe closes, and so nothing that
the demo started outlives it.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading

__all__: list[str] = []


def _watch() -> None:
    # Not through sys.stdin: a reader that waits there would hold a lock that the interpreter wants at its end.
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
