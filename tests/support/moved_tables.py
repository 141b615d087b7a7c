"""Tables that move on while a compaction is at work, and who moves them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.outcome import CommitDecision
from phantombase.compactor_daemon.attempt.publish import place
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.format.commit_metadata import CommitMetadata, encode
from phantombase.timeline.locks.section import Section
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import Written, write
from phantombase.writer_hooks.write.writer import writer
from tests.support.compaction_steps import decided, open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import kept
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table

OLD = {"k0000": (2, 2.0), "k0003": (1, 1.0)}
NEW = {"k0000": (3, 3.0), "k0003": (1, 1.0)}


def upsert(storage: Storage, batch: pa.Table, buckets: int | None = 1) -> Written:
    """An upsert under that index."""
    options = WriteOptions(buckets=buckets, slots=1)
    return write(Table.on(storage), LocalEngine(batch, slots=1), Write(operation=Operation.UPSERT, options=options))


def before_placing(path: Path, meanwhile: Callable[[], Any]) -> HookedStorage:
    """A storage on which something happens just before the first file is placed."""
    left = [meanwhile]

    def hook(call: Call) -> Any:
        if call.name == "place" and left:
            left.pop()()
        return call.do()

    return HookedStorage(LocalStorage(str(path)), hook)


def schedule(path: Path) -> Scheduled:
    return schedule_compaction(open_table(path), ProcessLock("broken rules"))


def nothing(*_: object, **__: object) -> None:
    """In the place of a check: it finds nothing."""


VERSIONS = pytest.mark.parametrize("version", [6, 9])
FIRST = {"k0000": (1, 1.0), "k0003": (1, 1.0)}
BEFORE = {"k0000": (2, 2.0), "k0003": (1, 1.0)}


def planned(path: Path, version: int) -> str:
    """A table of one file group, written twice, with a plan; its instant."""
    written_table(path, version, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    instant = schedule(path).instant
    assert instant is not None
    return instant


def timeline_files(path: Path) -> list[Path]:
    """The files of instants, by time."""
    folder = path / open_table(path).config.timeline_folder
    return sorted(p for p in folder.iterdir() if p.is_file() and p.name[:17].isdigit())


def remove_all_but_first_commit(path: Path) -> None:
    """What Hudi's restore leaves: later instants, the plan too, and their files are gone; base files that no commit
    names stay (seen: 0.15.0, 1.2.0)."""
    first = timeline_files(path)[0].name[:17]
    for file in timeline_files(path):
        if file.name[:17] > first:
            file.unlink()
    for log in path.glob("*/.*.log.*"):
        log.unlink()


def restore_first_commit(path: Path) -> None:
    """The same on the table of `planned`."""
    remove_all_but_first_commit(path)
    assert read_rows(path) == FIRST


def roll_back_newest_write(path: Path) -> None:
    """What Hudi's rollback of a completed delta commit leaves, its log removed as from version 8 on."""
    newest = max(f.name[:17] for f in timeline_files(path) if "deltacommit" in f.name)
    for file in timeline_files(path):
        if file.name.startswith(newest):
            file.unlink()
    for log in path.glob("*/.*.log.*"):
        log.unlink()
    assert read_rows(path) == FIRST


@dataclass
class Sleeper:
    """A lock under which a publisher wakes up late."""

    meanwhile: Callable[[], None]

    @contextmanager
    def hold(self, purpose: str) -> Iterator[Section]:
        """See `TableLock`."""
        self.meanwhile()
        yield kept(purpose)


def place_all(path: Path, decision: CommitDecision) -> None:
    """All files of a decision get their final names."""
    for one in decision.placements:
        place(open_table(path), decision, one)


def check_removed(path: Path, partition: str) -> None:
    """The folder of the table's only partition was removed: reads fail until the writer says that it is to be gone."""
    with pytest.raises(MissingFileError, match=r"delete_partition\(TABLE"):
        read_rows(path)
    writer(rows((0, 1, 1.0))).buckets(1).delete_partition(str(path), [partition])
    assert read_rows(path) == {}


# --- replaced ---------------------------------------------------------------------------------------------------------


def replace_first_group(path: Path, instant: str) -> tuple[str, Path]:
    """A completed replace commit of the plan's first file group; its file id, and the commit's file."""
    table = open_table(path)
    group = table.compaction_plan(instant).operations[0]
    schema = table.snapshot().newest_schema().commit_text
    commit = CommitMetadata(
        partition_to_write_stats={},
        operation_type="INSERT_OVERWRITE",
        partition_to_replace_file_ids={group.partition_path: (group.file_id,)},
        extra_metadata={"schema": schema},
    )
    time = table.snapshot().next_time()
    name = time if table.config.version == 6 else f"{time}_{int(time) + 1}"
    file = path / table.config.timeline_folder / f"{name}.replacecommit"
    file.write_bytes(encode(commit, table.layout.encoding))
    return group.file_id, file


def clean(path: Path, file_id: str) -> None:
    """A cleaner by file versions removes all files of a replaced group, also under a plan (seen: 0.15.0, 1.2.0)."""
    for file in path.glob(f"*/*{file_id}*"):
        file.unlink()


def decision(path: Path, version: int) -> CommitDecision:
    """That of the plan of a new table."""
    instant = planned(path, version)
    return decided(open_table(path), instant)


def others(commit: CommitMetadata) -> CommitMetadata:
    """The same, but for the names of its files."""
    stats = {
        partition: tuple(replace(one, path=f"{partition}/other.parquet") for one in of)
        for partition, of in commit.partition_to_write_stats.items()
    }
    return replace(commit, partition_to_write_stats=stats)
