"""The rows of one read as a value that other libraries take, without copies where they can (Arrow C stream)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ..errors import MissingFileError, TableChangedError
from ..format.instant import parse_as_of
from ..pins.pin import FIRST, PIN_SECONDS
from ..pins.pins import HeldPin, check_free
from ..table.table import Table, consistent
from .changes import ChangeScan, plan
from .table_read import ReadOptions, Scan

_Found = TypeVar("_Found", pa.Table, Scan | ChangeScan)

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


@dataclass(frozen=True)
class Rows:
    """The rows of a table as `read` gives them. No rows are held: each call reads the table as it is at that time.

    `schema` is fixed when the read is described; a call after the table's schema changed is a TableChangedError.
    """

    table: Table
    options: ReadOptions
    schema: pa.Schema
    pin: HeldPin | None = field(default=None, compare=False)

    @staticmethod
    def of(table: Table, options: ReadOptions, pin: str | None = None, pin_seconds: int = PIN_SECONDS) -> Rows:
        """UsageError: unknown columns, a filter that does not fit the table. The end of a window is fixed here.

        `pin`: a name under which the table keeps what these rows need, see `timeline.pins`, for `pin_seconds` after the
        last batch of rows. UsageError: another reader holds a pin of that name.
        """
        scan = consistent(lambda: plan(table.reload(), options))
        if scan.window is not None and scan.window.end:
            options = replace(options, end=scan.window.end, whole_window=True)
        rows = Rows(table, options, scan.schema)
        return rows if pin is None else rows._pinned(HeldPin(table, pin, pin_seconds), pin)

    def _pinned(self, pin: HeldPin, name: str) -> Rows:
        check_free(self.table.storage, name)
        pin.put(held_from(self.table, self.options))
        try:
            self._plan()  # a clean that did not see the pin is seen here
        except BaseException:
            pin.release()
            raise
        return replace(self, pin=pin)

    def release(self) -> None:
        """Removes the pin, if there is one; also done at the end of a `with` block."""
        if self.pin is not None:
            self.pin.release()

    def __enter__(self) -> Rows:
        """These rows; the end of the block releases their pin."""
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def end(self) -> str | None:
        """Of an incremental read the end of its window, which is the begin of the next one."""
        return self.options.end

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, one file slice after the other; holds one batch and one slice's log entries.

        MissingFileError: a cleaner removed a file meanwhile; what came before is right, but the rest is missing.
        """
        try:
            for batch in self._plan().batches():
                if self.pin is not None:
                    self.pin.keep()
                yield batch
        except MissingFileError as error:
            raise MissingFileError(
                error.what, path=error.path, found=error.found, todo="A cleaner was faster: read again."
            ) from error

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        """A stream for DuckDB, Polars, pandas, pyarrow and others; each call reads anew."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        """The schema, without reading."""
        return self.schema.__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """All rows, file slices read in parallel; reads everything again if a file was removed meanwhile."""
        if self.pin is not None:
            self.pin.keep()
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

    def _plan(self) -> Scan | ChangeScan:
        return self._checked(consistent(lambda: plan(self.table.reload(), self.options)))

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


def held_from(table: Table, options: ReadOptions) -> str:
    """From which moment on a read needs the states of the table whole, as a pin says it."""
    if options.begin is not None:
        return options.begin if options.begin.isdecimal() else FIRST
    if options.as_of is not None:
        return parse_as_of(options.as_of, table.times.moment)
    timeline = table.reload().load_timeline()
    return max((timeline.moment_of(write) for write in timeline.completed_writes.values()), default=FIRST)


def read_any(table: Table, options: ReadOptions) -> pa.Table:
    """All rows of a read of any query type; reads everything again if a file was removed meanwhile."""
    return consistent(lambda: plan(table.reload(), options).to_table())
