"""The completed commit of a compaction or clustering: whether it exists, who wrote it, and what it carries out."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from phantombase.timeline.audit.ledgers import add_entry, ledger_of
from phantombase.timeline.errors import ConflictError, MalformedError
from phantombase.timeline.format.commit_metadata import CLUSTER, LEDGER, LOG_COMPACT
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.format.ledger import CLUSTERED
from phantombase.timeline.instants.reserved_times import attempts, instant_folder, staged_files
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table

from .outcome import STAGED_ENDINGS, CommitDecision, Placement, decisions
from .slice_record import SliceDone, done_slices


def completed_compaction(table: Table, instant: str, family: str | None = None) -> Instant | None:
    """The completed commit of a compaction or clustering, None while there is none; two of them are an error.

    On versions 8 and 9 each completed name has its own completion time, so two executors can both leave one.
    """
    found = completed_commits(table, instant, family)
    if len(found) > 1:
        raise ConflictError(
            "two completed commits of one compaction or clustering",
            path=table.config.timeline_folder,
            instant=instant,
            found=", ".join(i.file_name for i in found),
            todo="Two kinds of compactor ran on this table. Stop both; the commits show which files count.",
        )
    return found[0] if found else None


def completed_commits(table: Table, instant: str, family: str | None = None) -> list[Instant]:
    """Every completed commit of a compaction, log compaction or clustering; two are an error, see
    `completed_compaction`. `family`: of the job; None: any."""
    found = table.files.completed_commits(instant)
    return [i for i in found if (family is None or i.family == family) and _is_service(table, i)]


def _is_service(table: Table, done: Instant) -> bool:
    """Whether a completed file is of a service: a write without the lock may have the same instant time."""
    return done.action == "commit" or table.commit_metadata(done).operation_type == _SERVICES[done.action]


_SERVICES = {"deltacommit": LOG_COMPACT, "replacecommit": CLUSTER}


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
    return all(metadata.extra_metadata.get(key) == decided.extra_metadata.get(key) for key in (LEDGER, CLUSTERED))


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
    finished = {file.final: (file, d.output) for d in finished_slices(storage, instant) for file in d.files}
    nowhere = f"{instant_folder(instant)}/lost"

    def placement(path: str, size: int) -> Placement:
        if path not in finished:
            return Placement(staged=nowhere, final=path, size=size)
        file, output = finished[path]
        return Placement(staged=file.staged, final=path, size=size, output=output)

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


def named_staged_files(storage: Storage, instant: str) -> list[str]:
    """What attempts at an instant have staged, and what their records name elsewhere (`Job.staged_before`): all that a
    decision may place."""
    named = {file.staged for done in finished_slices(storage, instant) for file in done.files}
    with suppress(MalformedError):
        named |= {one.staged for decision in decisions(storage, instant) for one in decision.placements}
    return sorted({*staged_files(storage, instant, STAGED_ENDINGS), *named})


def finished_slices(storage: Storage, instant: str) -> list[SliceDone]:
    """Finished slices of all attempts; the slices that a decision names are among them."""
    return [d for number in attempts(storage, instant) for d in done_slices(storage, instant, number).values()]


def keep_ledger(table: Table, decision: CommitDecision, done: Instant) -> None:
    """Copies the ledger of what was completed as `done` into the audit log, which outlives the commit.

    Does nothing if `done` is the commit of another decision: this process may have stalled while the instant was rolled
    back and executed again, and the last entry must be that of the last execution.
    """
    if is_ours(table, done, decision):
        ledger = ledger_of(decode_commit(decision.content, decision.completed_path))
        assert ledger is not None, "every decision has a ledger"
        add_entry(table.storage, decision.instant, decision.attempt, table.instant_path(done), ledger)
