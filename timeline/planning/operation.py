"""The operations of a plan: file slices that may be compacted, their cost, and the bytes of the plan (pure).

A million operations as objects, with their names and metrics, take gigabytes, and making, sorting and freeing them
takes most of the time of a planning. So each operation is encoded as soon as its slice is known. Only the numbers that
order and divide plans are kept with the bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from ..codec.avro_container import EncodedArray, encode_long
from ..errors import UsageError
from ..format.compaction_plan import CompactionOperation, decode_operation, encode_operation, operation_metrics
from ..format.instant import parse_time
from ..instants.timeline import Timeline
from ..view.plain_slices import PlainSlice
from ..view.view import FileSlice
from .limits import MergeKind, Picking, PickOptions, Stack, pick, read_bytes, write_bytes
from .log_compaction import LogPiece, LogRun

HAS_LOGS = "it has log files"
"""The reason, if every file slice with log files is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStats:
    """Rows of the base file, entries of the logs, `deletes` among them, and the pieces of the logs; None if not
    requested. `unreadable`: why requested values are unknown."""

    base_rows: int | None = None
    log_rows: int | None = None
    deletes: int | None = None
    runs: tuple[LogRun, ...] | None = None
    unreadable: str | None = None

    @property
    def merged_at(self) -> str:
        """The newest log compaction in the slice; "" if there is none, or if it was not requested."""
        return max((p.instant for run in self.runs or () for p in run.pieces if p.replaced), default="")

    @property
    def rows(self) -> int:
        return (self.base_rows or 0) + (self.log_rows or 0)


NO_STATS = SliceStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What to do with a slice, and why. `pieces`: the log pieces that a minor compaction merges. `waited_s`: upper
    limit of the age of the oldest log, None if unknown."""

    slice: FileSlice
    stats: SliceStats
    kind: MergeKind
    why: str
    waited_s: float | None
    pieces: tuple[LogPiece, ...] = ()

    @property
    def merged(self) -> FileSlice:
        """The slice with only those files that will be merged."""
        if self.kind is not MergeKind.MINOR:
            return self.slice
        files = {f for piece in self.pieces for f in (*piece.files, *piece.replaced)}
        return replace(self.slice, base=None, logs=tuple(log for log in self.slice.logs if log in files))


def candidate_of(
    slice_: FileSlice, stats: SliceStats, timeline: Timeline, now: datetime, options: PickOptions
) -> Candidate:
    """The choice of the rules for a slice with log files. `now`: the table's clock. The universal rules need `runs`."""
    waited_s = _age_s(_oldest(slice_, timeline), now)
    if options.picking is Picking.ALL:
        return Candidate(slice=slice_, stats=stats, kind=MergeKind.MAJOR, why=HAS_LOGS, waited_s=waited_s)
    runs = stats.runs
    assert runs is not None
    pieces = [piece for run in runs for piece in run.pieces]
    stack = Stack(
        base=slice_.base_bytes,
        logs=tuple(piece.log_bytes for piece in pieces),
        delta_commits=sum(max(1, len(piece.replaced)) for piece in pieces),
        age_s=_age_s(slice_.base_instant, now),
        deleted_share=stats.deletes / stats.base_rows if stats.deletes is not None and stats.base_rows else None,
    )
    picked = pick(stack, options, now)
    kind, why, merged = picked.kind, picked.why, tuple[LogPiece, ...]()
    if kind is MergeKind.MINOR and not (timeline.layout.has_completion_times or options.readers_1x_only):
        kind, why = MergeKind.MAJOR, f"{why}; a minor compaction needs readers-1x-only on version 6"
    elif kind is MergeKind.MINOR:
        merged = runs[-1].pieces[-picked.logs :]
        if len(merged) < 2:
            kind, merged = MergeKind.NONE, ()
            why = f"{why}; but a pending or rolled back write lies between them"
    return Candidate(slice=slice_, stats=stats, kind=kind, why=why, waited_s=waited_s, pieces=merged)


def _oldest(slice_: FileSlice, timeline: Timeline) -> str:
    """The first delta commit of a slice's logs; on version 6 the first possible one."""
    if timeline.layout.has_completion_times:
        return min((log.name.instant for log in slice_.logs), default=slice_.base_instant)
    later = (t for t, i in timeline.completed_writes.items() if i.action == "deltacommit" and t > slice_.base_instant)
    return slice_.base_instant if slice_.base is None else min(later, default=slice_.base_instant)


def _age_s(time: str, now: datetime) -> float | None:
    try:
        return (now - parse_time(time)).total_seconds()
    except UsageError:
        return None


def operation(slice_: FileSlice) -> CompactionOperation:
    base = slice_.base
    return CompactionOperation(
        base_instant_time=base.name.instant if base else slice_.logs[0].name.instant,
        delta_file_paths=tuple(str(log.name) for log in slice_.logs),
        data_file_path=str(base.name) if base else None,
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics=operation_metrics(len(slice_.logs), slice_.log_bytes, read_bytes(slice_), write_bytes(slice_)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPlan:
    """The slices of one plan, each by its operation. `partitions`: those of the slices, each once."""

    operations: EncodedArray[CompactionOperation]
    partitions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.operations)


class PackedSlices:
    """File slices that will all be planned. Sizes in bytes; `files`: of all slices together."""

    def __init__(self) -> None:
        self.files = self.read_bytes = self.write_bytes = 0
        self._operations: list[bytes] = []
        self._log_bytes, self._io_bytes, self._partition = array("q"), array("q"), array("q")
        self._partitions: list[str] = []

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, partition: str, plain: Iterable[PlainSlice], others: Iterable[FileSlice]) -> None:
        """The slices of one partition, in the planner's order: least recently compacted first, then by log bytes."""
        rows = [_of_plain(partition, slice_) for slice_ in plain]
        rows += [_of_slice(slice_) for slice_ in others]
        rows.sort()
        for _, log_bytes, _, files, read, write, encoded in rows:
            self._operations.append(encoded)
            self._log_bytes.append(-log_bytes)
            self._io_bytes.append(read + write)
            self.files += files
            self.read_bytes += read
            self.write_bytes += write
        self._partition.extend([len(self._partitions)] * len(rows))
        self._partitions.append(partition)

    def largest_logs_first(self) -> list[int]:
        """The numbers of the slices; slices with equal log bytes in the order in which they were added."""
        return np.argsort(-np.frombuffer(self._log_bytes, np.int64), kind="stable").tolist() if len(self) else []

    def io_bytes(self, numbers: Iterable[int]) -> list[int]:
        """The bytes that compacting each of these slices reads and writes."""
        return [self._io_bytes[n] for n in numbers]

    def plan(self, numbers: Sequence[int]) -> PackedPlan:
        names = (self._partitions[p] for p in dict.fromkeys(self._partition[n] for n in numbers))
        return PackedPlan(
            operations=EncodedArray([self._operations[n] for n in numbers], decode_operation),
            partitions=tuple(dict.fromkeys(names)),
        )


_Row = tuple[str, int, str, int, int, int, bytes]
"""Base instant, log bytes (negative) and file id, in this order; files, bytes read, bytes written, operation."""


def _of_slice(slice_: FileSlice) -> _Row:
    files, read, write = len(slice_.files), read_bytes(slice_), write_bytes(slice_)
    encoded = encode_operation(operation(slice_))
    return slice_.base_instant, -slice_.log_bytes, slice_.file_id, files, read, write, encoded


def _of_plain(partition: str, slice_: PlainSlice) -> _Row:
    base_instant, file_id, base_entry, entries = slice_
    base, logs, log_bytes = base_entry.name, [e.name for e in entries], sum([e.size for e in entries])
    read, write = base_entry.size + log_bytes, base_entry.size
    metrics = operation_metrics(len(logs), log_bytes, read, write)
    # The names of logs differ from that of the base file in ASCII characters only.
    if base.isascii() and partition.isascii() and max(len(partition), len(logs)) < len(_LONG):
        names = "".join([f"{_LONG[len(name)]}{name}" for name in logs])
        text = (
            f"\2{_LONG[len(base_instant)]}{base_instant}\2{_LONG[len(logs)]}{names}\0\2{_LONG[len(base)]}{base}"
            f"\2{_LONG[len(file_id)]}{file_id}\2{_LONG[len(partition)]}{partition}"
        )
        numbered = [part for pair in zip(_HEADS, metrics.values(), strict=True) for part in pair]
        encoded = text.encode("latin-1") + _METRICS.pack(*numbered)
    else:
        planned = CompactionOperation(
            base_instant_time=base_instant,
            delta_file_paths=tuple(logs),
            data_file_path=base,
            file_id=file_id,
            partition_path=partition,
            metrics=metrics,
        )
        encoded = encode_operation(planned)
    return base_instant, -log_bytes, file_id, 1 + len(logs), read, write, encoded


_LONG = [encode_long(n).decode("latin-1") for n in range(1 << 10)]
"""Lengths and counts in Avro."""


def _metric_heads() -> list[bytes]:
    """The bytes before each number of the metrics: a map of one block, the second branch of its union."""
    names = list(operation_metrics(0, 0, 0, 0))
    keys = [encode_long(len(name)) + name.encode() for name in names]
    return [b"\2" + encode_long(len(names)) + keys[0], *keys[1:]]


_HEADS = _metric_heads()
_METRICS = struct.Struct("<" + "".join(f"{len(head)}sd" for head in _HEADS) + "2x")
"""The metrics; after them the end of the map, and no bootstrap file."""
