"""Past states beside a clean: at whichever call of a read it runs, the rows are all there, or the read is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import consistent
from tests.support.archived_tables import compact, long_table, one_row, upsert
from tests.support.cleaned_tables import change_clean
from tests.support.compaction_steps import open_table
from tests.support.faults import Faults
from tests.support.golden_tables import unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.selection import deep
from tests.support.tables import LOCK, one_of

READS = ("as of", "as of, read optimized", "window", "net changes")
USUAL = {(9, "as of"), (9, "window"), (6, "net changes")}


def _options(path: Path, read: str) -> ReadOptions:
    """Reads of a state that the clean takes."""
    timeline = open_table(path).load_timeline()
    writes = [w for w in timeline.completed if w.action == "deltacommit"]
    begin, end = (timeline.moment_of(w) for w in writes[1:3])
    if read == "window":
        return ReadOptions(query=Query.INCREMENTAL, begin=begin, end=end)
    if read == "net changes":
        return ReadOptions(query=Query.CHANGES, begin=begin, end=end, net=True)
    query = Query.READ_OPTIMIZED if "optimized" in read else Query.SNAPSHOT
    return ReadOptions(query=query, as_of=writes[3].requested_time)


def _rows(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    rows = consistent(lambda: plan(open_table(path, storage), options).to_table())
    return sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize(
    ("version", "read"), [one if one in USUAL else deep(*one) for one in product((9, 8, 6), READS)]
)
def test_all_rows_or_an_error(version: int, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serial_pools(monkeypatch)
    made = tmp_path / "trips"
    long_table(made, version, 4, compact_at=2)
    for number in range(4, 6):
        compact(made)
        upsert(made, one_row("k0", number))
    compact(made)
    options, found, looked = _options(made, read), list[list[str]](), 0
    whole = _rows(made, options)
    assert whole

    def clean(path: Path) -> None:
        clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)

    reads = Faults.of(made, lambda storage: found.append(_rows(Path(storage.base_path), options, storage)))
    for point, _, error in reads.pauses(clean):
        assert error or found[-1] == whole, f"a clean before {point}"
        looked += 1
        found.clear()
    assert looked > 6


# Time travel behind a clean: refused up to what the clean has retained, whichever policy the cleaner had.


@one_of("name", "v9_compacted_cleaned", "v6_compacted_cleaned")
def test_a_point_before_the_retained_commit_is_refused(name: str, tmp_path: Path) -> None:
    """In each of Hudi's forms; the retained commit itself is read."""
    path = unzip_golden(name, tmp_path)
    with pytest.raises(UsageError, match="may have been cleaned") as caught:
        plan_read(open_table(path), ReadOptions(as_of="2026-11-21T00:00:00"))
    retained = str(caught.value.expected).split()[0]
    assert plan_read(open_table(path), ReadOptions(as_of=retained)).to_table().num_rows > 0
    with pytest.raises(UsageError, match="may have been cleaned"):
        plan_read(open_table(path), ReadOptions(as_of=str(int(retained) - 1)))


def test_a_cleaner_of_file_versions_names_no_commit(tmp_path: Path) -> None:
    """It may have removed files of any state before the one that it found: that and later ones are whole."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    change_clean(path, earliestCommitToRetain="")
    timeline = open_table(path).load_timeline()
    clean = next(i for i in timeline.instants if i.action == "clean").requested_time
    older, found = sorted(w for w in timeline.completed_writes if w < clean)[-2:]
    with pytest.raises(UsageError, match="may have been cleaned") as caught:
        plan_read(open_table(path), ReadOptions(as_of=older))
    assert str(caught.value.expected).startswith(clean)
    for whole in (found, timeline.latest_completed):
        plan_read(open_table(path), ReadOptions(as_of=whole))


def test_a_clean_that_removed_nothing_is_passed_over(tmp_path: Path) -> None:
    """Then every point is whole."""
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    change_clean(path, earliestCommitToRetain="", totalFilesDeleted=0)
    plan_read(open_table(path), ReadOptions(as_of="2026-11-21"))
