"""Compacts, cleans and archives the metadata table (the caller holds the data table's lock).

Compacting, as the plan fixes it: plan (requested) | inflight | removal of Hudi's files of this instant | base files |
the completed commit. Every step may be repeated: the content of a base file follows from the plan, and its name from
the plan's instant. So an existing base file of a dead process of phantombase is kept: a process that unknowingly lost
the lock must not remove what another one has completed since. Readers see no base file before the completed commit. The
inflight file is put before any base file: because of it Hudi removes the files of a dead process before it executes the
plan again.

Cleaning: plan (requested) | inflight | the files are deleted | the completed clean. Each file group retains its newest
two slices: the newest, and the one before it, which a reader may have listed. A clean waits, as Hudi's, until three
instants have completed after a compaction: until then readers open the files that they have listed. So a slice is
removed after two later compactions and three more instants. Every step may be repeated: a file that does not exist
counts as removed. File groups that a replace commit names are left alone, since Hudi gives the same names to an index
that it builds again. 0.15 retains commits where 1.2 retains two file versions.

Archiving: by the rules of any table (`archiving.choice`), with these cutoffs in addition:

    compaction    its own newest compaction, and what that does not hold, are kept: the data table's archiver reads the
                  compaction, and readers skip what it holds
    the table     nothing from the first write, or the first pending instant, of the data table's active timeline on:
                  Hudi's rollback of such a write checks whether the write is recorded here
    slices        8 and 9: instants with log files in a slice that no clean removed, since only the instants show which
                  slice; but not those that filled a partition, which are older than all base files there: a file group
                  without a later write always keeps its first slice
    rebuilt       a delta commit that filled a partition is kept until the compactions before it are archived too: it
                  shows that the base files of these are removed (`metadata_table.read`)

As in Hudi, archiving retains one instant more than the data table's does by default; `slices` and `rebuilt` are not in
Hudi. Source: HoodieBackedTableMetadataWriter of 0.15.0 and 1.2.0, HoodieTimelineArchiver of 0.15.0, TimelineArchiverV2
of 1.2.0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from phantombase.timeline.codec.avro_schema import without_meta_columns
from phantombase.timeline.errors import ConflictError, MissingFileError
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_metadata, encode_clean_plan
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, encode
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, encode_plan
from phantombase.timeline.format.file_name import COMPACTOR, BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.log_block import Visibility
from phantombase.timeline.instants.instant_files import StateFiles, load_state_files, of_instants
from phantombase.timeline.instants.timeline import UNKNOWN_COMPLETION, Timeline
from phantombase.timeline.locks.heartbeat import BEAT_S, heartbeat
from phantombase.timeline.metadata_table.commit import completion_above, newest_schema, put_alone, without_lock
from phantombase.timeline.metadata_table.read import Completeness, load_metadata_view, slice_entries
from phantombase.timeline.metadata_table.records.entries import encode_base, encoder
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL, refuse_uncompleted, valid_instants
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.in_progress import regardless
from phantombase.timeline.table.table import BUILD_AGAIN, Snapshot, Table, advising_rebuild, open_metadata_table
from phantombase.timeline.table.traces import data_files
from phantombase.timeline.view.log_blocks import visibility_of
from phantombase.timeline.view.view import DataFile, FileSlice, TableView

from ..archiving.archived_files import Archive, compact_history, remove_instants
from ..archiving.choice import ArchiveChoice, ArchiveCutoff, ArchiveFacts, ArchiveOptions
from ..archiving.choice import choose as choose_archived
from ..cleaning.choice import CleanFacts, CleanOptions, Policy, choose, held_files

_SAME = "works on the same compaction of the metadata table"
_TOKEN = f"0-0-{COMPACTOR}"


def request(metadata: Table, instant: str, plan: CompactionPlan) -> None:
    """Makes a plan visible. ConflictError: another process, without the lock, put one at this instant."""
    requested = Instant(requested_time=instant, action="compaction", state=State.REQUESTED)
    put_alone(metadata, requested, encode_plan(plan), _SAME)


def execute(table: Table, instant: str) -> CommitMetadata:
    """Executes the pending plan at `instant` of the metadata table of `table`: one of phantombase or of Hudi.
    MissingFileError: a file of the plan was removed. MalformedError, UnsupportedError: one cannot be read.
    ConflictError: another process works on it, without the lock."""
    data = table.with_timeline(table.load_timeline())
    metadata = open_metadata_table(table)
    timeline = metadata.timeline
    with advising_rebuild(metadata):
        plan = metadata.compaction_plan(instant)
    schema_text = newest_schema(metadata)
    refuse_uncompleted(data, metadata)
    valid, visibility = valid_instants(data, timeline), visibility_of(timeline)
    complete = Completeness(metadata, below=instant)
    # Without a heartbeat Hudi 1.2 treats a compaction here as dead.
    with heartbeat(regardless(metadata).storage, instant, BEAT_S):
        inflight = Instant(requested_time=instant, action="compaction", state=State.INFLIGHT)
        metadata.storage.put_if_absent(metadata.instant_path(inflight), b"")  # if it exists: of a dead process
        _remove_leftovers(metadata, instant, plan)
        stats: defaultdict[str, list[WriteStat]] = defaultdict(list)
        for operation in plan.operations:
            slice_ = _planned_slice(metadata, operation)
            if len(slice_.logs) > len(operation.delta_file_paths):
                _refuse_undecided(metadata, data.timeline, instant)
            written = _write(metadata, slice_, instant, schema_text, (visibility, valid), complete)
            stats[operation.partition_path].append(written)
        commit = CommitMetadata(
            partition_to_write_stats={partition: tuple(of) for partition, of in stats.items()},
            compacted=True,
            extra_metadata={"schema": without_meta_columns(schema_text)},
            operation_type="COMPACT",
        )
        completion = completion_above(table, metadata)
        done = Instant(requested_time=instant, action="commit", state=State.COMPLETED, completion_time=completion)
        put_alone(metadata, done, encode(commit, metadata.layout.encoding), _SAME)
    return commit


def _remove_leftovers(metadata: Table, instant: str, plan: CompactionPlan) -> None:
    """Removes base files of this instant that a dead Hudi process left; the plan is still pending."""
    for partition in sorted({operation.partition_path for operation in plan.operations}):
        for entry, name in data_files(metadata, partition):
            if isinstance(name, BaseFileName) and name.instant == instant and name.token != _TOKEN:
                metadata.storage.delete(f"{partition}/{entry.name}")


def _planned_slice(metadata: Table, operation: CompactionOperation) -> FileSlice:
    """The file slice that an operation names. MissingFileError: one of its files was removed. On version 6 with all log
    files that name its base instant: a process that unknowingly lost the lock may have put the plan after a delta
    commit unknown to it, and no reader would find again what the base file lacks."""
    partition = operation.partition_path
    sizes = {entry.name: entry.size for entry in metadata.storage.list(partition)}
    logs = {str(log): log for log in map(LogFileName.parse, operation.delta_file_paths)}
    if metadata.layout.slicing is Slicing.BY_BASE_INSTANT:
        of_slice = (operation.file_id, operation.base_instant_time)
        for name in filter(None, map(parse_data_file, sizes)):
            if isinstance(name, LogFileName) and (name.file_id, name.instant) == of_slice:
                logs[str(name)] = name

    def size(name: str) -> int:
        if name not in sizes:
            raise MissingFileError(
                "a file of a pending compaction of the metadata table is gone",
                path=f"{metadata.storage.base_path}/{partition}/{name}",
                todo=BUILD_AGAIN,
            )
        return sizes[name]

    base = operation.data_file_path
    return FileSlice(
        partition=partition,
        file_id=operation.file_id,
        base_instant=operation.base_instant_time or "",
        base=None if base is None else DataFile(partition=partition, name=BaseFileName.parse(base), size=size(base)),
        logs=tuple(
            DataFile(partition=partition, name=log, size=size(name))
            for name, log in sorted(logs.items(), key=lambda one: one[1].sort_key)
        ),
    )


def _refuse_undecided(metadata: Snapshot, data: Timeline, instant: str) -> None:
    """ConflictError: a log file that the plan does not name may be of a pending instant of the data table. If merged,
    its entries could not be removed any more; if left out, they would be lost."""
    done = {i.requested_time for i in metadata.timeline.completed}
    if undecided := sorted(i.requested_time for i in data.instants if not i.completed and i.requested_time in done):
        raise ConflictError(
            "a compaction of the metadata table waits for an instant of the table",
            path=metadata.storage.base_path,
            instant=instant,
            expected=f"{undecided[0]} completed or rolled back",
            found="pending",
            todo="The next write to the table completes it or rolls it back. Then run again.",
        )


def _write(
    metadata: Table,
    slice_: FileSlice,
    instant: str,
    schema_text: str,
    seen: tuple[Visibility, frozenset[str]],
    complete: Completeness,
) -> WriteStat:
    """Puts the base file of one slice. Memory: its entries."""
    encoded = encoder(schema_text)
    merged = slice_entries(metadata.storage, slice_, *seen, complete=complete)
    base = encode_base(map(encoded, merged), schema_text)
    content = base.data
    name = BaseFileName(file_id=slice_.file_id, token=_TOKEN, instant=instant, extension=".hfile")
    path = f"{slice_.partition}/{name}"
    if not metadata.storage.put_if_absent(path, content) and metadata.storage.read(path) != content:
        metadata.storage.delete(path)  # of a dead process with another schema or HFile layout
        # Also after the lock was lost meanwhile: the file may have been another process's, which needs it.
        if not regardless(metadata).storage.put_if_absent(path, content):
            raise without_lock(metadata, path, instant, _SAME)
    return WriteStat(
        file_id=slice_.file_id,
        path=path,
        prev_commit=slice_.base_instant,
        num_writes=base.count,
        num_update_writes=base.count,
        total_write_bytes=len(content),
        partition_path=slice_.partition,
        total_log_files_compacted=len(slice_.logs),
        total_log_size_compacted=slice_.log_bytes,
        file_size_in_bytes=len(content),
        prev_base_file=str(slice_.base.name) if slice_.base and metadata.layout.has_completion_times else None,
    )


OPTIONS = ArchiveOptions(min_instants=21, max_instants=31, commits_retained=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataArchived(Shown):
    """Instants of the metadata table that were archived, or would be. `why`: what stopped archiving here."""

    instants: tuple[str, ...] = ()
    why: str = ""


def archive_waits(data: Timeline, metadata: Timeline) -> str | None:
    """Why nothing is archived, by the two timelines alone; None: some instants may be archived (pure)."""
    count = len(metadata.completed)
    bound = OPTIONS.begins_above(count)
    if count <= bound:
        return f"{count} commits are completed, archiving begins above {bound}"
    cutoff, first = _active(data), metadata.completed[0].requested_time
    return cutoff.why if first >= cutoff.time else None


def archive_metadata(table: Table, *, dry_run: bool) -> MetadataArchived:
    """Archives what the rules allow; finishes what a dead process left. Errors as in archiving any table."""
    metadata, data = open_metadata_table(table), table.load_timeline()
    # The files are listed first: an instant that completes in between is still pending in the list.
    files, timeline = load_state_files(metadata.storage, metadata.config), metadata.load_timeline()
    if (waits := archive_waits(data, timeline)) is not None:
        return MetadataArchived(why=waits)
    archive = Archive(storage=metadata.storage, config=metadata.config, moment=table.times.moment)
    if not dry_run and (both := archive.held_already(timeline.instants)):
        _remove(metadata, files, both)
        files, timeline = load_state_files(metadata.storage, metadata.config), metadata.load_timeline()
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    choice = _choice(files, view.timeline, cutoffs(data, view), table.times.moment)
    going = tuple(i.requested_time for i in choice.archived)
    table.times.check_zone_of(choice.archived, data)
    if not dry_run and choice.archived:
        archive.write(choice.archived, timeline, files)
        _remove(metadata, files, choice.archived)
        if timeline.layout.has_completion_times:
            compact_history(metadata.storage, metadata.config, lambda: nullcontext(metadata.storage))
    return MetadataArchived(instants=going, why=choice.why)


def cutoffs(data: Timeline, view: TableView) -> tuple[ArchiveCutoff, ...]:
    """The cutoffs that the data table and the slices of the metadata table set (pure)."""
    active = _active(data)
    if not view.timeline.layout.has_completion_times:
        return (active,)
    logs = [
        log.name.instant
        for group in view.groups
        for slice_ in group.slices
        for log in slice_.logs
        if slice_ is group.slices[-1] or not log.name.instant.startswith(ARTIFICIAL)
    ]
    if not logs:
        return (active,)
    why = f"a slice that no clean removed has log files of {min(logs)}"
    return active, ArchiveCutoff(time=min(logs), why=why)


def shows_gone(timeline: Timeline, going: Collection[Instant]) -> bool:
    """Whether a compaction would be kept without the delta commit that shows its base files as removed (pure)."""
    filled = [timeline.completed_at(i) for i in going if i.requested_time.startswith(ARTIFICIAL)]
    stay = (i.requested_time for i in timeline.completed if i.action == "commit" and i not in going)
    first = min(stay, default=None)
    return first is not None and any(time > first for time in filled)


def _active(data: Timeline) -> ArchiveCutoff:
    """Where the data table's active timeline begins; "" if it is empty."""
    time = min((i.requested_time for i in data.instants if i.is_write or not i.completed), default="")
    return ArchiveCutoff(time=time, why=f"instant {time or 'none'} is the first on the table's active timeline")


def _choice(
    files: StateFiles, timeline: Timeline, further: tuple[ArchiveCutoff, ...], moment: Callable[[int], str]
) -> ArchiveChoice:
    compactions = [i.requested_time for i in timeline.completed if i.action == "commit"]
    facts = ArchiveFacts(
        metadata=True,
        metadata_compacted=max(compactions, default=None),
        doubled=files.doubled(),
        written=files.written(timeline.instants, moment),
        cutoffs=further,
    )
    choice = choose_archived(timeline, facts, OPTIONS)
    if timeline.layout.has_completion_times and shows_gone(timeline, choice.archived):
        why = "the compactions before an index was rebuilt stay"
        return ArchiveChoice(archived=(), kept=(*choice.archived, *choice.kept), why=why)
    return choice


def _remove(metadata: Table, files: StateFiles, instants: Sequence[Instant]) -> None:
    """Removes archived instants; those that filled a partition are removed last, see `shows_gone`."""
    for last in (False, True):
        some = [i for i in instants if i.requested_time.startswith(ARTIFICIAL) is last]
        if some:
            remove_instants(metadata.storage, of_instants(files, some))


CLEAN_SUFFIX = "002"
"""The suffix of the instant of a clean of the metadata table on version 6."""

_OPTIONS = CleanOptions(policy=Policy.VERSIONS, retain=2, floor_s=0)
_DIGITS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanDue:
    """A clean that removes something. `bytes`: of its files."""

    plan: CleanPlan
    bytes: int


def clean_instant(metadata: Timeline, new_time: Callable[[], str]) -> str | None:
    """The instant of a clean: a new one; on version 6 `<last delta commit>002`, None if that is not the newest."""
    if metadata.layout.has_completion_times:
        return new_time()
    last = max(i.requested_time for i in metadata.instants if i.action == "deltacommit" and i.completed)
    instant = last + CLEAN_SUFFIX
    usable = len(last) == _DIGITS and all(i.requested_time < instant for i in metadata.instants)
    return instant if usable else None


def clean_due(table: Table) -> CleanDue | None:
    """What a clean of the metadata table of `table` removes; None: nothing."""
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    kept = replace(view, groups=tuple(g for g in view.groups if g.key not in view.facts.replaced))
    choice = choose(kept, CleanFacts(hours_ago="", floor=UNKNOWN_COMPLETION), _OPTIONS)
    if not choice.gone:
        return None
    files: dict[str, tuple[str, ...]] = {}
    for one in choice.gone:
        files[one.partition] = (*files.get(one.partition, ()), *one.files)
    plan = CleanPlan(
        policy=_OPTIONS.policy.hudi_name, files=files, last_completed=max(view.timeline.completed_writes, default="")
    )
    return CleanDue(plan=plan, bytes=sum(one.bytes for one in choice.gone))


def pending_clean(metadata: Table, clean: Instant) -> CleanPlan:
    """The plan of a pending clean, of phantombase or Hudi. MalformedError: it cannot be read."""
    with advising_rebuild(metadata):
        return metadata.files.needed_plan(clean, decode_clean_plan)


def request_clean(metadata: Table, instant: str, plan: CleanPlan) -> Instant:
    """Makes a plan visible. ConflictError: another process, without the lock, put one at this instant."""
    clean = Instant(requested_time=instant, action="clean", state=State.REQUESTED)
    put_alone(metadata, clean, encode_clean_plan(plan, metadata.storage.base_path), "cleans the metadata table")
    return clean


def execute_clean(table: Table, clean: Instant, plan: CleanPlan) -> None:
    """Executes a pending clean, perhaps once more. ConflictError: its plan names files that readers need."""
    metadata, instant = open_metadata_table(table), clean.requested_time
    _refuse_needed(metadata, load_metadata_view(metadata, table.config.built_metadata_partitions), instant, plan)
    storage = metadata.storage
    content = b"" if metadata.layout.has_completion_times else encode_clean_plan(plan, storage.base_path)
    storage.put_if_absent(metadata.instant_path(clean.at(State.INFLIGHT)), content)
    for partition, names in plan.files.items():
        storage.delete_all([join(partition, name) for name in names])
    completion = completion_above(table, metadata)
    done = replace(clean.at(State.COMPLETED), completion_time=completion)
    storage.put_if_absent(metadata.instant_path(done), encode_clean_metadata(plan, instant, 0, frozenset()))


def _refuse_needed(metadata: Table, view: TableView, instant: str, plan: CleanPlan) -> None:
    needed = held_files(view, None)
    planned = (join(partition, name) for partition, names in plan.files.items() for name in names)
    if wrong := [path for path in planned if path in needed]:
        raise ConflictError(
            "a pending clean of the metadata table names files that readers need",
            path=f"{metadata.storage.base_path}/{wrong[0]}",
            instant=instant,
            found=f"{len(wrong)} of {plan.count} files",
            todo=f"Nothing was removed. {BUILD_AGAIN}",
        )
