"""A part of a base file that several readers share: some of its row groups (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """Share number `part`, from 0 on, of `of` shares. Together they have each row group once, whatever their number."""

    part: int
    of: int

    def of_groups(self, count: int, chosen: Sequence[int] | None = None) -> list[int]:
        """The row groups of this share: of a file with so many, and of those only the `chosen` ones."""
        own = range(count * self.part // self.of, count * (self.part + 1) // self.of)
        return list(own) if chosen is None else [group for group in chosen if group in own]
