"""The crash matrix: processes that die by SIGKILL at named points, and what became of the messages.

`points` names the points, `steps` says where in the work each of them is, `stories` what is written before and must be
true afterwards. `plays` runs one story on one store; `judge` weighs what is left; `report` tells it.
"""

from __future__ import annotations
