"""The rows of one read as a value that other libraries take, without copies where they can (Arrow C stream)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ..errors import MissingFileError, TableChangedError
from ..pins.pin import PinOptions
from ..table.table import Table, from_one_snapshot
from .changes import ChangeScan, plan
from .held_moment import pinned
from .table_read import ReadOptions, Scan

CLEANED_TODO = (
    "A cleaner was faster: read again. If that happens often, give the read a `pin` for cleaners of phantombase, and "
    "let Hudi's cleaner, which knows no pins, retain more commits."
)
_Found = TypeVar("_Found", pa.Table, Scan | ChangeScan)

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


@dataclass(frozen=True)
class Rows:
    """The rows of a table as `read` gives them. Nothing is held: each call reads the table as it is at that time.

    `schema` is fixed when the read is described; a call after the table's schema changed is a TableChangedError.
    """

    table: Table
    options: ReadOptions
    schema: pa.Schema
    pin: PinOptions | None = None

    @staticmethod
    def of(table: Table, options: ReadOptions, pin: PinOptions | None = None) -> Rows:
        """UsageError: unknown columns, a filter that does not fit the table. The end of a window is fixed here.

        `pin`: each call holds what it reads until it has read it.
        """
        scan = from_one_snapshot(lambda: plan(table.reload(), options))
        if scan.window is not None and scan.window.end:
            options = replace(options, end=scan.window.end, whole_window=True)
        return Rows(table, options, scan.schema, pin)

    @property
    def end(self) -> str | None:
        """Of an incremental read the end of its window, which is the begin of the next one."""
        return self.options.end

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, one file slice after the other; holds one batch and one slice's log entries.

        MissingFileError: a cleaner removed a file meanwhile; what came before is right, but the rest is missing.
        """
        try:
            with self._pinned():
                yield from self._plan().batches()
        except MissingFileError as error:
            raise MissingFileError(error.what, path=error.path, found=error.found, todo=CLEANED_TODO) from error

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        """A stream for DuckDB, Polars, pandas, pyarrow and others; each call reads anew."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        """The schema, without reading."""
        return self.schema.__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """All rows, file slices read in parallel; reads everything again if a file was removed meanwhile."""
        with self._pinned():
            return self._checked(read_any(self.table, self.options))

    def to_polars(self) -> polars.DataFrame:
        """All rows as a Polars data frame."""
        import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a pandas data frame."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation, which reads the table each time it is evaluated. DuckDB must be installed."""
        import duckdb

        return (connection or duckdb.default_connection()).from_arrow(self)

    def _pinned(self) -> AbstractContextManager[None]:
        return pinned(self.table.reload, self.options, self.pin)

    def _plan(self) -> Scan | ChangeScan:
        return self._checked(from_one_snapshot(lambda: plan(self.table.reload(), self.options)))

    def _checked(self, found: _Found) -> _Found:
        if found.schema != self.schema:
            raise TableChangedError(
                "the table's schema changed since this read was described",
                path=self.table.storage.base_path,
                expected=", ".join(self.schema.names),
                found=", ".join(found.schema.names),
                todo="Call `read` again.",
            )
        return found


def read_any(table: Table, options: ReadOptions) -> pa.Table:
    """All rows of a read of any query type; reads everything again if a file was removed meanwhile."""
    return from_one_snapshot(lambda: plan(table.reload(), options).to_table())
