"""The completed commit of a compaction: whether it exists, which process wrote it, and the decision it carries out."""

from __future__ import annotations

from collections.abc import Collection

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.commit_metadata import LEDGER, LOG_COMPACT
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.reserved_times import attempts, instant_folder
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table

from .outcome import CommitDecision, Placement
from .slice_task import SliceDone, done_slices


def completed_compaction(table: Table, instant: str) -> Instant | None:
    """The completed commit of a compaction, None while there is none; two of them are an error.

    On versions 8 and 9 each completed name has its own completion time, so two executors can both leave one.
    """
    found = completed_commits(table, instant)
    if len(found) > 1:
        raise ConflictError(
            "two completed commits of one compaction",
            path=table.config.timeline_folder,
            instant=instant,
            found=", ".join(i.file_name for i in found),
            todo="Two kinds of compactor ran on this table. Stop both; the commits show which files count.",
        )
    return found[0] if found else None


def completed_commits(table: Table, instant: str) -> list[Instant]:
    """Every completed commit of a compaction or log compaction; two are an error, see `completed_compaction`."""
    return [i for i in table.files.completed_commits(instant) if i.action == "commit" or _merged_logs(table, i)]


def _merged_logs(table: Table, done: Instant) -> bool:
    """Whether a delta commit is a log compaction: a write without the lock may have the same instant time."""
    return table.commit_metadata(done).operation_type == LOG_COMPACT


def is_ours(table: Table, done: Instant, decision: CommitDecision) -> bool:
    """Whether a completed commit carries out the decision `commit`, by the names of its files.

    Each attempt has its own file names. The commit may name fewer files than the decision, if file groups were replaced
    before it was published; if it names none at all, the ledgers are compared. Paths and bytes are not compared: an
    upgrade by Hudi renames and rewrites a completed commit.
    """
    metadata = table.commit_metadata(done)
    named = metadata.named_files
    if named or not decision.placements:
        return named <= {p.final for p in decision.placements}
    decided = decode_commit(decision.content, decision.completed_path)
    return metadata.extra_metadata.get(LEDGER) == decided.extra_metadata[LEDGER]


def remove_placed(table: Table, decision: CommitDecision, keep: Collection[str]) -> None:
    """Deletes the placed files of a decision, except the paths to `keep`."""
    table.storage.delete_all([p.final for p in decision.placements if p.final not in keep])


def named_files(table: Table, done: Instant) -> frozenset[str]:
    """The paths of the files that a completed commit names."""
    return table.commit_metadata(done).named_files


def decision_of_commit(table: Table, done: Instant) -> CommitDecision:
    """The decision that a completed commit of phantombase carried out."""
    storage, instant = table.storage, done.requested_time
    metadata = table.commit_metadata(done)
    finished = {d.final: d for d in finished_slices(storage, instant) if d.final is not None}
    nowhere = f"{instant_folder(instant)}/lost"

    def placement(path: str, size: int) -> Placement:
        one = finished.get(path)
        if one is None or one.staged is None:
            return Placement(staged=nowhere, final=path, size=size)
        return Placement(staged=one.staged, final=path, size=size, output=one.output)

    return CommitDecision(
        instant=instant,
        attempt=max(attempts(storage, instant), default=1),
        nonce="",
        table_version=table.config.version,
        completion_time=done.completion_time,
        completed_path=table.instant_path(done),
        content=storage.read(table.instant_path(done)),
        placements=tuple(
            placement(stat.path, stat.file_size_in_bytes)
            for stats in metadata.partition_to_write_stats.values()
            for stat in stats
            if stat.path
        ),
    )


def finished_slices(storage: Storage, instant: str) -> list[SliceDone]:
    """Finished slices of all attempts; the slices that a decision names are among them."""
    return [d for number in attempts(storage, instant) for d in done_slices(storage, instant, number).values()]
