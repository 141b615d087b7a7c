"""The operations of a plan of log compactions, and how an executor reads them (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import StalePlanError
from ..format.compaction_plan import CompactionOperation, CompactionStrategy, operation_metrics
from ..view.view import FileSlice
from .log_runs import LogPiece, LogRun

LOG_STRATEGY = CompactionStrategy(
    compactor_class_name="org.apache.hudi.table.action.compact.LogCompactionExecutionHelper", strategy_params={}
)
"""The value that Hudi 0.15.0 and 1.2.0 write."""


def log_operation(slice_: FileSlice, pieces: Sequence[LogPiece]) -> CompactionOperation:
    """The operation that merges neighbouring pieces of a slice; metrics in whole megabytes, as in Hudi."""
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
    """The pieces that an operation names, and whether they are the bottom of the slice's logs (pure).

    StalePlanError: the pieces are not (or no longer) neighbours in one run, the plan names only some files of one, or
    columns were renamed since (Hudi may have planned it, and can execute it).
    Planned files without a block that counts are ignored: Hudi plans such files too.
    """
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
        todo=f"Nothing of this plan was written, and no row is missing. Take the plan back: "
        f"compactor-daemon unschedule TABLE {instant}.",
    )


def _names(piece: LogPiece) -> set[str]:
    return {str(f.name) for f in (*piece.files, *piece.replaced)}
