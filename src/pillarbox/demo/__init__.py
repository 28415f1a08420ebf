"""The demo: orders, relays that are killed, a consumer that goes down, and a verdict. Real processes all of them.

`director` runs the story that `story` and `script` decide, with the processes of `cast`;
`judge` reads the databases afterwards.
"""

from __future__ import annotations
