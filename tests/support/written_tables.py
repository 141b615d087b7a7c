"""Tables that tests write through `writer_hooks`, and the check that nothing of a dead write is left in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from phantombase.timeline.format.file_name import parse_data_file
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import open_table

Rows: TypeAlias = dict[str, tuple[int, float]]
"""Key to (ts, fare)."""


def written_table(
    path: Path, version: int, batch: pa.Table, options: WriteOptions, mode: MergeMode = MergeMode.EVENT_TIME
) -> None:
    """A new table of trips and a first batch."""
    path.mkdir(parents=True)
    spec = NewTable(
        name="trips",
        version=version,
        key_fields=("id",),
        partition_fields=("day",),
        ordering_fields=("ts",) if mode is MergeMode.EVENT_TIME else (),
        merge_mode=mode,
    )
    table = create_table(LocalStorage(str(path)), spec)
    write(table, LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=options))


def read_rows(path: Path) -> Rows:
    """The snapshot; a key twice is an error."""
    return as_rows(read_table(open_table(path)))


def as_rows(table: pa.Table) -> Rows:
    """Rows of trips by key; a key twice is an error."""
    keys = table.column("id").to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    assert table.column("_hoodie_record_key").to_pylist() == keys
    return dict(
        zip(keys, zip(table.column("ts").to_pylist(), table.column("fare").to_pylist(), strict=True), strict=True)
    )


def check_nothing_left(path: Path, *, served: bool = False) -> None:
    """Nothing pends; of writes nothing is staged, marked, beating or stray. `served`: files of completed writes may be
    cleaned, and the writes of others archived."""
    table = open_table(path)
    timeline = table.load_timeline()
    assert not [i for i in timeline.instants if not i.completed]
    committed = {
        s.path
        for i in timeline.completed_writes.values()
        for stats in table.commit_metadata(i).partition_to_write_stats.values()
        for s in stats
    }
    names = [p.relative_to(path) for p in path.glob("*/*") if parse_data_file(p.name) is not None]
    archived = {i.requested_time for i in table.with_archive(timeline).archived} if served else set()
    names = [n for n in names if (name := parse_data_file(n.name)) is None or name.instant not in archived]
    if table.layout.has_completion_times:
        assert {str(n) for n in names} <= committed
    assert {str(n) for n in names if n.suffix == ".parquet"} <= committed
    assert served or committed <= {str(n) for n in names}
    hoodie = path / ".hoodie"
    assert not list((hoodie / ".temp").glob("*"))
    assert not list((hoodie / ".heartbeat").glob("*"))
    assert not list((path / RECORDS / "writes").glob("*"))
    assert not list((path / RECORDS / "clusterings").glob("*"))
    assert not list(hoodie.rglob("*.tmp"))


@contextmanager
def seed_note(seed: int, *case: object) -> Iterator[None]:
    """An error says how to run the case again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"PHANTOMBASE_SEED={seed}, case {case}")
        raise


def impatient(options: WriteOptions) -> WriteOptions:
    """The same options for a writer to whom every other write is dead at once; users cannot ask for that."""
    changed = copy(options)
    object.__setattr__(changed, "heartbeat_expiry_s", -1.0)
    return changed
