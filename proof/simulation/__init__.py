"""The simulation: several real relays on virtual time, with injected faults, watched by checkers."""

from __future__ import annotations
