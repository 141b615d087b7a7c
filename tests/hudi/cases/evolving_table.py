"""A table of real Hudi whose columns evolve."""

from __future__ import annotations

import pyarrow as pa

from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import METADATA_TABLE
from tests.hudi.stock.cases import ON_READ


class EvolvingTable(SharedTable):
    """Hudi reads it by the history of its columns, and lists its files by the metadata table."""

    def hudi_reads(self, query: str = "snapshot") -> pa.Table:
        return self.judge.read(self.place, query=query, options={**ON_READ, **METADATA_TABLE})
