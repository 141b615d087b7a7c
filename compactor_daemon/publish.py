"""Publishing a decided compaction: a function of the `go` record alone.

Owner, successor or both may do it, at any time, twice:

    place each file -> check each size -> in the lock: the metadata table, where it is on -> completed file by
    put-if-absent -> is it the decided one?

A placed file that is gone, with its staged copy, is merged again from its inputs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from compactor_daemon.foreign import inflight_path
from compactor_daemon.options import OutputOptions
from compactor_daemon.records import Go, Placement, SliceDone, done_slices, reserved_times
from compactor_daemon.restore import merge_again
from timeline.commit_metadata import LOG_COMPACT
from timeline.commit_metadata import decode as decode_commit
from timeline.errors import ConflictError, MalformedError, MissingFileError, StorageError, TableChangedError
from timeline.instant import Instant
from timeline.lock import TableLock
from timeline.metadata_table.column_range import ColumnRange
from timeline.metadata_table.read import compacted_after
from timeline.metadata_table.update import Change, prepare, tell
from timeline.rollback import pending_rollbacks
from timeline.staged import place_staged
from timeline.storage import Storage
from timeline.table import Table


def completed_compaction(table: Table, instant: str) -> Instant | None:
    """The completed commit of a compaction, None while there is none; two of them are an error.

    On versions 8 and 9 each completed name has its own completion time, so two executors can both leave one.
    """
    found = [i for i in table.completed_commits(instant) if i.action == "commit" or _merged_logs(table, i)]
    if len(found) > 1:
        raise ConflictError(
            "two completed commits of one compaction",
            path=table.config.timeline_folder,
            instant=instant,
            found=", ".join(i.file_name for i in found),
            todo="Two kinds of compactor ran on this table. Stop both; the commits tell which files count.",
        )
    return found[0] if found else None


def _merged_logs(table: Table, done: Instant) -> bool:
    """Whether a delta commit is a log compaction: a write of a writer that takes no lock may share its millisecond."""
    return table.commit_metadata(done).operation_type == LOG_COMPACT


def check_unchanged(table: Table, version: int, instant: str) -> None:
    """TableChangedError when the table was upgraded meanwhile."""
    now = table.reload().config.version
    if now != version:
        raise TableChangedError(
            "the table changed under this compaction",
            path=table.storage.base_path,
            instant=instant,
            expected=f"table version {version}",
            found=f"table version {now}",
            todo="Nothing of it is visible. If a run says this again, let Hudi execute this compaction; "
            "the next run then removes what is left.",
        )


def publish(table: Table, go: Go, lock: TableLock, output: OutputOptions) -> None:
    """Gives the decided files their final names and completes the instant; may be repeated.

    ConflictError: somebody else completed the instant first, a rollback names it, or the table changed: what only
    `go` names has no final name then. `output`: how a file is written that has to be merged again.
    """
    storage, table = table.storage, table.reload()
    measured = _measured(storage, go) if table.config.metadata_partitions else {}
    change, update = Change.of(go.instant, decode_commit(go.content, go.completed_path), measured), None
    if completed_compaction(table, go.instant) is None and _place_all(table, go, output):
        update = prepare(table, change)
    with lock.hold("complete a compaction"):
        table = table.reload()
        done = completed_compaction(table, go.instant)
        if done is not None:
            _check_ours(table, done, go)
            return
        refuse_rollback(table, go.instant)
        _check_publishable(table, go)
        storage.delete(inflight_path(table, go.instant))  # a dead JVM attempt's: Hudi refuses to go on beside it
        tell(table, change, update)
        path = _completed_path(table, go)
        storage.put_if_absent(path, go.content)
        done = completed_compaction(table, go.instant)
        if done is None:
            raise StorageError("the completed commit is not there after it was written", path=path)
        if not is_ours(table, done, go):  # without the lock, between our look and our put
            tell(table, Change.of(go.instant, table.commit_metadata(done), {}), None)
        _check_ours(table, done, go)


def _completed_path(table: Table, go: Go) -> str:
    """Where the completed file goes: as decided, or with a later completion time (under the lock).

    Hudi archives what has completed before the last compaction of the metadata table, and takes nothing of it from that
    table's logs from then on. What is told only now is in those: this compaction's files would be gone.
    """
    if go.completion_time is None or not compacted_after(table, go.completion_time):
        return go.completed_path
    folder, _, name = go.completed_path.rpartition("/")
    decided = table.layout.parse(name)
    if decided is None:
        raise MalformedError("not the name of a completed commit", path=go.completed_path, instant=go.instant)
    now = table.next_time(table.load_timeline(), reserved_times(table.storage))
    return f"{folder}/{table.layout.file_name(replace(decided, completion_time=now))}"


def _measured(storage: Storage, go: Go) -> dict[str, tuple[ColumnRange, ...]]:
    """What the tasks found out of the files they wrote, where their records are still there.

    Who publishes the same decision may be taking them away this moment.
    """
    done: list[SliceDone] = []
    for number in range(1, go.attempt + 1):
        with suppress(MissingFileError):
            done += done_slices(storage, go.instant, number).values()
    return {d.final: d.ranges for d in done if d.final is not None and d.ranges is not None}


def _place_all(table: Table, go: Go, output: OutputOptions) -> bool:
    """Gives all files their final names, unless the decision can never be published: the lock section says so."""
    try:
        check_unchanged(table, go.table_version, go.instant)
    except TableChangedError:
        return False
    for placement in go.placements:
        place(table, go, placement, output)
    return True


def _check_publishable(table: Table, go: Go) -> None:
    """TableChangedError: the decision can never be published; its files have no final names then.

    Hudi may run the plan in its place, and of two base files of one instant its readers take either. Only under the
    lock: outside of it somebody else may be completing the same decision.
    """
    try:
        check_unchanged(table, go.table_version, go.instant)
    except TableChangedError:
        if completed_compaction(table.reload(), go.instant) is None:
            remove_placed(table, go, keep=set())
        raise


def place(table: Table, go: Go, placement: Placement, output: OutputOptions) -> None:
    """Gives one file of a decision its final name, see `place_staged`; merged again where its staged copy is gone."""
    place_staged(table.storage, lambda: _staged(table, go, placement, output), placement.final, placement.size)


def _staged(table: Table, go: Go, placement: Placement, output: OutputOptions) -> str:
    if table.storage.find(placement.staged) is not None:
        return placement.staged
    return merge_again(table, go, placement, output)


def refuse_rollback(table: Table, instant: str) -> None:
    """ConflictError while a rollback names the instant; MalformedError where a rollback's plan is unreadable."""
    rollback = next((r.instant for r in pending_rollbacks(table) if r.plan.target == instant), None)
    if rollback is not None:
        raise ConflictError(
            "a rollback of this compaction is pending",
            path=table.storage.base_path,
            instant=instant,
            found=f"rollback {rollback}",
            todo="Let Hudi finish the rollback, then run again.",
        )


def _check_ours(table: Table, done: Instant, go: Go) -> None:
    """ConflictError when the completed commit is not the decided one; what only `go` names is removed then."""
    if is_ours(table, done, go):
        return
    remove_placed(table, go, keep=named_files(table, done))
    raise ConflictError(
        "somebody else completed this compaction first",
        path=table.instant_path(done),
        instant=go.instant,
        expected=go.completed_path,
        found=table.instant_path(done),
        todo="Its result stands. Run one kind of compactor per table.",
    )


def is_ours(table: Table, done: Instant, go: Go) -> bool:
    """Whether a completed commit is the one a decision named: their file names are an attempt's own.

    Its path and bytes are not asked: an upgrade by Hudi renames and rewrites a completed commit.
    """
    return named_files(table, done) == {p.final for p in go.placements}


def remove_placed(table: Table, go: Go, keep: set[str]) -> None:
    """Takes the final names of a decision's files away, but for those to `keep`."""
    for placement in go.placements:
        if placement.final not in keep:
            table.storage.delete(placement.final)


def named_files(table: Table, done: Instant) -> set[str]:
    """Paths of the files a completed commit names."""
    metadata = table.commit_metadata(done)
    return {s.path for stats in metadata.partition_to_write_stats.values() for s in stats if s.path}
