"""All settings that the merge of a slice depends on (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..arrow.conform import NO_DEFAULTS, Defaults
from ..arrow.stored_names import StoredNames
from ..format.record_key import KeySource
from ..log.visibility import Visibility
from .rule import Keyed, MergeRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRules:
    """All settings of the table and the reader that the merge of a slice depends on. Picklable.

    `schema`: the table's, meta columns included. `batch_rows`: rows of a base batch. `memory_bytes`: memory for merging
    one slice; None: everything stays in memory. `spill_folder`: where the rest is spilled; None: the system's folder
    for temporary files. `identity`: keep the identity sums too. `names`: of the columns in older files. `defaults`: of
    columns that files lack.
    """

    schema: pa.Schema
    keys: KeySource
    ordering_fields: tuple[str, ...]
    merge: MergeRule
    visibility: Visibility
    float_text_in_logs: bool
    batch_rows: int = 65_536
    memory_bytes: int | None = None
    spill_folder: str | None = None
    identity: bool = False
    names: StoredNames = StoredNames()
    defaults: Defaults = NO_DEFAULTS

    @property
    def fold_bytes(self) -> float:
        """Log entries held in memory: finding winners needs as much again, and the rows wait for the base file."""
        return math.inf if self.memory_bytes is None else self.memory_bytes / 4

    @property
    def part_bytes(self) -> int | None:
        """Encoded bytes of a log block to decode at a time."""
        return None if self.memory_bytes is None else max(1, self.memory_bytes // 16)

    def keyed(self, rows: pa.Table, names: Sequence[str], where: str) -> Keyed:
        """A batch of rows with the values that a merge needs; only the named columns are kept."""
        return Keyed.of(rows, self.keys.keys(rows, where), self.ordering_fields, names, self.merge)
