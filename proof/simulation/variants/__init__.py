"""The broken variants, each a small function that breaks one thing. The seeds must catch all of them."""

from __future__ import annotations

from typing import Final

from proof.simulation.variants.answers import ANSWERS
from proof.simulation.variants.leases import LEASES
from proof.simulation.variants.order import ORDER
from proof.simulation.variants.runs import RUNS
from proof.simulation.variants.stores import STORES
from proof.simulation.variants.variant import Variant

__all__ = ["VARIANTS", "Variant"]

VARIANTS: Final = {
    variant.name: variant
    for variant in (Variant(change, shows) for change, shows in (STORES | ORDER | RUNS | ANSWERS | LEASES).items())
}
