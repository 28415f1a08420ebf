"""Every broken variant, each a small function that says what it breaks. All of them must be caught."""

from __future__ import annotations

from typing import Final

from simulation.variants.answers import ANSWERS
from simulation.variants.leases import LEASES
from simulation.variants.order import ORDER
from simulation.variants.stores import STORES
from simulation.variants.variant import Variant

__all__ = ["VARIANTS", "Variant"]

VARIANTS: Final = {variant.name: variant for variant in map(Variant, (*STORES, *ORDER, *ANSWERS, *LEASES))}
