"""Tables that are refused, and a digest of all their bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from phantombase.timeline.format.commit_metadata import encode
from phantombase.timeline.format.compaction_plan import decode_plan
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.log.block import scan_blocks
from phantombase.timeline.planning.options import PLAN_NOW, ScheduleOptions
from phantombase.timeline.planning.schedule import Scheduled, schedule_compaction
from phantombase.timeline.storage.folders import HOODIE, RECORDS
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table


def digest(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder: its modification time and bytes."""
    return {
        str(p.relative_to(path)): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file()
    }


def set_property(key: str, value: str) -> Callable[[Path], None]:
    """Adds a line to hoodie.properties; the last of a key counts."""

    def change(path: Path) -> None:
        properties = path / HOODIE / "hoodie.properties"
        properties.write_bytes(properties.read_bytes() + f"\n{key}={value}\n".encode())

    return change


def lose_planned_log(path: Path) -> None:
    """Removes a log file that the first pending plan names."""
    requested = sorted((path / HOODIE).rglob("*.compaction.requested"))[0]
    operation = decode_plan(requested.read_bytes(), str(requested)).operations[0]
    (path / operation.partition_path / operation.delta_file_paths[0]).unlink()


def written_instant(log: Path) -> str:
    """The instant of the last block of a log file."""
    with log.open("rb") as file:
        return [*scan_blocks(pa.PythonFile(file), log.name)][-1].instant


NO_COLUMNS = '{"type": "record", "name": "r", "fields": []}'


def evolves_on_read(path: Path) -> None:
    """Columns with ids in the newest commit, without those of older files: these may have other names."""
    table = Table.open(str(path))
    newest = max(table.load_timeline().completed_writes.values())
    metadata = table.commit_metadata(newest)
    columns = '{"version_id": 1, "fields": []}'
    said = replace(metadata, extra_metadata={**metadata.extra_metadata, "latest_schema": columns})
    (path / table.instant_path(newest)).write_bytes(encode(said, table.layout.encoding))


UNKNOWN_INDEX = set_property("hoodie.table.metadata.partitions", "files,vector_index")


def schedule(path: Path, options: ScheduleOptions = PLAN_NOW, storage: Any = None) -> Scheduled:
    """Without a word of a trigger."""
    table = Table.on(storage or LocalStorage(str(path)))
    return schedule_compaction(table, ProcessLock(str(path)), options)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time; our own lock file aside."""
    files = (Path(d) / name for d, _, names in os.walk(folder) for name in names)
    found = {str(f.relative_to(folder)): (f.stat().st_mtime_ns, f.read_bytes()) for f in files}
    return {name: held for name, held in found.items() if not name.startswith(f"{RECORDS}/table.lock")}
