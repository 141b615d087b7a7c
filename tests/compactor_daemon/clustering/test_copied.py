"""Clusters that copy row groups as bytes: the same rows as of encoding, refused by name where it cannot be done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.clustering import outputs, rows_in
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Copy
from phantombase.timeline.errors import LedgerError, MalformedError, UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.ledger import CLUSTERED, GroupLedger, decode_ledgers
from phantombase.timeline.merge.slice_stream import base_tables
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from tests.support.archived_tables import (
    COPIED,
    OUTPUT,
    TWO,
    cluster,
    compact,
    golden_small_files,
    living,
    of_clustering,
    one_row,
    request,
    small_files,
    upsert,
)
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import LOCK, one_of
from tests.support.written_tables import check_nothing_left, read_rows

TRY = replace(TWO, copy=Copy.TRY)


def files(path: Path) -> list[Path]:
    """The base files that count."""
    view = open_table(path).load_view()
    alive = set(living(path))
    return [path / g.slices[-1].base.path for g in view.groups if g.file_id in alive and g.slices[-1].base is not None]


def key_values(path: Path) -> dict[bytes, bytes]:
    return dict(pq.read_metadata(path).metadata)


@one_of("version", 9, 8, 6)
def test_the_same_file_but_for_row_groups(version: int, tmp_path: Path) -> None:
    """Rows in their order, the key filter, the key range and the ledger are those of encoding."""
    path = tmp_path / "trips"
    rows = small_files(path, version, 6)
    other = shutil.copytree(path, tmp_path / "other")
    encoded, done = cluster(other).done, cluster(path, options=COPIED).done
    assert done is not None
    assert encoded is not None
    assert (done.copied, done.copied_row_groups, encoded.copied, encoded.copied_row_groups) == (1, 6, 0, 0)
    (new,), (theirs) = files(path), files(other)
    assert pq.read_metadata(new).num_row_groups == 6
    ours, expected = (pq.read_table(p) for p in (new, *theirs))
    assert set(ours["_hoodie_file_name"].to_pylist()) == {new.name.split("_")[0]}  # its instant was not known yet
    assert ours.drop_columns(["_hoodie_file_name"]) == expected.drop_columns(["_hoodie_file_name"])
    assert key_values(new) == key_values(*theirs)
    (one,), (two,) = (ledgers(p, d.instant) for p, d in ((path, done), (other, encoded)))
    assert (one.ledger, one.copied_row_groups, two.copied_row_groups) == (two.ledger, 6, 0)
    assert read_rows(path) == rows
    # Then it is an input itself, and others go on behind it.
    upsert(path, one_row("new", 50))
    assert cluster(path, options=COPIED).done is not None
    assert [pq.read_metadata(p).num_row_groups for p in files(path)] == [7]
    upsert(path, one_row("k3", 100))
    compact(path)
    assert read_rows(path) == {**rows, "new": (50, 50.0), "k3": (100, 100.0)}


def ledgers(path: Path, instant: str) -> list[GroupLedger]:
    table = open_table(path)
    (done,) = (i for i in table.load_timeline().completed if i.requested_time == instant)
    where = table.instant_path(done)
    return decode_ledgers(decode_commit(table.storage.read(where), where).extra_metadata[CLUSTERED], where)


@one_of("name", "v6_with_metadata_table", "v9_with_metadata_table")
def test_the_metadata_table_knows_the_columns(name: str, tmp_path: Path) -> None:
    path = golden_small_files(name, tmp_path)
    before = read_table(open_table(path)).drop_columns(["_hoodie_file_name"])
    done = cluster(path, options=COPIED).done
    assert done is not None
    assert done.copied == 2
    after = read_table(open_table(path)).drop_columns(["_hoodie_file_name"])
    assert after.sort_by("id") == before.sort_by("id")
    assert validate(open_table(path)).differences == ()


def test_what_must_be_copied_and_cannot_be_is_refused(tmp_path: Path) -> None:
    """A column that only the newer files have: nothing is written; `try` encodes these."""
    path = tmp_path / "trips"
    small_files(path, 9)
    upsert(path, one_row("wide", 5).append_column("tip", pa.array([1.5])))
    rows = read_rows(path)
    before = sorted(p.name for p in path.rglob("*"))
    for dry_run in (True, False):
        with pytest.raises(
            UnsupportedError, match=r"columns not as in the table.* without or with others: tip"
        ) as error:
            cluster_table(open_table(path), COPIED, LOCK, output=OUTPUT, dry_run=dry_run)
        assert error.value.path is not None
        assert Path(error.value.path).exists()
    assert sorted(p.name for p in path.rglob("*")) == before
    done = cluster(path, options=TRY).done
    assert done is not None
    assert (done.copied, dict(done.encoded)) == (0, {"small row groups": 1})
    assert read_rows(path) == rows


def test_a_plan_of_a_dead_process_need_not_be_copied(tmp_path: Path) -> None:
    """It did not ask for it: what it chose is encoded, and the next plan is not made in vain."""
    path = tmp_path / "trips"
    small_files(path, 9)
    upsert(path, one_row("wide", 5).append_column("tip", pa.array([1.5])))
    rows = read_rows(path)
    request(path, alive=False)
    result = cluster(path, options=COPIED)
    assert [(one.files, one.copied) for one in result.finished] == [(5, 0)]
    assert read_rows(path) == rows


def test_large_row_groups_are_copied_where_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    size = min(
        sum(pq.read_metadata(p).row_group(0).column(n).total_compressed_size for n in range(9)) for p in files(path)
    )
    monkeypatch.setattr(outputs, "LEAST_GROUP_BYTES", size + 1)
    would = cluster_table(open_table(path), TRY, LOCK, output=OUTPUT, dry_run=True).done
    assert would is not None
    assert (would.copied, dict(would.encoded)) == (0, {"small row groups": 1})
    monkeypatch.setattr(outputs, "LEAST_GROUP_BYTES", size)
    would = cluster_table(open_table(path), TRY, LOCK, output=OUTPUT, dry_run=True).done
    assert would is not None
    assert (would.copied, dict(would.encoded)) == (1, {})
    done = cluster(path, options=TRY).done
    assert done is not None
    assert (done.copied, done.copied_row_groups) == (1, 4)
    assert read_rows(path) == rows


def test_sorted_rows_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LEAST_GROUP_BYTES", 0)
    with pytest.raises(UsageError, match="rows that are sorted cannot be copied"):
        ClusterOptions(copy=Copy.FORCE, sort_by=("id",))
    path = tmp_path / "trips"
    small_files(path, 9)
    request(path, alive=False, options=replace(TWO, sort_by=("id",)))
    result = cluster(path, options=COPIED)  # the dead process wanted it sorted
    assert [one.copied for one in result.finished] == [0]
    upsert(path, one_row("a", 50))
    done = cluster(path, options=replace(TRY, sort_by=("id",))).done
    assert done is not None
    assert done.copied == 0
    (file,) = files(path)
    ids = pq.read_table(file)["id"].to_pylist()
    assert ids == sorted(ids)


def test_a_file_with_fewer_rows_than_its_footer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is published, and nothing is left."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)

    def fewer(*arguments: Any, **named: Any) -> Iterator[tuple[pa.Table, int]]:
        return ((table.slice(1), count) for table, count in base_tables(*arguments, **named))

    monkeypatch.setattr(rows_in, "base_tables", fewer)
    with pytest.raises(MalformedError, match="other rows than its footer says"):
        cluster(path, options=COPIED)
    monkeypatch.undo()
    assert read_rows(path) == rows
    assert len(living(path)) == 4
    check_nothing_left(path)


def test_a_copied_byte_that_changed_is_found(tmp_path: Path) -> None:
    """In a column that no identity sum covers; nothing is published, and nothing is left."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    opened: list[str] = []

    def damages(call: Call) -> object:
        source: Any = call.do()
        if call.name != "open_input" or not of_clustering(call.path):
            return source
        opened.append(call.path)
        chunk = pq.ParquetFile(source).metadata.row_group(2).column(8)
        data = bytearray(_all(source))
        data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
        return pa.BufferReader(bytes(data))

    with pytest.raises(LedgerError, match="row group 2, column"):
        cluster(path, HookedStorage(open_table(path).storage, damages), COPIED)
    assert len(opened) == 2  # the keys were read back before
    assert read_rows(path) == rows
    assert len(living(path)) == 4
    check_nothing_left(path)


def _all(source: pa.NativeFile) -> bytes:
    source.seek(0)
    data: bytes = source.read()
    return data


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, 9, 5)
    shown = CliRunner().invoke(app, ["cluster", str(path), "--dry-run", "--copy", "try"])
    assert "1 new file not copied as bytes: small row groups" in shown.stdout
    done = CliRunner().invoke(app, ["cluster", str(path), "--sole-writer", "--copy", "force", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)["done"]
    assert (said["copied"], said["copied_row_groups"], said["encoded"]) == (1, 5, {})
    assert read_rows(path) == rows
