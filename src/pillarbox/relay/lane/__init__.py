"""The pure ordering core of the relay."""

from __future__ import annotations

from pillarbox.relay.lane.core import LaneCore
from pillarbox.relay.lane.crowds import Left
from pillarbox.relay.lane.rows import Offer, Wanted
from pillarbox.relay.lane.sending import LONE_STRIKES

__all__ = ["LONE_STRIKES", "LaneCore", "Left", "Offer", "Wanted"]
