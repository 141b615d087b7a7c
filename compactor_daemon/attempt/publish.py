"""Publishing a decided compaction: a function of the `go` record alone.

Owner, successor or both may do it, at any time, twice:

    does it stand? -> place each file -> check each size -> in the lock: does it stand? -> the metadata table, where it
    is on -> completed file by put-if-absent -> does it still stand? is it the decided one?

A placed file that is gone, with its staged copy, is merged again from its inputs.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from phantombase.timeline.errors import (
    ConflictError,
    MissingFileError,
    PhantombaseError,
    StorageError,
    TableChangedError,
)
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.column_stats.column_range import ColumnRange
from phantombase.timeline.metadata_table.read import compacted_after
from phantombase.timeline.metadata_table.update import Change, Update, apply_update, prepare
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.staged_file import place_staged
from phantombase.timeline.table.table import Table

from ..decisions.completed import completed_commits, completed_compaction, is_ours, named_files, remove_placed
from ..decisions.hudi_executors import inflight_path
from ..decisions.late_commit import look_back
from ..decisions.replaced import without_groups
from ..decisions.standing import Standing, decided_instant, refuse, standing_of
from ..decisions.take_back import refuse_revoked, take_back
from ..records.fate import Go, Placement, is_revoked
from ..records.slice_done import SliceDone, done_slices
from .remerge import merge_again


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


def publish(table: Table, go: Go, lock: TableLock) -> None:
    """Gives the decided files their final names and completes the instant; may be repeated.

    ConflictError: somebody else completed the instant first, the decision does not stand any more (`standing`), or the
    table changed: what only `go` names has no final name then.
    """
    table = table.reload()
    placed, update = replace(go, placements=()), None
    if completed_compaction(table, go.instant) is None and _may_stand(table, go):
        placed = without_groups(go, table.facts.replaced_groups(table.load_timeline()), table.layout)
        _place_all(table, placed)
        update = prepare(table, _change(table, placed))
    with lock.hold("complete a compaction"):
        table = table.reload()
        done = completed_compaction(table, go.instant)
        if done is not None:
            _check_ours(table, done, go)
            return
        _check_publishable(table, go)
        kept = without_groups(go, table.facts.replaced_groups(table.load_timeline()), table.layout)
        remove_placed(table, go, keep={p.final for p in kept.placements})
        if kept.placements != placed.placements:  # it did not stand at first; or a file group was replaced meanwhile
            update = None
        _place_all(table, kept, but=frozenset(placed.placements))
        _complete(table, go, kept, update)


def _complete(table: Table, go: Go, kept: Go, update: Update | None) -> None:
    """In the lock: the completed file, of what was `kept` of the decision."""
    storage, change = table.storage, _change(table, kept)
    storage.delete(inflight_path(table, go.instant))  # a dead JVM attempt's: Hudi refuses to go on beside it
    apply_update(table, change, update)
    path = _completed_path(table, go)
    if not completed_commits(table, go.instant):  # an executor of Hudi may take no lock
        _check_publishable(table, go)  # once more: all that was done in the section may have taken long
        try:
            storage.put_if_absent(path, kept.content)  # "no" may be the answer to a put of ours that was sent twice
        except PhantombaseError:  # it may have taken effect
            look_back(table, go, path)
            raise
        look_back(table, go, path)
    done = completed_compaction(table, go.instant)
    if done is None:
        raise StorageError("the completed commit is not there after it was written", path=path)
    if not is_ours(table, done, go):  # without the lock, between our look and our put
        apply_update(table, Change.of(go.instant, table.commit_metadata(done), {}), None)
    _check_ours(table, done, go)


def _change(table: Table, go: Go) -> Change:
    measured = _measured(table.storage, go) if table.config.metadata_partitions else {}
    return Change.of(go.instant, decode_commit(go.content, go.completed_path), measured)


def _completed_path(table: Table, go: Go) -> str:
    """Where the completed file goes: as decided, or with a later completion time (under the lock).

    Hudi archives what has completed before the last compaction of the metadata table, and takes nothing of it from that
    table's logs from then on. What is told only now is in those: this compaction's files would be gone.
    """
    if go.completion_time is None or not compacted_after(table, go.completion_time):
        return go.completed_path
    folder, decided = go.completed_path.rpartition("/")[0], decided_instant(table, go)
    now = table.next_time(table.load_timeline())
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


def _may_stand(table: Table, go: Go) -> bool:
    """Whether it is worth while to place files; the lock section decides."""
    try:
        check_unchanged(table, go.table_version, go.instant)
    except TableChangedError:
        return False
    if is_revoked(table.storage, go.instant, go.attempt):
        return False
    return standing_of(table, go).standing is Standing.STANDS


def _place_all(table: Table, go: Go, but: Collection[Placement] = ()) -> None:
    """All files of a decision get their final names, but for those that have them.

    ConflictError: a partition was removed. A file placed there would make a folder that no listing takes for one.
    """
    for partition in sorted({p.final.rpartition("/")[0] for p in go.placements}):
        if partition and table.storage.find(partition) is None:
            raise ConflictError(
                "a partition of this compaction is not there any more",
                path=f"{table.storage.base_path}/{partition}",
                instant=go.instant,
                todo="Restore it. Where it is gone on purpose, take the compaction back: "
                f"compactor-daemon unschedule TABLE {go.instant}.",
            )
    for placement in go.placements:
        if placement not in but:
            place(table, go, placement)


def _check_publishable(table: Table, go: Go) -> None:
    """TableChangedError, ConflictError: the decision cannot be published; its files have no final names then.

    Hudi may run the plan in its place, and of two base files of one instant its readers take either. Only under the
    lock: outside of it somebody else may be completing the same decision.
    """
    try:
        check_unchanged(table, go.table_version, go.instant)
    except TableChangedError:
        if completed_compaction(table.reload(), go.instant) is None:
            remove_placed(table, go, keep=set())
        raise
    ruling = standing_of(table, go)
    if ruling.standing is Standing.FALLEN:
        take_back(table, go, ruling.why)
    refuse(table, go.instant, ruling)
    if is_revoked(table.storage, go.instant, go.attempt):
        remove_placed(table, go, keep=set())
        refuse_revoked(table, go)


def place(table: Table, go: Go, placement: Placement) -> None:
    """Gives one file of a decision its final name, see `place_staged`; merged again where its staged copy is gone."""
    place_staged(table.storage, lambda: _staged(table, go, placement), placement.final, placement.size)


def _staged(table: Table, go: Go, placement: Placement) -> str:
    if table.storage.find(placement.staged) is not None:
        return placement.staged
    refuse_revoked(table, go)
    return merge_again(table, go, placement)


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
