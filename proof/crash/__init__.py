"""The crash matrix: processes die by SIGKILL at named points, and afterwards every message is accounted for.

`points` names the kill points, `steps` says where in the work each of them is, `scenarios` what is written before and
expected afterwards. `matrix` executes the runs, each in an `environment` of its own; `judge` compares what is left.
"""

from __future__ import annotations
