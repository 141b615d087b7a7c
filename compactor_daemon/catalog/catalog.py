"""The tables of a catalog.

Which daemons of a fleet serve a table: rendezvous hashing (pure).

Every daemon computes the same answer from the members alone. When one comes or goes, only its tables move.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import xxhash

from .listing import TableListing
from .pools import Pools


def serves(member: str, members: Collection[str], name: str, daemons: int) -> bool:
    """Whether a member is among the `daemons` that serve a table of this name; all are where there are no more."""
    if member not in members:
        return False
    own = _draw(member, name)
    return sum(_draw(one, name) > own for one in members) < daemons


def _draw(member: str, name: str) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(f"{member}\0{name}".encode()), member


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Tables that are found: the listing, and the pools."""

    listing: TableListing
    pools: Pools
