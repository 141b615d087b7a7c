"""Runs everything that reads or compacts on one table and judges what comes out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants, preflight
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.log_block import scan_blocks
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.read.table_read import Query, ReadOptions, plan_read
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.table.table import Table

LINE_MAX = 4000
"""Characters of an error's text: it is one line for a user, whatever the bytes it is about."""

_OPTIONS = AttemptOptions(barrier_s=0.0, barrier_poll_s=0.001)
_OUTPUT = OutputOptions(memory_limit=32 << 20)  # the least: log data beyond it is spilled


class Violation(AssertionError):
    """A promise was broken that is not about the kind of an error."""


def exercise(root: Path, what: str, *, compact: bool) -> str:
    """Reads, and with `compact` compacts, the table at `root/table`; a word for each thing done. `what` was changed in
    it: only what looks at that is done. Errors of the tree are expected; any other exception, and a `Violation`, is a
    finding."""
    path = root / "table"
    before = _digest(root)
    steps = _STEPS.get(what, tuple(_READS))
    words = [_attempt(name, _READS[name], path) for name in steps]
    if _digest(root) != before:
        raise Violation(f"reading changed the table: {_difference(before, _digest(root))}")
    if compact:
        words.append(_attempt("compact", _compact, path))
        _check_traces(root, before, published=words[-1] == "compact")
        if words[-1] == "compact":
            _check_published(path)
            if "snapshot" in words:
                _stream(path, Query.SNAPSHOT)
    return " ".join(words)


def _attempt(name: str, step: Callable[[Path], object], path: Path) -> str:
    """`name`, or the name of the error of the tree it ended with."""
    try:
        step(path)
    except PhantombaseError as error:
        _check_error(error)
        return f"{name}:{type(error).__name__}"
    return name


def _check_error(error: PhantombaseError) -> None:
    text = str(error)
    if "\n" in text or len(text) > LINE_MAX:
        raise Violation(f"an error of {len(text)} characters, {text.count(chr(10))} line breaks: {text[:300]!r}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            raise Violation(f"ran into the memory limit: {text[:500]}") from error
        cause = cause.__cause__ or cause.__context__


def _timeline(path: Path) -> None:
    table = Table.open(str(path))
    timeline = table.load_timeline(archived=True)
    busy_file_groups(table.with_timeline(timeline))
    for instant in timeline.pending_compactions:
        table.compaction_plan(instant.requested_time)


def _logs(path: Path) -> None:
    table = Table.open(str(path))
    for group in table.load_view().groups:
        for log in (log for slice_ in group.slices for log in slice_.logs):
            with table.storage.open_input(log.path) as source:
                for block in scan_blocks(source, log.path):
                    _ = block.is_partial


def _stream(path: Path, query: Query) -> int:
    """Rows of a read, batch by batch: a base file may stand for more than memory holds, a batch may not."""
    return sum(batch.num_rows for batch in plan_read(Table.open(str(path)), ReadOptions(query=query)).batches())


def _preflight(path: Path) -> None:
    table = Table.open(str(path))
    for error in preflight(table, pending_instants(table)).values():
        raise error


_READS: dict[str, Callable[[Path], object]] = {
    "timeline": _timeline,
    "logs": _logs,
    "preflight": _preflight,
    "read-optimized": lambda p: _stream(p, Query.READ_OPTIMIZED),
    "snapshot": lambda p: _stream(p, Query.SNAPSHOT),
}
_STEPS = {"log": ("logs", "snapshot"), "base": ("read-optimized", "snapshot")}


def _compact(path: Path) -> None:
    run_compactions(str(path), output=_OUTPUT, execute=ExecuteOptions(), attempt=_OPTIONS, runner=LocalRunner(1))


def _digest(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every file by its path: size, modification time, inode."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            file = os.path.join(folder, name)
            stat = os.lstat(file)
            found[os.path.relpath(file, root)] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


def _difference(before: dict[str, tuple[int, int, int]], after: dict[str, tuple[int, int, int]]) -> list[str]:
    return sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))


def _check_traces(root: Path, before: dict[str, tuple[int, int, int]], *, published: bool) -> None:
    """Nothing that was there is changed; of a failed compaction nothing is seen outside our own folder. One of several
    compactions may have been published before another failed: its commit and files are complete."""
    after = _digest(root)
    # The heartbeat of an attempt stays until its instant is retired.
    ours = tuple(os.path.join("table", HOODIE, name) for name in (".phantombase", ".heartbeat"))
    changed = [p for p in _difference(before, after) if not p.startswith(ours)]
    broken = [p for p in changed if p in before or not p.startswith("table" + os.sep)]
    if broken:
        raise Violation(f"files that are not ours changed: {broken}")
    commits = [p for p in changed if p.startswith(os.path.join("table", HOODIE)) and p.endswith(".commit")]
    if changed and not (published or commits):
        raise Violation(f"a failed compaction left files behind: {changed}")


def _check_published(path: Path) -> None:
    """The rows each new commit claims are those in the footers of the files it names."""
    table = Table.open(str(path))
    ours = path / HOODIE / ".phantombase"
    for folder in ours.iterdir() if ours.exists() else ():  # it is not there when nothing was pending
        instant = next(
            (i for i in table.load_timeline().completed_writes.values() if i.requested_time == folder.name), None
        )
        if instant is None:
            continue
        name = table.instant_path(instant)
        for stats in decode_commit((path / name).read_bytes(), name).partition_to_write_stats.values():
            for stat in stats:
                rows = pq.read_metadata(path / str(stat.path)).num_rows
                if rows != stat.num_writes:
                    raise Violation(f"{stat.path}: {rows} rows, its commit says {stat.num_writes}")
