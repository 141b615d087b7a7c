"""Publishes a decided compaction or clustering, and retires it: by its commit decision and the timeline.

The process that decided, its successor, or both at once may publish, at any time and more than once:

    1. check that the decision is valid
    2. place each file and check its size
    3. take the table lock and check again that the decision is valid
    4. update the metadata table, if the table has one
    5. put the completed file by put-if-absent
    6. check that the decision is still valid, and that the completed file is the decided one

If a placed file of a compaction and its staged copy are both lost, the file is merged again. Its inputs are retained
until a clean. The commit states the size and the ledger of each file, so the new file must have the same. The decision
names the options that the file was written with: the same rows and options give the same file. Another release of a
library may give another file: then the instant is left unchanged, with an error.

Retiring places missing files again, then removes strays, and staged data last. The `open` and `outcome` records are
kept until Hudi has archived the instant: they stop a process that has stalled since it opened an attempt."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import (
    ConflictError,
    LockError,
    MissingFileError,
    PhantombaseError,
    StorageError,
    TableChangedError,
)
from phantombase.timeline.format.commit_metadata import decode as decode_commit
from phantombase.timeline.format.file_name import BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.instants.reserved_times import attempt_folder, staged_files
from phantombase.timeline.locks.heartbeat import Heartbeats, heartbeat_path
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.column_range import ColumnRange
from phantombase.timeline.metadata_table.create import drop_unrecorded
from phantombase.timeline.metadata_table.index_logs import FileKeys, RecordedKeys, keys_of_base_file
from phantombase.timeline.metadata_table.record_index import has_one_record_index
from phantombase.timeline.metadata_table.update import Change, Update, apply_update, prepare, with_index_logs
from phantombase.timeline.metadata_table.valid_instants import compacted_after
from phantombase.timeline.prefetch import AHEAD, at_once
from phantombase.timeline.storage.contract import Requests, Storage, counted_requests, listed_if_there
from phantombase.timeline.storage.folders import join
from phantombase.timeline.storage.snapshot import list_ahead, without_snapshot
from phantombase.timeline.storage.staged_file import place_staged
from phantombase.timeline.table.in_progress import check_version, exclusive
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.view import GroupKey

from .compaction import placed_group
from .job import Job
from .outcome import STAGED_ENDINGS, CommitDecision, Placement, is_revoked
from .revert import check_after_put, refuse_revoked, revert_files
from .slice_record import (
    SliceDone,
    completed_commits,
    completed_compaction,
    done_slices,
    is_ours,
    named_files,
    remove_placed,
)
from .validity import OF_ATTEMPT, Validity, decided_instant, job_of, refuse, refuse_rollback, validity_of

_ALONE = nullcontext()


def not_published(job: Job) -> str:
    """What to do about a table that was upgraded under a job."""
    return (
        f"Nothing of this {job.name} is visible. If the next run fails in the same way, let Hudi execute the "
        f"{job.name}; the run after that removes what is left."
    )


def publish(table: Table, decision: CommitDecision, lock: TableLock) -> None:
    """Gives the decided files their final names and completes the instant; may be repeated. ConflictError: another
    process completed the instant first, the decision is not valid any more (`validity`), or the table changed. Files
    that only the decision names have no final names then."""
    partitions = _partitions(decision)
    table = table.snapshot(also=partitions)
    placed, update = replace(decision, placements=()), None
    job, family = job_of(table, decision), decided_instant(table, decision).family
    if (
        job.places_early
        and completed_compaction(table, decision.instant, family) is None
        and _is_publishable(table, decision)
    ):
        placed = job.current(table, decision)
        _place_all(table, placed, is_final=False)
        update = prepare(table, _change(table, placed))
    keys = _keys_before(table, decision)
    with (
        exclusive(table, lock, f"complete a {job.name}", OF_ATTEMPT, cached=True, also=partitions) as table,
        counted_requests() as since,
    ):
        done = completed_compaction(table, decision.instant, family)
        if done is not None:
            _check_ours(table, done, decision)
            return
        _check_publishable(table, decision)
        kept = job.current(table, decision)
        job.begin_placing(table, kept)
        remove_placed(table, decision, keep={p.final for p in kept.placements})
        # The decision was not valid at the first check, or a file group was replaced since then.
        if kept.placements != placed.placements:
            update = None
        _place_all(table, kept)  # again: another process may have removed what this one placed before it had the lock
        change = _change(table, kept)
        if change.moves_rows:
            change = replace(change, keys=_keys(table, kept, keys) or change.keys)
        _complete(table, job, decision, kept, change, update, since)


def _partitions(decision: CommitDecision) -> list[str]:
    return sorted({p.final.rpartition("/")[0] for p in decision.placements})


def _keys_before(table: Table, decision: CommitDecision) -> RecordedKeys | str | None:
    """As `_keys`, outside of the lock, with the log files of the index."""
    with suppress(MissingFileError):  # another process completes or cancels it
        keys = _keys(table, decision)
        return with_index_logs(table, decision.instant, keys) if isinstance(keys, RecordedKeys) else keys
    return None


def _keys(table: Table, decision: CommitDecision, known: RecordedKeys | str | None = None) -> RecordedKeys | str | None:
    """The keys in the files of a clustering, which their rows bring to new file groups, for the record index; text
    instead: why the index cannot hold one. None: there is no such index. `known`: before the files were placed."""
    if not decision.replaced or not (table.config.populate_meta_fields and has_one_record_index(table)):
        return None
    if isinstance(known, RecordedKeys):
        placed = zip(known.files, decision.placements, strict=True)
        return replace(known, files=tuple(replace(one, path=placement.final) for one, placement in placed))
    files, output = list[FileKeys](), OutputOptions()
    for one in decision.placements:
        path = one.staged if table.storage.find(one.final) is None else one.final
        keys = keys_of_base_file(table.storage, placed_group(one.final), path)
        if isinstance(keys, str):
            return keys
        files.append(keys)
        output = one.output or output
    folder = attempt_folder(decision.instant, decision.attempt)
    return RecordedKeys(files=tuple(files), memory_limit=output.memory_limit, folder=folder)


def _complete(
    table: Table,
    job: Job,
    decision: CommitDecision,
    kept: CommitDecision,
    change: Change,
    update: Update | None,
    since: Requests,
) -> None:
    """Puts the completed file under the lock. `kept`: the decision without the files that must not be placed. `since`:
    what was asked of an object store since the snapshot of the section."""
    apply_update(table, change, update)
    path = _completed_path(table, decision)
    if table.storage.is_file_system or since.number:
        table = table.snapshot()  # again: the steps since the last snapshot may have taken long
    job.begin_completing(table, decision)
    family = decided_instant(table, decision).family
    if not completed_commits(table, decision.instant, family):  # a Hudi executor may have completed it without the lock
        _check_publishable(table, decision)  # again
        try:
            table.storage.put_if_absent(path, kept.content)  # if our own put was sent twice, the answer may be False
        except LockError:  # the lock was asked before the put
            raise
        except PhantombaseError:  # the put may have taken effect
            check_after_put(table.snapshot(), decision, path)
            raise
        table = table.snapshot()
        if check_after_put(table, decision, path):
            table = table.snapshot()
        drop_unrecorded(table, decision.instant)
    done = completed_compaction(table, decision.instant, family)
    if done is None:
        raise StorageError("the completed commit is not there after it was written", path=path)
    if not is_ours(table, done, decision):  # completed without the lock, between our check and our put
        apply_update(table, Change.of(decision.instant, table.commit_metadata(done), {}), None)
    _check_ours(table, done, decision)


def _change(table: Table, decision: CommitDecision) -> Change:
    measured = _measured(table.storage, decision) if table.config.metadata_partitions else {}
    return Change.of(decision.instant, decode_commit(decision.content, decision.completed_path), measured)


def _completed_path(table: Table, decision: CommitDecision) -> str:
    """The path of the completed file: as decided, or with a later completion time (under the lock). Hudi archives
    instants that completed before the last compaction of the metadata table. From then on it ignores their entries in
    the logs of the metadata table. The entries of this compaction are written to those logs only now. With a completion
    time before that compaction they would be ignored, and this compaction's files would be lost."""
    if decision.completion_time is None or not compacted_after(table, decision.completion_time):
        return decision.completed_path
    folder, decided = decision.completed_path.rpartition("/")[0], decided_instant(table, decision)
    now = table.with_timeline(table.load_timeline()).next_time()
    return f"{folder}/{table.layout.file_name(replace(decided, completion_time=now))}"


def _measured(storage: Storage, decision: CommitDecision) -> dict[str, tuple[ColumnRange, ...]]:
    """The column ranges that the tasks measured in the files they wrote, as far as their records are still there:
    another process that publishes the same decision may be removing them."""
    done: list[SliceDone] = []
    for number in range(1, decision.attempt + 1):
        with suppress(MissingFileError):
            done += done_slices(storage, decision.instant, number).values()
    return {file.final: file.ranges for d in done for file in d.files if file.ranges is not None}


def _is_publishable(table: Table, decision: CommitDecision) -> bool:
    """Whether it is worth placing files before the lock is taken; the check under the lock decides."""
    try:
        check_version(table, decision.table_version, decision.instant)
    except TableChangedError:
        return False
    if is_revoked(table.storage, decision.instant, decision.attempt):
        return False
    return validity_of(table, decision).validity is Validity.VALID


def _place_all(table: Table, decision: CommitDecision, *, is_final: bool = True) -> None:
    """Gives each file of a decision its final name, unless it has it already. ConflictError: a partition was removed; a
    file placed there would create a folder that no listing shows as a partition. `is_final`: False before the section,
    whose own listing shows the size of each file."""
    partitions = _partitions(decision)
    list_ahead(table.storage, partitions)
    for partition in partitions:
        if partition and listed_if_there(table.storage, partition) is None:
            raise ConflictError(
                "a partition of this compaction is not there any more",
                path=f"{table.storage.base_path}/{partition}",
                instant=decision.instant,
                todo="Restore it. If it was removed on purpose, cancel the compaction: "
                f"{job_of(table, decision).undo}.",
            )
    # On a file system each file is checked. On an object store one listing answers for all: a file that was placed
    # since then is not replaced, and the staged one remains.
    storage = without_snapshot(table.storage) if table.storage.is_file_system else table.storage
    merging = threading.Lock()  # each merge takes the memory that the options allow
    threads = 1 if table.storage.is_file_system else AHEAD
    at_once(
        decision.placements,
        lambda placement: place(table, decision, placement, storage, merging, is_final=is_final),
        threads,
    )


def _check_publishable(table: Table, decision: CommitDecision) -> None:
    """TableChangedError, ConflictError: the decision cannot be published; its files have no final names then. Files
    must not keep final names: Hudi may execute the plan instead, and of two base files of one instant a reader may take
    either. The caller holds the table lock: without it another process may be completing the same decision."""
    job, family = job_of(table, decision), decided_instant(table, decision).family
    try:
        check_version(table, decision.table_version, decision.instant, not_published(job))
    except TableChangedError:
        if completed_compaction(table.snapshot(cached=False), decision.instant, family) is None:
            remove_placed(table, decision, keep=set())
        raise
    assessment = validity_of(table, decision)
    if assessment.validity is Validity.INVALID:
        revert_files(table, decision, assessment.why)
    refuse(table, job, assessment)
    if is_revoked(table.storage, decision.instant, decision.attempt):
        remove_placed(table, decision, keep=set())
        refuse_revoked(table, decision)


def place(
    table: Table,
    decision: CommitDecision,
    placement: Placement,
    storage: Storage | None = None,
    merging: AbstractContextManager[object] = _ALONE,
    *,
    is_final: bool = True,
) -> None:
    """Gives one file of a decision its final name, see `place_staged`. A file without a staged copy is merged again.

    `storage`: shows whether the file has its name; by default that of the table, which may be a snapshot. `merging`:
    entered while it is merged again. `is_final`: see `_place_all`."""

    def lost() -> str:
        now = table.snapshot(cached=False)  # the files before this one may have taken long to place
        refuse_revoked(now, decision)
        with merging:
            return job_of(now, decision).make_again(now, decision, placement)

    storage = storage or table.storage
    is_checked = is_final or storage.is_file_system
    place_staged(storage, placement.staged, placement.final, placement.size, lost, is_checked=is_checked)


def _check_ours(table: Table, done: Instant, decision: CommitDecision) -> None:
    """ConflictError: the completed commit is not the decided one. Files that only the decision names are removed then;
    not if that commit no longer exists: another process may have completed the decision since then."""
    if is_ours(table, done, decision):
        return
    table = table.snapshot()
    again = completed_compaction(table, decision.instant, decided_instant(table, decision).family)
    if again is not None and is_ours(table, again, decision):
        return
    if again is not None:
        remove_placed(table, decision, keep=named_files(table, again))
    raise ConflictError(
        f"another process completed this {job_of(table, decision).name} first",
        path=table.instant_path(done),
        instant=decision.instant,
        expected=decision.completed_path,
        found=table.instant_path(done),
        todo="Its result is valid. Run one kind of compactor per table.",
    )


def retire(table: Table, decision: CommitDecision, beats: Heartbeats | None = None) -> Table:
    """Places missing files again, then removes strays of the instant, staged data and the heartbeat. Returns its
    snapshot of the table, which shows the partitions of the decision. MissingFileError: the decision is not published.
    ConflictError: a rollback names the instant. `beats`: of this process; its file is removed with the rest."""
    table = table.snapshot(also=_partitions(decision))
    job, family = job_of(table, decision), decided_instant(table, decision).family
    done = completed_compaction(table, decision.instant, family)
    if done is None:
        raise MissingFileError(
            f"a decided {job.name} is not completed", path=decision.completed_path, instant=decision.instant
        )
    refuse_rollback(table, decision.instant)
    named = named_files(table, done)  # without file groups that were replaced before the compaction was published
    placements = [p for p in decision.placements if p.final in named]
    names = _data_names(table, {p.final.rpartition("/")[0] for p in placements})
    finals = [(p, *p.final.rpartition("/")[::2]) for p in placements]
    gone = any(parse_data_file(text) not in names[partition] for _, partition, text in finals)
    table = table.snapshot() if gone else table
    timeline = table.load_timeline()
    if gone and completed_compaction(table, decision.instant, family) is None:
        # The instant was archived since the check above. A file may not exist because its file group was replaced, and
        # that replace commit archived too.
        raise MissingFileError(
            f"a decided {job.name} is not completed any more", path=decision.completed_path, instant=decision.instant
        )
    replaced = table.facts.replaced_groups(timeline) if gone else {}
    for placement, partition, text in finals:
        # If the group has a newer base file, or is replaced, a cleaner may have removed this file, and it is not needed
        # any more. Placed again in a replaced group, it would become visible once the replace commit is archived.
        mine, bases = parse_data_file(text), [n for n in names[partition] if isinstance(n, BaseFileName)]
        later = [n for n in bases if mine is not None and n.file_id == mine.file_id and n.instant > decision.instant]
        newer = any(timeline.is_committed(n.instant) for n in later)
        is_replaced = mine is not None and (partition, mine.file_id) in replaced
        if not newer and (mine in names[partition] or not is_replaced):
            # By the snapshot that shows the completed commit: a file that was removed since then was removed together
            # with it.
            place(table, decision, placement)
    job.end(table, decision, done)
    remove_strays(table, done, _groups(table, decision))
    if beats is not None:
        beats.end()
    remove_staged(table.storage, decision.instant, [one.staged for one in decision.placements])
    if beats is not None:
        beats.is_removed = True
    return table


def _data_names(table: Table, partitions: Collection[str]) -> dict[str, list[BaseFileName | LogFileName]]:
    """The data files in these partitions; none for a partition that was removed."""
    list_ahead(table.storage, partitions)
    return {partition: [name for _, name in data_files(table, partition)] for partition in partitions}


def _groups(table: Table, decision: CommitDecision) -> frozenset[GroupKey]:
    """The file groups of the plan; if the plan was removed already, those of the decision."""
    try:
        return table.compaction_plan(decision.instant).groups
    except MissingFileError:
        return frozenset(placed_group(p.final) for p in decision.placements)


def remove_strays(table: Table, done: Instant, groups: Collection[GroupKey]) -> None:
    """Removes files of these file groups and of the instant that its commit does not name: a reader might take them.
    Files of other groups remain: a writer that takes no lock may have begun in the same millisecond. A log that carries
    a compaction's instant belongs to a write of version 6, on the phantom slice; a Hudi writer may have upgraded the
    table since. So logs are removed only if the instant is a log compaction, from version 8 on."""
    named = named_files(table, done)
    kind = BaseFileName if done.action == "commit" else LogFileName
    if kind is LogFileName and table.layout.slicing is Slicing.BY_BASE_INSTANT:
        return
    write = Instant(requested_time=done.requested_time, action="deltacommit", state=State.REQUESTED)
    begun = (table.storage.find(table.instant_path(write.at(state))) for state in (State.REQUESTED, State.INFLIGHT))
    if kind is LogFileName and any(begun):
        return  # a writer that takes no lock began in the same millisecond: its logs have the same form of name
    for partition, names in _data_names(table, {partition for partition, _ in groups}).items():
        for name in names:
            path = join(partition, str(name))
            is_of_plan = isinstance(name, kind) and (partition, name.file_id) in groups
            if is_of_plan and name.instant == done.requested_time and path not in named:
                table.storage.delete(path)


def remove_staged(storage: Storage, instant: str, elsewhere: Collection[str] = ()) -> None:
    """Removes what was staged for an instant, and its heartbeat. `elsewhere`: staged files of other folders, too."""
    own = staged_files(storage, instant, STAGED_ENDINGS)
    storage.delete_all([*sorted({*own, *elsewhere}), heartbeat_path(instant)])
