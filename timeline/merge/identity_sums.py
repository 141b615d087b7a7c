"""The sums of row hashes of a compaction, and their equation (pure); `identity` makes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import LedgerError

MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Sums of row hashes, mod 2^64."""

    base: int
    removed: int
    added: int
    out: int

    def check(self, where: str) -> None:
        """LedgerError if the rows that came out are not the expected ones."""
        expected = (self.base - self.removed + self.added) & MASK
        if self.out != expected:
            raise LedgerError(
                "the ledger does not balance: hash of the rows out = base - removed + added",
                path=where,
                expected=f"{expected:016x}",
                found=f"{self.out:016x}",
                todo="Nothing was published. Keep the files and report this.",
            )

    def to_json(self) -> dict[str, str]:
        """Sixteen hex digits for each sum: many readers of JSON numbers lose bits beyond 2^53."""
        return {name: f"{value:016x}" for name, value in asdict(self).items()}

    @staticmethod
    def from_json(sums: Any) -> Identity:
        """Inverse of `to_json`; KeyError, TypeError or ValueError on other input."""
        return Identity(**{f.name: int(sums[f.name], 16) for f in fields(Identity)})

    @staticmethod
    def total(parts: Iterable[Identity]) -> Identity:
        """The sums of several file groups."""
        all_ = list(parts)
        return Identity(**{f.name: sum(getattr(i, f.name) for i in all_) & MASK for f in fields(Identity)})
