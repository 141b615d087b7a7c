"""Makes the golden tables of clusterings with real Hudi: `python -m tests.hudi.cases.clustering_states FOLDER`.

Each is a zip of the table and of what the same Hudi reads from it, `snapshot.parquet`; who uses them says what is in
them: `tests/compactor_daemon/clustering/test_golden.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

import pyarrow as pa
import pytest

from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.judge.client import BRIEF, Judge, JudgeError

_APPENDS: dict[str, object] = {
    "hoodie.parquet.small.file.limit": 0,
    "hoodie.merge.small.file.group.candidates.limit": 0,
    "hoodie.index.bloom.num_entries": 100,
    "hoodie.bloom.index.filter.dynamic.max.entries": 200,
}
_SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "fare"}
_FAILS = {
    "hoodie.precommit.validators": "org.apache.hudi.client.validator.SqlQuerySingleResultPreCommitValidator",
    "hoodie.precommit.validators.single.value.sql.queries": "select count(*) from <TABLE_NAME> where ts < 0#-1",
}
"""Hudi's own check before the commit: the process ends with all files made, and does not roll them back."""


def rows(numbers: range, ts: int) -> pa.Table:
    return pa.table(
        {
            "id": [f"k{n:02d}" for n in numbers],
            "p": [("north", "south")[n % 2] for n in numbers],
            "ts": pa.array([ts] * len(numbers), pa.int64()),
            "fare": [(n * 7 % 20) + ts / 10 for n in numbers],
            "text": [f"text {n} {ts}" for n in numbers],
        }
    )


class Maker:
    """One table."""

    def __init__(self, judge: Judge, version: int, path: Path) -> None:
        self.judge, self.version, self.path = judge, version, path
        judge.create(
            path,
            "t",
            rows(range(6), 1),
            version=version if version > 6 else None,
            partition_field="p",
            operation="insert",
            options=_APPENDS,
        )
        for first in (6, 12):
            judge.insert(path, rows(range(first, first + 6), 1))

    def clusterings(self) -> list[str]:
        """The completed ones on the timeline."""
        found = (file.name for file in (self.path / ".hoodie").rglob("*.replacecommit"))
        return [name.partition("_")[0].partition(".")[0] for name in found]

    def update(self, ts: int = 2) -> None:
        """Log files on some file groups."""
        self.judge.upsert(self.path, rows(range(0, 18, 4), ts))

    def pending(self) -> None:
        self.judge.plan_clustering(self.path, _SORTED)

    def pending_with_logs(self) -> None:
        self.update()
        self.pending()

    def half_done(self) -> None:
        self.pending_with_logs()
        with pytest.raises(JudgeError):
            self.judge.execute_clustering(self.path, _FAILS)

    def rolled_back(self) -> None:
        self.update()
        self.judge.cluster(self.path)
        (instant,) = self.clusterings()
        self.judge.rollback(self.path, instant)

    def replaced(self) -> None:
        self.update()
        self.judge.cluster(self.path)
        self.judge.insert_overwrite(self.path, rows(range(0, 18, 6), 3))

    def archived(self) -> None:
        self.update()
        self.judge.cluster(self.path)
        for ts in range(3, 8):
            self.update(ts)
            self.judge.schedule_compaction(self.path)
            self.judge.run_compaction(self.path)
        self.judge.clean(self.path)
        self.judge.archive(self.path)
        assert not self.clusterings()


STATES: dict[str, tuple[Callable[[Maker], None], tuple[int, ...]]] = {
    "pending": (Maker.pending, (6, 8, 9)),
    "pending_with_logs": (Maker.pending_with_logs, (6, 8, 9)),
    "half_done": (Maker.half_done, (6, 8, 9)),
    "replaced": (Maker.replaced, (6, 8, 9)),
    "rolled_back": (Maker.rolled_back, (6, 9)),  # Hudi 1.2.0 cannot roll a write of version 8 back
    "archived": (Maker.archived, (6, 9)),
}


def make(folder: Path) -> None:
    for hudi in sorted(set(HUDI.values())):
        with Judge(hudi, java_options=BRIEF) as judge:
            for version in (one for one in HUDI if HUDI[one] == hudi):
                for state, (do, of) in STATES.items():
                    if version in of:
                        _make(judge, version, state, do, folder / f"v{version}_{state}.zip")


def _make(judge: Judge, version: int, state: str, do: Callable[[Maker], None], file: Path) -> None:
    with TemporaryDirectory() as temporary:
        path = Path(temporary) / state
        do(Maker(judge, version, path))
        snapshot = Path(temporary) / "snapshot.parquet"
        judge.read(path, snapshot)
        with ZipFile(file, "w", ZIP_DEFLATED) as archive:
            archive.write(snapshot, snapshot.name)
            for one in sorted(path.rglob("*")):
                if one.suffix != ".crc":
                    archive.write(one, one.relative_to(temporary))
    print(file.name, file.stat().st_size, flush=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
