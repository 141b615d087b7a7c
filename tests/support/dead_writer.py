"""What a writer that was killed leaves in a table, made by hand: of our kind, or of Hudi's."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.instant import Instant, State, next_time
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.storage.folders import staged_folder
from phantombase.timeline.table.table import Table
from phantombase.timeline.traces.markers import Marker, MarkerKind, list_markers, log_marker_kind, make_marker
from tests.support.builders import AVRO, INSTANT_TIME, SCHEMA, avro_content, avro_schema, block
from tests.support.compaction_steps import open_table

_ROW = avro_schema(("a", "int"))


@dataclass(frozen=True, kw_only=True)
class DeadWrite:
    """A pending delta commit: `logs` and `bases` it placed, relative to the table."""

    instant: Instant
    logs: tuple[str, ...]
    bases: tuple[str, ...]


def leave_dead_write(
    path: Path, *, begun_by: Process | None = None, age_s: float = 3600.0, markers: bool = True
) -> DeadWrite:
    """A delta commit placed a log file on every slice and a new base file a partition, and marked one it never made.

    `begun_by`: the process in its heartbeat, by default one that is gone. `age_s`: of everything it left.
    """
    table = open_table(path)
    storage, layout = table.storage, table.layout
    view = table.load_view()
    time_ = next_time(table.now(), view.timeline.used_times())
    instant = Instant(requested_time=time_, action="deltacommit", state=State.INFLIGHT)
    before = set(path.rglob("*"))
    storage.put_if_absent(table.instant_path(instant.at(State.REQUESTED)), b"")
    storage.put_if_absent(table.instant_path(instant), b"")
    logs, bases = [], []
    for group in view.groups:
        if not group.slices:  # another dead writer's
            continue
        slice_ = group.slices[-1]
        shared = layout.slicing is Slicing.BY_BASE_INSTANT
        versions = [log.name.version for log in slice_.logs if log.name.instant == slice_.base_instant]
        name = LogFileName(
            file_id=group.file_id,
            instant=slice_.base_instant if shared else time_,
            version=max(versions, default=0) + 1 if shared else 1,
            token="0-77-777",
        )
        logs.append((group.partition, str(name)))
    for number, partition in enumerate(table.partitions()):
        base = BaseFileName(file_id=f"{number:08d}-0000-4000-8000-000000000000-0", token="0-77-777", instant=time_)
        bases.append((partition, str(base)))
    never = ("never-made", str(BaseFileName(file_id="f-0", token="0-77-778", instant=time_)))
    if markers:
        marked = [(p, n, log_marker_kind(layout)) for p, n in logs]
        marked += [(p, n, MarkerKind.CREATE) for p, n in (*bases, never)]
        for partition, file, kind in marked:
            make_marker(storage, time_, Marker(partition=partition, file=file, kind=kind))
    content = block(AVRO, {INSTANT_TIME: time_, SCHEMA: _ROW}, avro_content(_ROW, [{"a": 1}]))
    placed_logs = tuple(_join(*log) for log in logs)
    placed_bases = tuple(_join(*base) for base in bases)
    for file in (*placed_logs, *placed_bases):
        storage.put_if_absent(file, content)
    storage.put_if_absent(f"{staged_folder(time_)}/0-abc.log", content)
    owner = begun_by or replace(Process.current(), started=1)
    storage.overwrite(heartbeat_path(time_), b"phantombase\n" + json.dumps(asdict(owner)).encode())
    make_old({p for p in path.rglob("*") if p.is_file()} - before, age_s)
    return DeadWrite(instant=instant, logs=placed_logs, bases=placed_bases)


def kill_newest(table: Table) -> Instant:
    """Makes the newest delta commit one whose writer died just before completing it: its markers are there again."""
    timeline = table.load_timeline()
    done = timeline.completed_writes[timeline.latest_completed]
    for partition, stats in table.commit_metadata(done).partition_to_write_stats.items():
        for stat in stats:
            assert stat.path is not None
            file = stat.path.rpartition("/")[2]
            kind = log_marker_kind(table.layout) if ".log." in file else MarkerKind.CREATE
            make_marker(table.storage, done.requested_time, Marker(partition=partition, file=file, kind=kind))
    assert list_markers(table.storage, done.requested_time)
    table.storage.delete(table.instant_path(done))
    return done.at(State.INFLIGHT)


def make_old(files: set[Path], age_s: float) -> None:
    """Sets the modification times of files back."""
    then = time.time() - age_s
    for file in files:
        os.utime(file, (then, then))


def _join(partition: str, name: str) -> str:
    return f"{partition}/{name}" if partition else name


def pending_write(path: Path, version: int, time: str) -> Path:
    folder = path / ".hoodie" if version == 6 else path / ".hoodie" / "timeline"
    (folder / f"{time}.deltacommit.requested").touch()
    inflight = folder / f"{time}.deltacommit.inflight"
    inflight.touch()
    return inflight
