"""The demo: orders, relays that are killed, a consumer that goes down, and a result. All of them are real processes.

`scenario` decides what happens, `runner` makes it happen, `result` compares what was committed with what took effect.
"""

from __future__ import annotations
