"""Plans of log compactions: the pieces of a file slice's log files, and which neighbours may be merged (pure).

    log files     i1   i2   i3 = log compaction of i1, i2   i4   i5
    pieces        [i3: file i3, replaced i1, i2]   [i4]   [i5]

A piece is the set of blocks of one instant in the slice that readers still merge. Readers put a log compaction in the
place of its newest original, so merging neighbours keeps the order of all other blocks. A pending write could still
come between neighbours: from table version 8 on a log file sorts by its writer's instant, which is chosen when the
write starts, whenever the write completes. So a run ends at such an instant and another begins. (Version 6: no write is
pending.)"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..codec.stored_names import StoredNames
from ..errors import StalePlanError
from ..format.compaction_plan import CompactionOperation, CompactionStrategy, operation_metrics
from ..format.instant import Instant
from ..format.log_block import BlockKind, LogBlock, Skipped, Visibility, select_blocks
from ..format.table_config import MergeMode
from ..merge.rule import HUDI_0X, SliceRules
from ..storage.contract import Storage
from ..view.log_blocks import slice_blocks
from ..view.view import FileSlice, LogFile

_SAME = StoredNames()


def runs_of(storage: Storage, slice_: FileSlice, rules: SliceRules, pending: Iterable[Instant]) -> tuple[LogRun, ...]:
    """See `log_runs`; reads the headers of the slice's log blocks. `pending`: delta commits of writers."""
    times = [i.requested_time for i in pending]
    return log_runs(slice_, slice_blocks(storage, slice_), rules.visibility, times, rules.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """The blocks of one instant in a slice. `files`: the files with these blocks; `replaced`: the instants that a log
    compaction replaces. `deletes`: it has a delete block; `partial`: a block of partial updates. `place`: its newest
    writer instant. `whole`: its files contain no other blocks, no part of it was rolled back, and its columns have the
    current names: readers expect the columns of a copied block under the names of the log compaction's time.
    `by_position`: each of its blocks names rows of the slice's base file by their positions."""

    instant: str
    files: tuple[LogFile, ...]
    replaced: tuple[LogFile, ...]
    deletes: bool
    partial: bool
    place: str
    whole: bool
    by_position: bool = False

    @property
    def log_bytes(self) -> int:
        """Bytes that readers merge."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRun:
    """Pieces, oldest first, of which any neighbours may be merged. `bottom`: no piece of the slice can be below."""

    pieces: tuple[LogPiece, ...]
    bottom: bool


def log_runs(
    slice_: FileSlice,
    blocks: Sequence[LogBlock],
    visibility: Visibility,
    pending: Iterable[str] = (),
    names: StoredNames = _SAME,
) -> tuple[LogRun, ...]:
    """The pieces of a slice in merge order, divided where they must not be merged with each other. `blocks`: of all its
    log files, in log order (`log_blocks.slice_blocks`). `pending`: instants of pending delta commits. `names`: of the
    columns in older files. Incomplete pieces are left out, and the run ends at each of them. UnsupportedError: the
    names in a block are unknown."""
    selection = select_blocks(blocks, visibility)
    files = {log.path: log for log in slice_.logs}
    paths: defaultdict[str, dict[str, None]] = defaultdict(dict)
    owners: defaultdict[str, set[str]] = defaultdict(set)
    stands_for: dict[str, tuple[str, ...]] = {}
    for block in blocks:
        if block.kind not in (BlockKind.CORRUPT, BlockKind.COMMAND, BlockKind.CDC_DATA):
            paths[block.instant][block.path] = None
            owners[block.path].add(block.instant)
            stands_for[block.instant] = block.compacted_instants
    broken = {b.instant for b, cause in selection.skipped if cause is Skipped.ROLLED_BACK}
    broken |= {instant for of in owners.values() if len(of) > 1 for instant in of}
    deletes = {b.instant for b in selection.blocks if b.kind is BlockKind.DELETE}
    partial = {b.instant for b in selection.blocks if b.is_partial}
    base = slice_.base.name.instant if slice_.base is not None else None
    by_key = {b.instant for b in selection.blocks if not b.names_rows_of(base)}

    def piece(instant: str) -> LogPiece:
        below = [i for i in _originals(instant, stands_for) if i in paths]
        return LogPiece(
            whole=broken.isdisjoint({instant, *below}) and not names.at(instant),
            instant=instant,
            files=tuple(files[p] for p in paths[instant]),
            replaced=tuple(files[p] for i in below for p in paths[i]),
            deletes=instant in deletes,
            partial=instant in partial,
            place=max((i for i in below if not stands_for[i]), default=instant),
            by_position=instant not in by_key,
        )

    pieces = [piece(instant) for instant in dict.fromkeys(b.instant for b in selection.blocks)]
    return tuple(_runs(pieces, list(pending)))


def _originals(instant: str, stands_for: dict[str, tuple[str, ...]]) -> list[str]:
    """All instants that a log compaction replaces, including those of log compactions inside it."""
    found: dict[str, None] = {}
    below = list(stands_for.get(instant, ()))
    while below:
        if (one := below.pop()) not in found and one != instant:
            found[one] = None
            below += stands_for.get(one, ())
    return sorted(found)


def _runs(pieces: list[LogPiece], pending: list[str]) -> Iterator[LogRun]:
    cuts = [0]
    for number, (before, after) in enumerate(pairwise(pieces), 1):
        if not (before.whole and after.whole) or any(before.place < p < after.place for p in pending):
            cuts.append(number)
    for start, end in pairwise([*cuts, len(pieces)] if pieces else ()):
        if all(p.whole for p in pieces[start:end]):
            bottom = start == 0 and not any(p < pieces[0].place for p in pending)
            yield LogRun(pieces=tuple(pieces[start:end]), bottom=bottom)


def folds_exactly(rules: SliceRules, pieces: Sequence[LogPiece], *, bottom: bool) -> bool:
    """Whether the winners of some pieces give readers the same result as all entries, whatever surrounds the pieces.
    They do under commit time, since the last entry wins. Under event time the greatest entry wins. But a delete without
    an ordering value is lost once a row has won against it, and that row could then lose against an older row below the
    pieces. So the pieces must be the bottom. Rows marked deleted are not delete-block entries. On version 6 the readers
    of 0.15 and 1.x merge by different rules. A row that lacks columns takes them from rows below the pieces, unless a
    delete between them discards these. Where all name rows of the base file, each row of a doubled key is changed; a
    winner names none. In all these cases the entries are copied unchanged."""
    if rules.merge.unset is not None or any(p.partial for p in pieces) or all(p.by_position for p in pieces):
        return False
    if rules.merge.mode is MergeMode.COMMIT_TIME:
        return True
    there = frozenset(rules.schema.names)
    if rules.merge.mode in HUDI_0X or not there.isdisjoint(rules.merge.deleting_columns):
        return False
    return bottom or not any(p.deletes for p in pieces)


LOG_STRATEGY = CompactionStrategy(
    compactor_class_name="org.apache.hudi.table.action.compact.LogCompactionExecutionHelper", strategy_params={}
)
"""The value that Hudi 0.15.0 and 1.2.0 write."""


def log_operation(slice_: FileSlice, pieces: Sequence[LogPiece]) -> CompactionOperation:
    """The operation that merges neighbouring pieces of a slice; metrics in integer megabytes, as in Hudi."""
    files = sorted({f for p in pieces for f in (*p.files, *p.replaced)}, key=lambda f: f.name.sort_key)
    size, read = sum(f.size for f in files), sum(p.log_bytes for p in pieces)
    return CompactionOperation(
        base_instant_time=slice_.base_instant,
        delta_file_paths=tuple(str(f.name) for f in files),
        data_file_path=str(slice_.base.name) if slice_.base else None,
        file_id=slice_.file_id,
        partition_path=slice_.partition,
        metrics=operation_metrics(len(files), size, read, read),
    )


def planned_pieces(
    runs: Iterable[LogRun], operation: CompactionOperation, instant: str
) -> tuple[tuple[LogPiece, ...], bool]:
    """The pieces that an operation names, and whether they are the bottom of the slice's logs (pure). StalePlanError:
    the pieces are not (or no longer) neighbours in one run, the plan names only some files of a piece, or columns were
    renamed since (Hudi may have made the plan, and can execute it). Planned files without a block that counts are
    ignored: Hudi plans such files too."""
    names = set(operation.delta_file_paths)
    for run in runs:
        inside = [n for n, piece in enumerate(run.pieces) if names & _names(piece)]
        if inside:
            chosen = run.pieces[inside[0] : inside[-1] + 1]
            others = [p for r in runs if r is not run for p in r.pieces if names & _names(p)]
            if not others and all(_names(p) <= names for p in chosen):
                return chosen, run.bottom and inside[0] == 0
            break
    raise StalePlanError(
        "the planned log files cannot be merged with each other",
        path=f"{operation.partition_path}/{operation.file_id}",
        instant=instant,
        expected="neighbours, all files of each instant, columns with the names of now, no pending or rolled back "
        "write between them",
        found=", ".join(sorted(names)),
        todo=f"Nothing of this plan was written, and no row is missing. Cancel the plan: "
        f"compactor-daemon unschedule TABLE {instant}.",
    )


def _names(piece: LogPiece) -> set[str]:
    return {str(f.name) for f in (*piece.files, *piece.replaced)}
