"""From names to file slices: the file groups of a partition from its listing (pure).

A file that is missing, or is not as completed writes name it, is a flaw of its slice (`witness`). Files that completed
writes do not name are no files of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from ..format.file_name import PARTITION_METADATA, BaseFileName, LogFileName, parse_data_file
from ..format.layout import Slicing
from ..instants.timeline import UNKNOWN_COMPLETION, Timeline
from ..storage.contract import Entry
from .view import BaseFile, DataFile, FileGroup, FileSlice, GroupKey, LogFile, TableView, ViewFacts, latest_slice
from .witness import FileRecord, Flaw, Later, Marks, Names, named_instant, uncompleted


def file_groups(
    partition: str,
    entries: Iterable[Entry],
    timeline: Timeline,
    facts: ViewFacts,
    known: Collection[str] = (),
    as_of: str | None = None,
    brief: bool = False,
) -> tuple[FileGroup, ...]:
    """The file groups of one partition from its listing, by file id. `known`: groups known to be complete, whose files
    are not among the entries. `as_of`: files of the state as of an instant have flaws too, although later files replace
    them; no clean may have removed files of that state. Includes groups without listed files, if a completed write
    names files of them that are not superseded. A file that is not as it is named is a flaw of its slice. `brief`: for
    a partition without any files, only one of these groups, which is enough to stop a reader of the current state."""
    facts = _of_known_writes(facts, timeline)
    bases: defaultdict[str, list[BaseFile]] = defaultdict(list)
    logs: defaultdict[str, list[LogFile]] = defaultdict(list)
    changes: defaultdict[str, list[LogFile]] = defaultdict(list)
    for entry in entries:
        if entry.is_folder:
            continue
        name = parse_data_file(entry.name)
        if isinstance(name, BaseFileName):
            bases[name.file_id].append(DataFile(partition=partition, name=name, size=entry.size))
        elif isinstance(name, LogFileName):
            kept = changes if name.is_cdc else logs
            kept[name.file_id].append(DataFile(partition=partition, name=name, size=entry.size))
    is_alone = not bases and not logs and not known
    if is_alone and brief:
        one = replace(facts, witness=facts.witness.of_one_group(partition))
        for group in file_groups(partition, (), timeline, one, as_of=as_of):
            last = latest_slice(group)
            if last is not None and last.flaws:
                return (group,)
    named = {i for i in facts.ids_in(partition) if not facts.is_replaced((partition, i), as_of)} - set(known)
    if is_alone:
        named |= {file_id for path, file_id in facts.pending_plans if path == partition} - {
            file_id for path, file_id in facts.replaced if path == partition
        }
    there = bases.keys() | logs.keys()
    groups = (
        _file_group((partition, file_id), bases[file_id], logs[file_id], timeline, facts, as_of, is_alone=is_alone)
        for file_id in sorted(there | named)
        if (partition, file_id) not in facts.forming
    )
    found = (g for g in groups if g.slices or g.file_id in there)
    return tuple(_with_changes(g, changes) for g in found) if changes else tuple(found)


def strays(partition: str, entries: Iterable[Entry], timeline: Timeline, facts: ViewFacts) -> list[str]:
    """The names in a folder that are ignored: files of other attempts, and files that only look like data files."""
    facts, found = _of_known_writes(facts, timeline), list[str]()
    for entry in entries:
        name = None if entry.is_folder else parse_data_file(entry.name)
        if isinstance(name, LogFileName):
            log = DataFile(partition=partition, name=name, size=entry.size)
            mine = facts.witness.names((partition, name.file_id))
            marks = _marked(log, mine, timeline, facts).marks
            if not name.is_cdc and (_is_stray(log, mine, timeline, facts) or (marks is not None and marks.is_stray)):
                found.append(entry.name)
        elif name is not None:
            if name.instant in facts.witness.known and entry.name not in facts.witness.names((partition, name.file_id)):
                found.append(entry.name)
        elif not entry.is_folder and _looks_like_data(entry.name):
            found.append(entry.name)
    return found


def _of_known_writes(facts: ViewFacts, timeline: Timeline) -> ViewFacts:
    """Without the times that an archived write has, too: its files count by their names."""
    if not (shared := timeline.shared_with_archived):
        return facts
    return replace(facts, witness=replace(facts.witness, known=facts.witness.known - shared.keys()))


def may_share_time(partition: str, entries: Iterable[Entry], timeline: Timeline, facts: ViewFacts) -> bool:
    """Whether an archived write may have the time of the first active one: a file has it that no active write names.
    Archiving may end between two writes of one time, as a plan and a write without a lock may have."""
    start, named = timeline.start, facts.witness.names
    if start not in facts.witness.known:
        return False
    by_base, its_time = timeline.layout.slicing is Slicing.BY_BASE_INSTANT, f"_{start}."
    for entry in entries:
        if its_time not in entry.name or (name := parse_data_file(entry.name)) is None:
            continue
        is_of_start = name.instant == start and not (isinstance(name, LogFileName) and (by_base or name.is_cdc))
        if is_of_start and entry.name not in named((partition, name.file_id)):
            return True
    return False


def counted_by_name(now: TableView, witnessed: TableView) -> list[str]:
    """Paths of files whose rows count although no write names them. `witnessed`: the view with archived writes. They
    are of another attempt of an archived write, of a file group that an archived write replaced, or of an instant that
    is neither on the timeline nor in the archive: it was rolled back and a stalled process put its file, or archiving
    passed it before its files were removed. Hudi counts these files, too."""
    counted, named = _newest_files(now), _newest_files(witnessed)
    timeline = witnessed.timeline
    since = min((i.requested_time for i in timeline.archived if i.is_write), default=UNKNOWN_COMPLETION)
    known = timeline.completed_writes.keys() | timeline.pending_writes.keys()
    known |= {i.requested_time for i in timeline.archived}
    by_base = timeline.layout.slicing is Slicing.BY_BASE_INSTANT
    gone = (p for p, name in counted.items() if since <= name.instant and name.instant not in known)
    return sorted({*(counted.keys() - named.keys()), *(p for p in gone if not by_base or p.endswith(".parquet"))})


def _newest_files(view: TableView) -> dict[str, BaseFileName | LogFileName]:
    return {file.path: file.name for s in view.slices() for file in s.files}


def _looks_like_data(name: str) -> bool:
    if name.endswith(".crc") or name.startswith((PARTITION_METADATA, "_")):
        return False
    return ".log." in name if name.startswith(".") else name.endswith((".parquet", ".hfile"))


def _with_changes(group: FileGroup, changes: Mapping[str, Iterable[LogFile]]) -> FileGroup:
    """The group with its files of change data capture, which have the instant of the base file of the same write."""
    if group.file_id not in changes:
        return group
    of = defaultdict[str, list[LogFile]](list)
    for file in sorted(changes[group.file_id], key=lambda file: file.name.sort_key):
        of[file.name.instant].append(file)
    return replace(group, slices=tuple(replace(s, changes=tuple(of[s.base_instant])) for s in group.slices))


def _file_group(
    key: GroupKey,
    bases: list[BaseFile],
    logs: list[LogFile],
    timeline: Timeline,
    facts: ViewFacts,
    as_of: str | None,
    *,
    is_alone: bool,
) -> FileGroup:
    """One file group. Slices are formed including missing named files, since other files' slices depend on them."""
    if len(bases) == 1 and not logs and as_of is None and _is_all(key, bases[0], facts):
        slice_ = FileSlice(partition=key[0], file_id=key[1], base_instant=bases[0].name.instant, base=bases[0], logs=())
        return FileGroup(partition=key[0], file_id=key[1], slices=(slice_,))
    pending, names, below = facts.pending_plans.get(key), facts.witness.names(key), facts.witness.below_of(key)
    known = {**below, **names} if below else names
    is_replaced = facts.is_replaced(key, as_of)
    visible, flaws = _visible_bases(key, bases, names, below, timeline, facts, as_of)
    newest = max(visible if as_of is None else [i for i in visible if i <= as_of], default="")
    there = [_marked(log, names, timeline, facts) for log in logs if not _is_stray(log, names, timeline, facts)]
    gone = _gone_logs(key, there, known, newest, timeline) if known and not is_replaced else []
    ordered = sorted([*there, *gone], key=lambda log: log.name.sort_key)
    if timeline.layout.slicing is Slicing.BY_BASE_INSTANT:
        stacks = _slices_by_name(visible, ordered, pending, timeline, is_replaced=key in facts.replaced)
    else:
        stacks = _slices_by_completion(visible, ordered, pending, timeline, facts.witness.uncompleted)
    homeless = [] if is_replaced else _homeless(there, stacks, newest, timeline, as_of)
    slices = list[FileSlice]()
    for instant in sorted(stacks):
        base, mine = visible.get(instant), tuple([log for log in stacks[instant] if log.size != _GONE])
        # A clean may have removed files of slices below the newest base file.
        wrong = _flaws(base, stacks[instant], known, bases, logs) if instant >= newest else []
        if flaws or homeless:
            wrong = [f for f in (*flaws, *homeless) if f.instant == instant] + wrong
        if facts.witness.uncompleted:
            wrong += _uncompleted(visible.get(instant), stacks[instant], timeline, facts)
        if is_alone and instant == pending and not wrong and not slices:
            wrong = [_unknown(key, instant)]
        base = None if base is not None and base.size < 0 else base
        if base is not None or mine or wrong or instant == pending or instant in visible:
            shown = () if is_replaced else tuple(replace(f, is_alone=is_alone) for f in wrong)
            slices.append(
                FileSlice(partition=key[0], file_id=key[1], base_instant=instant, base=base, logs=mine, flaws=shown)
            )
    return FileGroup(partition=key[0], file_id=key[1], slices=tuple(slices), pending_compaction=pending)


def _is_all(key: GroupKey, base: BaseFile, facts: ViewFacts) -> bool:
    """Whether a base file is the only file that is known of its group, and as its write names it: the usual case."""
    witness, instant, text = facts.witness, base.name.instant, str(base.name)
    names = witness.names(key)
    return (
        len(names) == 1
        and instant in witness.known
        and all(write.size in (0, base.size) for write in names.get(text, _UNNAMED))
        and facts.compacted.get(key, {instant: text}) == {instant: text}
        and not (key in facts.pending_plans or facts.shared or witness.uncompleted)
        and not witness.below_of(key)
    )


_UNNAMED = (FileRecord(instant="", size=-1),)


def _homeless(
    there: Iterable[LogFile], stacks: Mapping[str, list[LogFile]], newest: str, timeline: Timeline, as_of: str | None
) -> list[Flaw]:
    """Version 6: log files that completed writes name, in no slice: the plan that opened their slice no longer exists.
    Each is a flaw of the slice below. A file group without it is of a resize that was rolled back."""
    if timeline.layout.slicing is not Slicing.BY_BASE_INSTANT:
        return []
    placed = {str(log.name) for logs in stacks.values() for log in logs}
    found = list[Flaw]()
    for log in there:
        opener, text = log.name.instant, str(log.name)
        below = max((instant for instant in stacks if instant < opener), default=None)
        if text in placed or log.marks is None or not log.marks.writes or below is None:
            continue
        if newest < opener <= (as_of or opener) and opener not in timeline.pending_writes:
            found.append(Flaw(path=log.path, instant=below, expected=0, found=log.size, is_base=False, opener=opener))
    return found


def _uncompleted(
    base: BaseFile | None, logs: Iterable[LogFile], timeline: Timeline, facts: ViewFacts
) -> Iterator[Flaw]:
    """Files of writes whose completed files are lost; on version 6 only the blocks of a log file show its writes."""
    lost = facts.witness.uncompleted
    if base is not None and base.name.instant in lost:
        yield uncompleted(base.path, base.name.instant, base.size, lost, is_base=True)
    if lost and timeline.layout.slicing is Slicing.BY_COMPLETION_TIME:
        mine = (log for log in logs if log.name.instant in lost)
        yield from (uncompleted(log.path, log.name.instant, log.size, lost) for log in mine)


def _unknown(key: GroupKey, plan: str) -> Flaw:
    """The flaw of a file group without any files that a pending compaction must merge and no active write names."""
    return Flaw(path="/".join(key), instant=plan, expected=0, found=None, is_base=True)


_GONE = -1
"""The size of a missing file."""


def _gone_logs(key: GroupKey, there: Iterable[LogFile], names: Names, newest: str, timeline: Timeline) -> list[LogFile]:
    """Log files that completed writes name and that are not listed. `newest`: the newest base file's instant. In a
    table upgraded from version 6, a name does not show the slice if its instant is archived: a log file whose writes
    completed before the newest base file was requested is then of no slice that counts."""
    listed = {str(log.name) for log in there}
    found = []
    for text, writes in names.items():
        if text.startswith(".") and text not in listed:
            name = LogFileName.parse(text)
            by_name = timeline.layout.slicing is Slicing.BY_BASE_INSTANT or name.instant in timeline.completed_writes
            done = max(timeline.completion_time(w.instant) or "" for w in writes)
            if by_name or done >= newest:
                found.append(DataFile(partition=key[0], name=name, size=_GONE))
    return found


def _is_stray(log: LogFile, names: Names, timeline: Timeline, facts: ViewFacts) -> bool:
    """Versions 8 and 9: whether the delta commit in the name of a log file is known, and does not name it. The names of
    version 6, also in upgraded tables, have another instant. Those of new hashing buckets are named after the
    resize."""
    instant = log.name.instant
    if timeline.layout.slicing is Slicing.BY_BASE_INSTANT or instant not in facts.witness.known:
        return False
    write = timeline.completed_writes.get(instant)
    if write is None or write.family != "deltacommit" or write.completion_time is None:
        return False
    return str(log.name) not in names


def _marked(log: LogFile, names: Names, timeline: Timeline, facts: ViewFacts) -> LogFile:
    witness = facts.witness
    if not witness.known:
        return log
    if writes := names.get(str(log.name), ()) if names else ():
        marks = Marks(known=witness.known, writes=writes, is_stray=False, uncompleted=witness.uncompleted)
    # Every write to a slice is later than its base, unless archived ones may be later than the start.
    elif not timeline.may_be_archived_later and log.name.instant in witness.known and not witness.unread:
        marks = replace(witness.unnamed, is_stray=True)
    else:
        marks = witness.unnamed
    return DataFile(partition=log.partition, name=log.name, size=log.size, marks=marks)


def _flaws(
    base: BaseFile | None, logs: Iterable[LogFile], names: Names, bases: Iterable[BaseFile], others: Iterable[LogFile]
) -> list[Flaw]:
    found = list[Flaw]()
    if not names and (base is None or base.size != _GONE):
        return found
    files: list[BaseFile | LogFile] = [*([base] if base is not None else []), *logs]
    for file in files:
        written = names.get(str(file.name), ())
        size = max((w.size for w in written), default=0)
        is_base = isinstance(file.name, BaseFileName)
        if file.size == _GONE or (file.size != size if is_base else file.size < size) * (size > 0):
            like: Iterable[BaseFile | LogFile] = bases if is_base else others
            found.append(
                Flaw(
                    path=file.path,
                    instant=max((w.instant for w in written), default=file.name.instant),
                    expected=size,
                    found=None if file.size == _GONE else file.size,
                    is_base=is_base,
                    rows=max((w.rows for w in written), default=0),
                    whole=tuple(str(o.name) for o in like if o.size == size > 0 and _is_twin(o, file)),
                )
            )
    return found


def _is_twin(one: BaseFile | LogFile, other: BaseFile | LogFile) -> bool:
    """Whether two files of a group differ only in the write token, as attempts of one task do."""
    a, b = one.name, other.name
    if isinstance(a, LogFileName) and isinstance(b, LogFileName) and a.version != b.version:
        return False
    return a != b and a.instant == b.instant


def _visible_bases(
    key: GroupKey,
    bases: list[BaseFile],
    names: Names,
    below: Names,
    timeline: Timeline,
    facts: ViewFacts,
    as_of: str | None,
) -> tuple[dict[str, BaseFile], list[Flaw]]:
    """Base files of committed instants, by instant. A base file of a pending compaction is never visible. The newest
    named base file is included even if it is missing, and so is the newest as of an instant. The flaws: instants with
    two base files of which the valid one is unknown."""
    compacted, pending, known = facts.compacted.get(key, {}), facts.pending_plans.get(key), facts.witness.known
    visible: dict[str, BaseFile] = {}
    flaws = list[Flaw]()
    for base in bases:
        instant = base.name.instant
        # The commit names the valid file of a compaction, and does not name stray files of other attempts. A writer's
        # instant of the same time does not matter for a group that is in the plan.
        named = compacted.get(instant)
        if instant in facts.shared:
            if base.path not in facts.shared[instant]:
                continue
        elif named is not None:
            if named != str(base.name):
                continue
        elif instant in known:
            if str(base.name) not in names:
                continue
        elif instant not in facts.witness.uncompleted and (instant == pending or not timeline.is_committed(instant)):
            continue
        if instant in visible:
            other = str(visible[instant].name)
            flaws.append(Flaw(path=base.path, instant=instant, expected=0, found=base.size, is_base=True, second=other))
            continue
        visible[instant] = base
    if facts.is_replaced(key, as_of) or not (names or below or compacted):
        return visible, flaws
    lower = {named_instant(text): text for text in below if not text.startswith(".")}
    named_bases = {instant: text for instant, text in lower.items() if timeline.is_committed(instant)}
    named_bases |= {named_instant(text): text for text in names if not text.startswith(".")}
    named_bases |= compacted
    for last in dict.fromkeys((None, as_of)):
        instant = max([t for t in named_bases if last is None or t <= last], default="")
        newest = max([t for t in visible if last is None or t <= last], default="")
        if instant > newest and instant != pending:
            name = BaseFileName.parse(named_bases[instant])
            visible[instant] = DataFile(partition=key[0], name=name, size=_GONE)
    return visible, flaws


def _slices_by_name(
    bases: Mapping[str, BaseFile], logs: list[LogFile], pending: str | None, timeline: Timeline, *, is_replaced: bool
) -> dict[str, list[LogFile]]:
    """Version 6: a log's name contains the base instant of its slice. A slice counts if its base instant is committed
    or is the instant of the pending compaction. Without a base file it is a log-only slice, opened by the delta commit
    in its name. A completed compaction opens no slice without a base file: it left out this file group, which was
    replaced when it completed, and the logs belong to the slice below. This matters if the replacing write is not
    visible, as in a read as of an earlier instant. If the compaction is archived, a slice below shows that it was one:
    a writer opens a log-only slice only in a new file group."""
    stacks: dict[str, list[LogFile]] = {instant: [] for instant in bases}
    if pending is not None:
        stacks.setdefault(pending, [])
    for log in logs:
        instant = log.name.instant
        write = timeline.completed_writes.get(instant)
        left_out = is_replaced and timeline.is_committed(instant) if write is None else write.action == "commit"
        if instant not in stacks and left_out:
            instant = max((time for time in stacks if time < instant), default=instant)
        if instant in stacks or timeline.is_committed(instant):
            stacks.setdefault(instant, []).append(log)
    return stacks


def _slices_by_completion(
    bases: Mapping[str, BaseFile],
    logs: list[LogFile],
    pending: str | None,
    timeline: Timeline,
    uncompleted: Mapping[str, Later],
) -> dict[str, list[LogFile]]:
    """Versions 8 and 9: a log belongs to the newest base requested before its delta commit completed. Logs of delta
    commits that are not completed are dropped. `uncompleted` delta commits had completed before the instant that shows
    this: their logs are flaws of the newest base before that. A log older than every base opens its own slice."""
    stacks: dict[str, list[LogFile]] = {instant: [] for instant in bases}
    if pending is not None:
        stacks.setdefault(pending, [])
    for log in logs:
        completion, later = _completion_time(log, timeline, pending), uncompleted.get(log.name.instant)
        if completion is not None:
            at_most = [instant for instant in stacks if instant <= completion]
        elif later is not None:
            at_most = [instant for instant in stacks if instant < later.instant]
        else:
            continue
        home = max(at_most, default=log.name.instant)
        stacks.setdefault(home, []).append(log)
    return stacks


def _completion_time(log: LogFile, timeline: Timeline, plan: str | None) -> str | None:
    """When the write of a log file completed. A version 6 log on a pending compaction is named after it; an upgrade
    keeps both, and Hudi 1.2.0 does not see the log's rows until the compaction is completed. Its write names it."""
    if log.name.instant == plan and log.marks is not None:
        return max((timeline.completion_time(w.instant) or "" for w in log.marks.writes), default=None)
    return timeline.completion_time(log.name.instant)
