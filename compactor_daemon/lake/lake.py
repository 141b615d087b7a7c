"""The tables of a lake."""

from __future__ import annotations

from dataclasses import dataclass

from .lanes import Lanes
from .listing import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Tables that are found: the listing, and the lanes."""

    listing: Listing
    lanes: Lanes
