"""Publishing and retiring a decided compaction.

Publishing is a pure function of the `go` record: owner, successor or both may do it, at any time, twice.

    place each file -> check each size -> in the lock: completed file by put-if-absent
    -> completed and whole? -> remove strays of C, the heartbeat, staged data (the records stay)
"""

from __future__ import annotations

import io
from collections.abc import Iterable

import fastavro

from compactor_daemon.foreign import heartbeat_path, inflight_path
from compactor_daemon.records import OK, Go, attempt_folder, attempts, instant_folder, recorded_instants
from timeline.commit_metadata import CommitMetadata
from timeline.commit_metadata import decode as decode_commit
from timeline.errors import ConflictError, MalformedError, MissingFileError, StorageError
from timeline.file_name import BaseFileName, parse_data_file
from timeline.instant import Instant
from timeline.lock import TableLock
from timeline.storage import Storage
from timeline.table import Table


def completed_compaction(table: Table, instant: str) -> Instant | None:
    """The completed commit of a compaction, None while there is none; two of them are an error.

    On versions 8 and 9 each completed name has its own completion time, so two executors can both leave one.
    """
    names = [e.name for e in table.storage.list(table.config.timeline_folder) if not e.is_folder]
    found = [
        i
        for n in names
        if (i := table.layout.parse(n)) and i.completed and i.requested_time == instant and i.action == "commit"
    ]
    if len(found) > 1:
        raise ConflictError(
            "two completed commits of one compaction",
            path=table.config.timeline_folder,
            instant=instant,
            found=", ".join(i.file_name for i in found),
            todo="Two kinds of compactor ran on this table. Stop both; the commits tell which files count.",
        )
    return found[0] if found else None


def pending_rollback_of(table: Table, instant: str) -> str | None:
    """A pending rollback (or restore) whose plan names the instant; MalformedError where a plan is unreadable."""
    for rollback in table.load_timeline().pending("rollback"):
        path = f"{table.config.timeline_folder}/{rollback.requested_time}.rollback.requested"
        try:
            plan = next(iter(fastavro.reader(io.BytesIO(table.storage.read(path)))))
            target = plan["instantToRollback"]["commitTime"]  # type: ignore[index,call-overload]
        except (ValueError, StopIteration, EOFError, IndexError, KeyError, TypeError) as error:
            raise MalformedError("unreadable rollback plan", path=path, found=str(error)) from error
        if target == instant:
            return rollback.requested_time
    return None


def check_unchanged(table: Table, version: int, metadata_partitions: tuple[str, ...], instant: str) -> None:
    """ConflictError when the table was upgraded or its metadata table switched meanwhile."""
    now = table.reload().config
    found = (now.version, now.metadata_partitions)
    if found != (version, metadata_partitions):
        raise ConflictError(
            "the table changed under this compaction",
            path=table.storage.base_path,
            instant=instant,
            expected=f"table version {version}, metadata partitions {list(metadata_partitions)}",
            found=f"table version {found[0]}, metadata partitions {list(found[1])}",
            todo="Nothing more is published. Run again: the instant is looked at anew.",
        )


def publish(table: Table, go: Go, lock: TableLock) -> None:
    """Gives the decided files their final names and completes the instant; may be repeated.

    ConflictError: somebody else completed the instant first (what only `go` names is removed then), a rollback
    names it, or the table changed.
    """
    storage = table.storage
    if completed_compaction(table, go.instant) is None:
        for placement in go.placements:
            _place(table, placement.staged, placement.final, placement.size)
    with lock.hold("complete a compaction"):
        done = completed_compaction(table, go.instant)
        if done is not None:
            _check_ours(table, done, go)
            return
        _refuse_rollback(table, go.instant)
        check_unchanged(table, go.table_version, go.metadata_partitions, go.instant)
        storage.delete(inflight_path(table, go.instant))  # a dead JVM attempt's: Hudi refuses to go on beside it
        storage.put_if_absent(go.completed_path, go.content)
        done = completed_compaction(table, go.instant)
        if done is None:
            raise StorageError("the completed commit is not there after it was written", path=go.completed_path)
        _check_ours(table, done, go)


def _place(table: Table, staged: str, final: str, size: int) -> None:
    """Staged file to final name, by hand or found done; its size must be the recorded one."""
    storage = table.storage
    found = storage.find(final)
    if found is None:
        storage.place(staged, final)
        found = storage.find(final)
    if found is None or found.size != size:
        raise StorageError(
            "a published base file is not what was decided",
            path=final,
            expected=f"{size} bytes",
            found="nothing" if found is None else f"{found.size} bytes",
        )


def _refuse_rollback(table: Table, instant: str) -> None:
    rollback = pending_rollback_of(table, instant)
    if rollback is not None:
        raise ConflictError(
            "a rollback of this compaction is pending",
            path=table.storage.base_path,
            instant=instant,
            found=f"rollback {rollback}",
            todo="Let Hudi finish the rollback, then run again.",
        )


def _check_ours(table: Table, done: Instant, go: Go) -> None:
    """Whether the completed commit is the decided one; if not, what only `go` names is removed."""
    path = table.instant_path(done)
    if path == go.completed_path and table.storage.read(path) == go.content:
        return
    theirs = _paths(decode_commit(table.storage.read(path), path))
    for placement in go.placements:
        if placement.final not in theirs:
            table.storage.delete(placement.final)
    raise ConflictError(
        "somebody else completed this compaction first",
        path=path,
        instant=go.instant,
        expected=go.completed_path,
        found=path,
        todo="Its result stands. Run one kind of compactor per table.",
    )


def _paths(metadata: CommitMetadata) -> set[str]:
    return {s.path for stats in metadata.partition_to_write_stats.values() for s in stats if s.path}


def retire(table: Table, go: Go, partitions: Iterable[str]) -> None:
    """Cleans up behind a completed compaction once it is whole; `partitions`: those its plan named.

    A file that is not there is placed again from staging. Only then strays of (file group, C), the heartbeat and
    staged data go. `open` and `fate` records stay until the instant is archived: they stop zombies that old.
    """
    storage = table.storage
    done = completed_compaction(table, go.instant)
    if done is None:
        raise MissingFileError("a decided compaction is not completed", path=go.completed_path, instant=go.instant)
    _refuse_rollback(table, go.instant)
    for placement in go.placements:
        _place(table, placement.staged, placement.final, placement.size)
    named = _paths(decode_commit(storage.read(table.instant_path(done)), go.completed_path))
    for partition in set(partitions):
        for entry in storage.list(partition):
            name = None if entry.is_folder else parse_data_file(entry.name)
            path = f"{partition}/{entry.name}" if partition else entry.name
            if isinstance(name, BaseFileName) and name.instant == go.instant and path not in named:
                storage.delete(path)
    for attempt in attempts(storage, go.instant):
        for path in _staged_files(storage, attempt_folder(go.instant, attempt)):
            storage.delete(path)
    storage.delete(heartbeat_path(go.instant))


def is_littered(storage: Storage, instant: str) -> bool:
    """Whether an instant has anything left that retiring removes (strays aside)."""
    if storage.find(heartbeat_path(instant)) is not None:
        return True
    return any(_staged_files(storage, attempt_folder(instant, attempt)) for attempt in attempts(storage, instant))


def _staged_files(storage: Storage, folder: str) -> list[str]:
    return [f"{folder}/{e.name}" for e in storage.list(folder) if e.name.endswith((".parquet", OK))]


def forget_archived(table: Table) -> None:
    """Removes the records of instants that Hudi has archived: nothing can act on those any more."""
    storage = table.storage
    timeline = table.load_timeline()
    active = {i.requested_time for i in timeline.instants}
    for instant in recorded_instants(storage):
        if instant not in active and instant < timeline.start:
            storage.delete_folder(instant_folder(instant))
