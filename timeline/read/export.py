"""Reads of a table as an object for other libraries (`Rows`, Arrow C stream), as a file, or as a stream.

F.arrow, F.feather, F.ipc     Arrow IPC file
F.csv                         CSV with a head; null is an empty field, a text is in quotes
F.json, F.jsonl, F.ndjson     a JSON object a line; a float without a number is null
F.parquet, F                  Parquet; other endings are refused
a stream                      Arrow IPC stream

A file appears complete or not at all; an interrupted stream is recognizable."""

from __future__ import annotations

import html
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ..codec.columns import as_json, has_no_text, time_text
from ..codec.parquet_write import statistics_columns
from ..errors import (
    MissingFileError,
    PhantombaseError,
    StorageError,
    TableChangedError,
    UnsupportedError,
    UsageError,
    reason_of,
)
from ..option import spelled_class
from ..shown import as_html
from ..storage.local import sync
from ..table.table import Table, from_one_snapshot
from .changes import ChangeScan, plan
from .pins import PinOptions, pinned
from .table_read import Query, ReadOptions, Scan, limited
from .windows import Window

CLEANED_TODO = (
    "A cleaner was faster: read again. If that happens often, give the read a `pin` for cleaners of phantombase, and "
    "let Hudi's cleaner, which knows no pins, retain more commits."
)
_Found = TypeVar("_Found", pa.Table, Scan | ChangeScan)

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars


@contextmanager
def _installed(package: str) -> Iterator[None]:
    """UsageError: an import fails since the package is not installed."""
    try:
        yield
    except ModuleNotFoundError:
        raise UsageError(f"{package} is not installed", todo=f"Install it: pip install {package}.") from None


@spelled_class
@dataclass(frozen=True, repr=False)
class Rows:
    """The rows of a table as `read` gives them. Each call reads the table again, in its state at that time.
    `schema` is fixed at creation; a call after the table's schema changed raises TableChangedError."""

    table: Table
    options: ReadOptions
    schema: pa.Schema
    pin: PinOptions | None = None

    @staticmethod
    def of(table: Table, options: ReadOptions, pin: PinOptions | None = None) -> Rows:
        """UsageError: unknown columns, a filter that does not fit the table. The end of a window is fixed here.
        `pin`: each call pins the files that it reads until it ends."""
        scan = from_one_snapshot(lambda: plan(table.snapshot(cached=False), options))
        if scan.window is not None and scan.window.end:
            options = replace(options, end=scan.window.end, whole_window=True)
        return Rows(table, options, scan.schema, pin)

    def __repr__(self) -> str:
        columns = ", ".join(f"{one.name}: {one.type}" for one in self.schema)
        return f"<Rows of {self.table.storage.base_path}: {columns}>"

    def _repr_html_(self) -> str:
        """The columns, without reading."""
        path = html.escape(self.table.storage.base_path)
        return f"<b>Rows</b> of {path}{as_html(('column', 'type'), [(one.name, one.type) for one in self.schema])}"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict, for small results: one batch is held at a time."""
        for batch in self.batches():
            with self._python():
                rows = batch.to_pylist()
            yield from rows

    def count(self) -> int:
        """The number of rows; the table is read for it, with one column."""
        rows = self
        if self.options.query in (Query.SNAPSHOT, Query.READ_OPTIMIZED):
            first = pa.schema([self.schema.field(0)])
            rows = replace(self, options=replace(self.options, columns=first.names), schema=first)
        return sum(batch.num_rows for batch in rows.batches())

    __len__ = count

    @property
    def end(self) -> str | None:
        """The end of an incremental read's window, which is the begin of the next window."""
        return self.options.end

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, one file slice after the other; holds one batch and one slice's log entries.
        MissingFileError: a cleaner removed a file during the read; the rows so far are correct but incomplete."""
        try:
            with self._pinned():
                yield from self._plan().batches()
        except MissingFileError as error:
            raise MissingFileError(error.what, path=error.path, found=error.found, todo=CLEANED_TODO) from error

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        """A stream for DuckDB, Polars, pandas, pyarrow and others; each call reads again."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        """The schema, without reading."""
        return self.schema.__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """All rows, file slices read in parallel; reads everything again if a file was removed during the read."""
        with self._pinned():
            return self._checked(read_any(self.table, self.options))

    def to_polars(self) -> polars.DataFrame:
        with _installed("polars"):
            import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_pandas(self) -> pandas.DataFrame:
        rows = self.to_arrow()
        with _installed("pandas"), self._python():
            frame: pandas.DataFrame = rows.to_pandas()
        return frame

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation, which reads the table each time it is evaluated. DuckDB must be installed."""
        with _installed("duckdb"):
            import duckdb
        if connection is not None and not hasattr(connection, "from_arrow"):
            raise UsageError("not a connection of DuckDB", expected="that of duckdb.connect()", found=repr(connection))
        return (connection or duckdb.default_connection()).from_arrow(self)

    @contextmanager
    def _python(self) -> Iterator[None]:
        """UnsupportedError: values that Python has no objects for, such as times after the year 9999."""
        try:
            yield
        except (ValueError, OverflowError) as error:
            what, path = "Python has no object for a value of the table", self.table.storage.base_path
            todo = "Take the rows with to_arrow() or to_polars(), or leave the column out."
            raise UnsupportedError(what, path=path, found=reason_of(error), todo=todo) from error

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """During a read, whose errors name the table."""
        try:
            with pinned(lambda: self.table.snapshot(cached=False), self.options, self.pin):
                yield
        except PhantombaseError as error:
            error.place(self.table.storage.base_path)
            raise

    def _plan(self) -> Scan | ChangeScan:
        return self._checked(from_one_snapshot(lambda: plan(self.table.snapshot(cached=False), self.options)))

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
    """All rows of a read of any query type; reads everything again if a file was removed during the read."""
    return from_one_snapshot(lambda: plan(table.snapshot(cached=False), options).to_table())


ReadProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (slices read, all slices, rows so far) during a read."""

_ARROW_SUFFIXES = frozenset({".arrow", ".feather", ".ipc"})
_JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
_SUFFIXES = frozenset({"", ".parquet", ".csv", *_ARROW_SUFFIXES, *_JSON_SUFFIXES})
_ROW_GROUP_ROWS = 262_144
_ROW_GROUP_BYTES = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result: rows, number of slices, size of the file in bytes, its columns, the window of the read, if any."""

    rows: int
    slices: int
    bytes: int
    columns: tuple[str, ...]
    as_of: str | None = None
    window: Window | None = None


def check_output(table: Table | None, output: Path, overwrite: bool) -> None:
    """UsageError if the file cannot or must not be written at this path. `table`: None: of no table."""
    if output.suffix not in _SUFFIXES:
        raise UsageError(
            "no output of this kind",
            path=str(output),
            expected=".parquet, .arrow, .feather, .ipc, .csv, .json, .jsonl or .ndjson",
            found=output.suffix,
            todo="Give one of these endings; every tool reads Parquet.",
        )
    with _written(output):  # its name may be too long
        place = output.resolve()
        place.exists()
    if table is not None and place.is_relative_to(table.storage.location):
        raise UsageError("the output is inside the table", path=str(output), todo="Write it to another folder.")
    if not place.parent.is_dir():
        raise UsageError(
            "no such folder for the output", path=str(place.parent), todo="Make it first, or write elsewhere."
        )
    if place.exists() and not place.is_file():
        raise UsageError("the output exists and is not a plain file", path=str(output), todo="Give another name.")
    if place.exists() and not overwrite:
        raise UsageError("the output exists already", path=str(output), todo="--overwrite replaces it.")


def export_file(table: Table, options: ReadOptions, output: Path, progress: ReadProgress = lambda *_: None) -> Exported:
    """One attempt: writes all rows to a file next to `output`, then renames it to `output`. UsageError: its kind of
    file cannot hold a column.
    MissingFileError: a file was cleaned during the read; no output is left, try again (`from_one_snapshot`)."""
    scan = plan(table, options)
    rows, size = write_file(_row_groups(_batches(scan, progress)), scan.schema, output)
    return Exported(
        rows=rows,
        slices=len(scan.slices),
        bytes=size,
        columns=tuple(scan.schema.names),
        as_of=scan.options.as_of,
        window=scan.window,
    )


def write_file(parts: Iterable[pa.Table], schema: pa.Schema, output: Path) -> tuple[int, int]:
    """The number of rows and of bytes of a file that appears complete or not at all. UsageError: its kind of file
    cannot hold a column. StorageError: it cannot be written."""
    _check_writable(schema, output)
    temporary = output.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        rows = _write(parts, schema, temporary, output)
        with _written(output):
            size = temporary.stat().st_size
            os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return rows, size


def export_stream(scan: Scan | ChangeScan, out: BinaryIO) -> int:
    """Writes an Arrow IPC stream and returns the number of rows.
    If the read fails, the stream ends inside a message, so that its reader fails too: a stream that ends after a
    message would look complete. StorageError: the other end was closed."""
    rows = 0
    output = Path("-")
    with _written(output):
        writer = pa.ipc.new_stream(out, scan.schema)
    try:
        for group in _row_groups(scan.batches()):
            rows += group.num_rows
            with _written(output):
                writer.write_table(group)
    except BaseException:
        with suppress(OSError):
            out.write(_BROKEN_MESSAGE)
            out.flush()
        raise
    with _written(output):
        writer.close()
        out.flush()
    return rows


_BROKEN_MESSAGE = b"\xff\xff\xff\xff\x00\x01\x00\x00"
"""The head of a message of 256 bytes, which is written without them."""


def _write(parts: Iterable[pa.Table], schema: pa.Schema, temporary: Path, output: Path) -> int:
    rows = 0
    with _written(output):
        sink = pa.OSFile(str(temporary), "wb")
        writer = _writer(sink, output.suffix, schema)
    try:
        for part in parts:
            rows += part.num_rows
            with _written(output):
                writer.write_table(part, part.num_rows)
        with _written(output):
            writer.close()
            sink.close()
            sync(str(temporary))
    finally:
        if isinstance(writer, pq.ParquetWriter):
            writer.is_open = False  # after a failure: prevents a second one from writing the footer of a discarded file
        with suppress(OSError):
            sink.close()
    return rows


def _writer(sink: pa.NativeFile, suffix: str, schema: pa.Schema) -> Any:
    if suffix in _ARROW_SUFFIXES:
        return pa.ipc.new_file(sink, schema)
    if suffix == ".csv":
        from pyarrow.csv import CSVWriter  # only here: a read that is not written loads less

        return _Csv(sink, CSVWriter(sink, schema))
    if suffix in _JSON_SUFFIXES:
        return _JsonLines(sink)
    return pq.ParquetWriter(sink, schema, write_statistics=statistics_columns(schema))


@dataclass(frozen=True)
class _Csv:
    """CSV as Arrow writes it, but for times that it has no text for, see `time_text`."""

    sink: pa.NativeFile
    usual: Any

    def write_table(self, rows: pa.Table, most: int) -> None:
        from pyarrow import csv  # as in `_writer`

        columns = [time_text(one) if has_no_text(one) else one for one in rows.columns]
        if [one.type for one in columns] == rows.schema.types:
            self.usual.write_table(rows, most)
        else:
            shown = pa.table(columns, names=rows.schema.names)
            csv.write_csv(shown, self.sink, csv.WriteOptions(include_header=False))

    def close(self) -> None:
        self.usual.close()


@dataclass(frozen=True)
class _JsonLines:
    """Writes tables as lines of JSON, as the writers of pyarrow write theirs."""

    sink: pa.NativeFile

    def write_table(self, rows: pa.Table, _: int) -> None:
        import orjson  # few reads write JSON

        columns = [as_json(column) for column in rows.columns]
        for part in pa.table(columns, names=rows.schema.names).to_batches(max_chunksize=_JSON_ROWS):
            lines = part.to_pylist(maps_as_pydicts="lossy")
            self.sink.write(b"".join(orjson.dumps(one, str, orjson.OPT_APPEND_NEWLINE) for one in lines))

    def close(self) -> None:
        """Nothing: each line is complete."""


_JSON_ROWS = 1 << 14


def _check_writable(schema: pa.Schema, output: Path) -> None:
    if output.suffix != ".csv" and output.suffix not in _JSON_SUFFIXES:
        return

    def fits(kind: pa.DataType) -> bool:
        if pa.types.is_nested(kind) and output.suffix != ".csv":
            return all(fits(kind.field(number).type) for number in range(kind.num_fields))
        return not (pa.types.is_nested(kind) or "binary" in str(kind))

    if left := [field.name for field in schema if not fits(field.type)]:
        raise UsageError(
            f"columns that a {output.suffix} file cannot hold",
            path=str(output),
            expected="no lists, structs, maps or bytes" if output.suffix == ".csv" else "no bytes",
            found=", ".join(left),
            todo="Leave them out with --columns, or write .parquet or .arrow.",
        )


def _batches(scan: Scan | ChangeScan, progress: ReadProgress) -> Iterator[pa.RecordBatch]:
    """`Scan.batches()`, with calls of `progress`."""
    slices = len(scan.slices)

    def all_batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        for number, part in enumerate(scan.parts()):
            for batch in part:
                rows += batch.num_rows
                progress(number, slices, rows)
                yield batch
            progress(number + 1, slices, rows)

    return limited(all_batches(), scan.options.limit)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches joined to row groups of useful size: many small slices would give many tiny row groups."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        enough_rows = sum(b.num_rows for b in held) >= _ROW_GROUP_ROWS
        if enough_rows or sum(b.nbytes for b in held) >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


@contextmanager
def _written(output: Path) -> Iterator[None]:
    """Separates errors of writing from errors of reading. BrokenPipeError: who reads the output has enough."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        found = os.strerror(error.errno) if error.errno else reason_of(error)
        todo = "Make room, or write where this user may: no part of the file is left."
        raise StorageError("cannot write the output", path=str(output.absolute()), found=found, todo=todo) from error
