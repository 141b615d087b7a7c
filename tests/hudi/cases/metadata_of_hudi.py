"""The metadata table as real Hudi keeps and reads it."""

from __future__ import annotations

from pathlib import Path

from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.location import METADATA_FOLDER
from phantombase.timeline.metadata_table.services.options import MetadataOptions
from phantombase.timeline.metadata_table.services.serve import serve_metadata
from tests.hudi.cases.indexed_table import IndexedTable
from tests.hudi.cases.shared_table import HUDI
from tests.hudi.judge.java_client import run_java

AT_ONCE = MetadataOptions(max_delta_commits=1)


def compact(table: IndexedTable) -> set[str]:
    """The metadata table's compactions by phantombase, one that was pending included; their instants."""
    done = serve_metadata(table.open(), AT_ONCE, ProcessLock("x")).compactions
    assert done
    assert all(one.log_files > 0 for one in done)
    return {one.instant for one in done}


def slices_of_hudi(version: int, path: Path) -> list[str]:
    return sorted(run_java(HUDI[version], "slices", path / METADATA_FOLDER, "files"))
