"""What is refused is refused by name, in one line with what to do, and nothing in the table is touched."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import read
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.slice_record import completed_compaction
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.errors import (
    MissingFileError,
    NotATableError,
    PhantombaseError,
    UnknownStateError,
    UnsupportedError,
    UsageError,
)
from phantombase.timeline.format.compaction_plan import decode_plan
from phantombase.timeline.instants.reserved_times import instant_folder
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.table.table import Table
from tests.support.builders import block, delete_block
from tests.support.compaction_steps import open_table
from tests.support.compare_rows import assert_same_rows
from tests.support.evolved_tables import (
    NO_COLUMNS,
    UNKNOWN_INDEX,
    digest,
    evolves_on_read,
    lose_planned_log,
    set_property,
    written_instant,
)
from tests.support.golden_tables import one_of, unzip_golden


def call(*args: str) -> None:
    """Runs `compactor-daemon ARGS` in-process; errors of the tree come through."""
    app(args=[*args, "--executor", "local"] if args[0] == "compact" else list(args), standalone_mode=False)


def no_table(path: Path) -> None:
    """A folder that is no table."""
    shutil.rmtree(path / HOODIE)


def lose_planned_base(path: Path) -> None:
    """Removes the base file that the first pending plan names."""
    requested = sorted((path / HOODIE).rglob("*.compaction.requested"))[0]
    operation = decode_plan(requested.read_bytes(), str(requested)).operations[0]
    (path / operation.partition_path / str(operation.data_file_path)).unlink()


def planned_log(path: Path) -> Path:
    """The last log file of the first operation of the first pending plan."""
    requested = sorted((path / HOODIE).rglob("*.compaction.requested"))[0]
    operation = decode_plan(requested.read_bytes(), str(requested)).operations[0]
    return path / operation.partition_path / operation.delta_file_paths[-1]


def kryo_deletes(path: Path) -> None:
    """Appends a delete block of content version 2 (Kryo) to a planned log."""
    content = struct.pack(">ii", 2, 4) + b"kryo"
    log = planned_log(path)
    log.write_bytes(log.read_bytes() + block(1, {0: written_instant(log), 2: "{}"}, content))


def partial_rows(path: Path) -> None:
    """Appends a data block that holds only some columns, and not the ordering column."""
    log = planned_log(path)
    log.write_bytes(
        log.read_bytes() + block(3, {0: written_instant(log), 2: NO_COLUMNS, 7: "true"}, struct.pack(">ii", 3, 0))
    )


def hfile_rows(path: Path) -> None:
    """Appends an HFile block, as only metadata tables have."""
    log = planned_log(path)
    log.write_bytes(log.read_bytes() + block(4, {0: written_instant(log), 2: "{}"}, b"hfile"))


PARTIAL_UPDATES = set_property("hoodie.table.partial.update.mode", "KEEP_VALUES")
REFUSED = [
    ("v9_pending", no_table, NotATableError, "not a Hudi table"),
    ("v9_pending", set_property("hoodie.table.type", "COPY_ON_WRITE"), UnsupportedError, "COPY_ON_WRITE"),
    ("v9_pending", set_property("hoodie.table.version", "5"), UnsupportedError, "table version"),
    ("v9_pending", set_property("hoodie.table.version", "10"), UnsupportedError, "hoodie.write.table.version=9"),
    ("v6_pending", set_property("hoodie.table.base.file.format", "ORC"), UnsupportedError, "ORC"),
    (
        "v6_pending",
        set_property(
            "hoodie.compaction.payload.class", "org.apache.hudi.common.model.debezium.MySqlDebeziumAvroPayload"
        ),
        UnsupportedError,
        "MySqlDebezium",
    ),
    ("v9_pending", set_property("hoodie.record.merge.mode", "CUSTOM"), UnsupportedError, "CUSTOM"),
    ("v9_pending", set_property("hoodie.table.partial.update.mode", "KEEP_VALUES"), UnsupportedError, "KEEP_VALUES"),
    ("v6_pending", evolves_on_read, UnsupportedError, "schema evolution on read"),
    ("v9_pending", evolves_on_read, UnsupportedError, "schema evolution on read"),
    ("v8_pending", kryo_deletes, UnsupportedError, "content version"),
    ("v9_pending", partial_rows, UnsupportedError, "partial-update"),
    ("v6_pending", hfile_rows, UnsupportedError, "HFILE"),
    ("v6_pending", lose_planned_log, MissingFileError, "plan names a file"),
    ("v9_pending", lose_planned_log, MissingFileError, "plan names a file"),
    ("v6_with_metadata_table", UNKNOWN_INDEX, UnsupportedError, "vector_index"),
    ("v9_with_metadata_table", UNKNOWN_INDEX, UnsupportedError, "vector_index"),
]


def test_one_plan_that_is_refused_stops_no_other(tmp_path: Path) -> None:
    """The other is compacted; the error names the one that lost a file, of which nothing is touched."""
    path = unzip_golden("v9_two_pending", tmp_path)
    lose_planned_base(path)
    first, second = pending_instants(open_table(path))
    with pytest.raises(MissingFileError, match="plan names a file") as caught:
        call("compact", str(path))
    assert caught.value.instant == first
    assert pending_instants(open_table(path)) == (first,)
    assert completed_compaction(open_table(path), second) is not None
    assert not (path / instant_folder(first)).exists()


@pytest.mark.parametrize(("name", "change", "kind", "says"), REFUSED)
def test_compact_refuses(
    name: str, change: Callable[[Path], None], kind: type[PhantombaseError], says: str, tmp_path: Path
) -> None:
    """One line that names the thing, and not a byte or a modification time differs afterwards."""
    path = unzip_golden(name, tmp_path)
    change(path)
    before = digest(path)
    with pytest.raises(kind, match=says) as caught:
        call("compact", str(path))
    assert "\n" not in str(caught.value)
    assert digest(path) == before


@one_of("name", "v9_plain", "v8_plain", "v6_plain")
def test_schedule_needs_to_know_who_else_writes(name: str, tmp_path: Path) -> None:
    """Neither and both of --lock and --sole-writer are refused, on every table version."""
    path = unzip_golden(name, tmp_path)
    before = digest(path)
    for options in ([], ["--sole-writer", "--lock", f"file:{tmp_path}/lock"]):
        with pytest.raises(UsageError, match="which other processes write"):
            call("schedule", str(path), *options)
    with pytest.raises(UsageError, match="lock provider"):
        call("schedule", str(path), "--lock", "etcd:somewhere")
    assert digest(path) == before


def test_schedule_drops_the_metadata_table_if_told_to(tmp_path: Path) -> None:
    """As Hudi does: the property first."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    call("schedule", str(path), "--sole-writer", "--drop-metadata-table")
    assert not (path / HOODIE / "metadata").exists()
    assert Table.open(str(path)).config.metadata_partitions == ()


def test_an_instant_that_is_not_pending_is_refused(tmp_path: Path) -> None:
    """The message lists those that are."""
    path = unzip_golden("v9_two_pending", tmp_path)
    with pytest.raises(UsageError, match="20261121091347510, 20261121091349393"):
        call("compact", str(path), "--instant", "20200101000000000")


def archive_away(path: Path) -> None:
    """Takes instants out of the active timeline until a log file's own instant is older than its start."""
    for file in (path / HOODIE / "timeline").glob("2026112109152[5-7]*"):
        file.unlink()


@pytest.mark.parametrize("break_it", ["manifest_3", "20261121091523633_20261121091524357_0.parquet"])
def test_unreadable_history_is_not_taken_for_no(break_it: str, tmp_path: Path) -> None:
    """A log whose instant may be archived cannot be judged without the archive; with it whole, it can."""
    path = unzip_golden("v9_archived", tmp_path)
    archive_away(path)
    history = path / HOODIE / "timeline" / "history"
    assert read_table(Table.open(str(path))).num_rows > 0
    (history / break_it).write_bytes(b"torn")
    before = digest(path)
    with pytest.raises(UnknownStateError, match="archived timeline"):
        read_table(Table.open(str(path)))
    with pytest.raises(UnknownStateError, match="archived timeline"):
        call("compact", str(path))
    assert digest(path) == before


def test_an_appended_delete_block_of_version_3_is_fine(tmp_path: Path) -> None:
    """The builder's delete block passes where the Kryo one is refused: the refusal is about the version."""
    path = unzip_golden("v8_pending", tmp_path)
    log = planned_log(path)
    log.write_bytes(log.read_bytes() + delete_block(written_instant(log), [("no such key", None)]))
    call("compact", str(path))


# What needs no merge rules is served for tables whose rules are not known: `show`, and the read-optimized query.


CUSTOM = {
    "v6_plain": ("hoodie.compaction.payload.class", "com.example.Mine"),
    "v9_plain": ("hoodie.record.merge.mode", "CUSTOM"),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_what_merges_nothing_is_served(name: str, tmp_path: Path) -> None:
    """And the snapshot is refused with the setting."""
    path = unzip_golden(name, tmp_path)
    key, value = CUSTOM[name]
    set_property(key, value)(path)
    shown = CliRunner().invoke(timeline_app, ["show", str(path)])
    assert shown.exit_code == 0, shown.output
    assert value in shown.output.replace("\n", "")
    rows = read(path, query="read-optimized").to_arrow()
    assert_same_rows(rows, pq.read_table(path.with_name(f"{path.name}.expected") / "read_optimized.parquet"))
    with pytest.raises(UnsupportedError, match=value):
        read(path).to_arrow()
    with pytest.raises(UnsupportedError, match=value):
        Table.open(str(path))
