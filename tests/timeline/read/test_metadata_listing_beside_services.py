"""A reader that lists the metadata table, beside services: what pended when it began counts there for nothing, and
what a clean removed since is not listed. All rows are there, or the read is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.metadata_table.listing import MetadataListing
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import consistent
from phantombase.writer_hooks.new_table.create import create_table
from phantombase.writer_hooks.new_table.spec import NewTable
from tests.support.archived_tables import LOCK, one_row, upsert
from tests.support.clustered_tables import request, stitch
from tests.support.compaction_steps import open_table, run_all
from tests.support.faults import Faults
from tests.support.interleaving import serial_pools
from tests.support.selection import deep

READS = {
    "snapshot": ReadOptions(),
    "read optimized": ReadOptions(query=Query.READ_OPTIMIZED),
    "window": ReadOptions(query=Query.INCREMENTAL, begin="earliest"),
}
USUAL = {(9, "compaction", "snapshot")}


def _made(path: Path, version: int, pending: str) -> None:
    """A table without partitions, where a compaction or a stitching is pending."""
    path.mkdir(parents=True)
    spec = NewTable(name="trips", version=version, key_fields=("id",), ordering_fields=("ts",), metadata_table=True)
    create_table(LocalStorage(str(path)), spec)
    for number in range(3):
        upsert(path, one_row(f"k{number}", number))
    if pending == "stitching":
        request(path, alive=False)
    else:
        upsert(path, one_row("k0", 3))
        schedule_compaction(open_table(path), LOCK, PLAN_NOW)
        upsert(path, one_row("k0", 4))


def _rows(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    def load() -> list[str]:
        table = replace(open_table(path, storage), listing=MetadataListing())
        rows = plan(table, options).to_table().select(["id", "ts"])
        return sorted(map(repr, rows.to_pylist()))

    return consistent(load)


@pytest.mark.parametrize(
    ("version", "pending", "read"),
    [one if one in USUAL else deep(*one) for one in product((9, 8, 6), ("compaction", "stitching"), READS)],
)
def test_all_rows_or_an_error(
    version: int, pending: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_pools(monkeypatch)
    made = tmp_path / "made/trips"
    _made(made, version, pending)
    options = READS[read]
    moments, found = [_rows(made, options)], list[list[str]]()

    def serve(path: Path) -> None:
        if pending == "compaction":
            run_all(open_table(path))
        else:
            stitch(path)
        clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
        moments.append(_rows(path, options))

    looked = 0
    reads = Faults.of(made, lambda storage: found.append(_rows(Path(storage.base_path), options, storage)))
    for point, _, error in replace(reads, each=True).pauses(serve):
        if (version, pending, read) in USUAL or error is None:
            assert error is None
            assert found[-1] in moments, f"services before {point}"
        looked += 1
        del moments[1:]
    assert looked > 6
