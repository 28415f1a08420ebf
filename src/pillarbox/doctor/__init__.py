"""The doctor: looks at the store and at every destination, and says what would lose or delay messages.

`examination` runs all checks at once, `store` and `destinations` do the looking, `store_findings` and
`destination_findings` decide what it means, `report` and `telling` sum it up.
"""

from __future__ import annotations
