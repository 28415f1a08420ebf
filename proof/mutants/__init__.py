"""Mutants: small breaks of the code, one at a time, each with the tests that must notice it.

`areas` holds the breaks as data, a file per area; `breaks` reads and applies them. `runner` tries each in a copy of the
project, and `report` counts what was noticed. `results` keeps what is known, so that a long run can be resumed.
"""

from __future__ import annotations
