"""Lists what may be an orphan, and gathers what names it: timeline, archive, plans, records of processes.

Files are listed before the timeline is loaded: a write is on the timeline before it makes a file. So a file whose
instant is not on it belongs to a write that was undone, even if its process is still alive. A record that cannot be
read may name any file: it is an error, or keeps the files of its instant."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from phantombase.timeline.codec.avro_container import MAGIC, any_record
from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError
from phantombase.timeline.format.file_name import PARTITION_METADATA, BaseFileName, LogFileName, parse_data_file
from phantombase.timeline.format.instant import SERVICES, State, is_time
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, scan_blocks
from phantombase.timeline.instants.instant_files import StateFile, Torn, load_state_files
from phantombase.timeline.instants.reserved_times import COMMITTED, recorded_instants
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import heartbeat_path, read_heartbeat
from phantombase.timeline.metadata_table.records.keys import FILES
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.pins import all_pins
from phantombase.timeline.storage.contract import Entry, Storage, listed_if_there
from phantombase.timeline.storage.folders import HEARTBEATS, HOODIE, RECORDS, ROWS, TEMPORARY, WRITES, join
from phantombase.timeline.table.in_progress import pending_rollbacks, refuse_in_progress
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.table.traces import list_markers
from phantombase.timeline.view.facts import is_consistently_hashed
from phantombase.timeline.view.view_loader import folders

from ..attempt.outcome import is_revoked, read_outcomes
from .orphan_choice import Item, OrphanFacts, OrphanKind, why_blocks, why_by_time, why_pinned, why_young

_MARKERS = f"{HOODIE}/.temp"
_PLANNED = frozenset((*SERVICES, "replacecommit", "clean", "rollback", "restore", "indexing"))
"""Actions whose requested file has a plan: an empty one is torn."""
_OURS = (PARTITION_METADATA, f".{PARTITION_METADATA}")
_TOKEN = re.compile(r"\d+-\d+-\d+")
_OF_ROWS = re.compile(r"\d+-[0-9a-f.-]+")
_TIMED = re.compile(r"\d+")
_TEMPORARY_NAME = re.compile(r"(clock-|probe-)?[0-9a-f]{32}(\.[a-z]+)?")


def list_items(table: Snapshot) -> tuple[list[Item], list[str]]:
    """What may be an orphan, and the paths of foreign files among data files, staged files and markers. Data files of
    completed writes of `timeline` are left out: it is loaded first, since the listings stay in a snapshot, and who
    reads them again would miss files of a write that completed after them."""
    items, foreign, timeline = list[Item](), list[str](), table.timeline
    for folder, entries in folders(table.storage, "", _is_other_table):
        if _is_other_table(folder, entries):
            foreign.append(folder)
            continue
        for entry in entries:
            if entry.is_folder or entry.name.endswith(".crc") or entry.name.startswith(_OURS):
                continue
            path, name = join(folder, entry.name), data_file(entry.name)
            if name is None:
                foreign.append(path)
            elif not timeline.is_committed(name.instant):
                kind = OrphanKind.LOG if isinstance(name, LogFileName) else OrphanKind.BASE
                items.append(_item(path, kind, name.instant, [entry], group=(folder, name.file_id)))
    for kind, parent in ((OrphanKind.STAGED, WRITES), (OrphanKind.MARKERS, _MARKERS), (OrphanKind.ROWS, ROWS)):
        below = defaultdict[str, list[Entry]](list)
        for path, entry in table.storage.list_below(parent):
            below[path.partition("/")[0] if "/" in path else ""].append(entry)
        for first, inside in below.items():
            if first.isdigit():
                items.append(_item(f"{parent}/{first}", kind, first, inside))
            elif kind is OrphanKind.ROWS and _OF_ROWS.fullmatch(first):
                items.append(_item(f"{parent}/{first}", kind, "", inside))
            else:
                foreign.append(f"{parent}/{first or inside[0].name}")
    for entry in listed_if_there(table.storage, HEARTBEATS) or ():
        if not entry.is_folder and entry.name.isdigit():
            items.append(_item(heartbeat_path(entry.name), OrphanKind.HEARTBEAT, entry.name, [entry]))
    for entry in listed_if_there(table.storage, TEMPORARY) or ():
        if not entry.is_folder and _TEMPORARY_NAME.fullmatch(entry.name):
            items.append(_item(f"{TEMPORARY}/{entry.name}", OrphanKind.TEMPORARY, "", [entry]))
    return items, foreign


def _is_other_table(folder: str, entries: Collection[Entry]) -> bool:
    """Whether a folder is a table in a folder of this one: its instants are not on this timeline."""
    return bool(folder) and any(e.is_folder and e.name == HOODIE for e in entries)


def data_file(name: str) -> BaseFileName | LogFileName | None:
    """The name of a data file as Hudi and phantombase write it; `daily_report_2026.parquet` is foreign."""
    found = parse_data_file(name)
    if found is None or not is_time(found.instant):
        return None
    return found if found.token is None or _TOKEN.fullmatch(found.token) else None


def _item(
    path: str, kind: OrphanKind, instant: str, entries: Sequence[Entry], group: tuple[str, str] | None = None
) -> Item:
    return Item(
        path=path,
        kind=kind,
        instant=instant,
        bytes=sum(e.size for e in entries),
        modified_ms=max(e.modified_ms for e in entries),
        files=len(entries),
        group=group,
    )


def found_again(storage: Storage, item: Item) -> Item | None:
    """An item as it is now; None: it is gone."""
    if item.is_folder:
        entries = [entry for _, entry in storage.list_below(item.path)]
    else:
        entry = storage.find(item.path)
        entries = [] if entry is None or entry.is_folder else [entry]
    return _item(item.path, item.kind, item.instant, entries, item.group) if entries else None


def upload_item(path: str) -> Item | None:
    """An unfinished upload, of a data file, a staged file or another record, as an item; None: it is of another kind.
    An age is not in it: the store knows it."""
    folder, _, text = path.rpartition("/")
    if path.startswith(f"{RECORDS}/"):
        first = path.removeprefix(f"{WRITES}/").removeprefix(f"{RECORDS}/").partition("/")[0]
        if first.isdigit():  # of a write, or of an attempt at a compaction
            return Item(path=folder, kind=OrphanKind.STAGED, instant=first, bytes=0, modified_ms=0)
        return Item(path=path, kind=OrphanKind.TEMPORARY, instant="", bytes=0, modified_ms=0)
    name = data_file(text)
    if name is None:
        return None
    kind = OrphanKind.LOG if isinstance(name, LogFileName) else OrphanKind.BASE
    return Item(path=path, kind=kind, instant=name.instant, bytes=0, modified_ms=0, group=(folder, name.file_id))


def newest_time(timeline: Timeline) -> str:
    """The greatest time in use; "" on an empty timeline."""
    return max(timeline.used_times(), default="")


def gather(seen: Snapshot, items: Sequence[Item], newest: str, older_s: float, now_ms: int) -> OrphanFacts:
    """The facts about these items. Little is read where none of them may be an orphan. `seen`: loaded after they were
    listed. `newest`: see `OrphanFacts`. `now_ms`: by the clock of the storage. ConflictError: see `refuse_in_progress`;
    or a plan of a rollback cannot be read. MalformedError, MissingFileError, UnknownStateError: a record, or the
    archive, cannot be read: it may name any file."""
    refuse_in_progress(seen)
    facts = OrphanFacts(timeline=seen.timeline, newest=newest)
    if not _left(items, facts, older_s, now_ms):
        return facts
    seen = seen.with_timeline(timeline := seen.with_archive(seen.timeline))
    facts = replace(facts, timeline=timeline, archived=frozenset(i.requested_time for i in timeline.archived))
    if not (left := _left(items, facts, older_s, now_ms)):
        return facts
    times = {item.instant for item in left if item.instant}
    facts = replace(facts, processes=dict(_processes(seen, times, older_s, now_ms)))
    if not (left := [i for i in _left(items, facts, older_s, now_ms) if i.kind.is_data]):
        return facts
    wanted = {item.name for item in left} | {item.instant for item in left}
    named = dict(_named(seen, wanted, older_s, now_ms))
    blocks = dict(_blocks(seen, facts, [i for i in left if i.name not in named and i.instant not in named]))
    return replace(facts, named=named, blocks=blocks)


def _left(items: Sequence[Item], facts: OrphanFacts, older_s: float, now_ms: int) -> list[Item]:
    return [i for i in items if why_young(i, older_s, now_ms) is None and why_by_time(i, facts) is None]


def _processes(table: Snapshot, times: Collection[str], older_s: float, now_ms: int) -> Iterator[tuple[str, str]]:
    """(instant, why a process may need its files), of these instants."""
    storage = table.storage
    for rollback in pending_rollbacks(table):
        if isinstance(rollback, Torn):
            raise ConflictError(
                "the plan of a rollback cannot be read: it may name any file",
                path=rollback.path,
                instant=rollback.time,
                todo=rollback.todo,
            )
        yield rollback.target, f"rollback {rollback.instant} of it is pending: let it be finished first"
    moments = frozenset(table.timeline.moment_of(write) for write in table.timeline.completed_writes.values())
    pins = [pin for pin in all_pins(storage) if pin.is_live(now_ms)]
    recorded = set(recorded_instants(storage))
    folders_there = {e.name for e in listed_if_there(storage, _MARKERS) or () if e.is_folder}
    shown = set(_shown(table))
    for time in sorted(times):
        if time in shown and not table.timeline.at(time):
            yield time, "a file of the timeline has its time, of an action that this release does not know"
        if (why := why_pinned(time, pins, moments)) is not None:
            yield time, why
        beat = read_heartbeat(storage, time)
        if beat is not None and not beat.owner_gone and now_ms - beat.beat_ms <= older_s * 1000:
            yield time, f"its heartbeat is {(now_ms - beat.beat_ms) / 1000:,.0f} s old"
        if time in recorded and (why := _undecided(storage, time)) is not None:
            yield time, why
        if time in folders_there and _is_young(storage, time, older_s, now_ms):
            yield time, "its markers are younger than --older-than"


def _shown(table: Table) -> Iterator[str]:
    """The times with which names of files in the folders of the timeline begin, whatever their action is."""
    for folder in {HOODIE, table.config.timeline_folder}:
        for entry in listed_if_there(table.storage, folder) or ():
            if not entry.is_folder and (match := _TIMED.match(entry.name)) is not None:
                yield match[0]


def _undecided(storage: Storage, time: str) -> str | None:
    """Why attempts at a compaction may place files of it: an attempt is open, decided, or its outcome is unknown."""
    try:
        outcomes = read_outcomes(storage, time)
    except MalformedError as error:
        return f"the outcome of an attempt at it cannot be read, {error.path}"
    for number, outcome in outcomes.items():
        if outcome is None:
            return f"attempt {number} at it is open"
        if outcome.kind == COMMITTED and not is_revoked(storage, time, number):
            return f"attempt {number} at it decided to commit"
    return None


def _is_young(storage: Storage, time: str, older_s: float, now_ms: int) -> bool:
    entries = [entry for _, entry in storage.list_below(f"{_MARKERS}/{time}")]
    return any(now_ms - entry.modified_ms <= older_s * 1000 for entry in entries)


def _named(table: Snapshot, names: Set[str], older_s: float, now_ms: int) -> Iterator[tuple[str, str]]:
    """(file name or instant, what names it), of these."""
    for file, found in prefetched(_naming(table), lambda file: (file, _names_in(table.storage, file))):
        yield from ((name, f"{file.path} names it") for name in found & names)
    for entry in listed_if_there(table.storage, _MARKERS) or ():
        time = entry.name
        if entry.is_folder and time.isdigit():
            at = table.timeline.at(time)
            may_write = any(not i.completed for i in at) or _is_young(table.storage, time, older_s, now_ms)
            for marker in list_markers(table.storage, time) if may_write else ():
                if marker.file in names:
                    yield marker.file, f"a marker of instant {time} names it"
    if FILES in table.config.built_metadata_partitions:
        from phantombase.timeline.metadata_table.read import read_files  # late: it takes pyarrow

        listed = read_files(table)
        for partition in (listed.partitions, listed.unnamed):
            for files in partition.values():
                yield from ((name, "the metadata table lists it") for name in files.keys() & names)


def _naming(table: Snapshot) -> Iterator[StateFile]:
    """The files of the timeline that may name files in use: of pending instants, completed writes and savepoints.
    Completed cleans, rollbacks and restores name what they removed."""
    pending = {i.identity: i for i in table.timeline.instants if not i.completed}
    for identity, files in load_state_files(table.storage, table.config).of.items():
        one = pending.get(identity)
        if one is not None and one.action in _PLANNED and files[0].instant.state is not State.REQUESTED:
            raise MissingFileError(
                f"the plan of a {one.action} is gone: it may have named any file",
                path=table.instant_path(one.at(State.REQUESTED)),
                instant=one.requested_time,
                todo="Restore it from a copy, or undo the action.",
            )
        for file in files:
            done = file.instant.is_write or file.instant.action == "savepoint"
            if done if file.instant.completed else identity in pending:
                yield file


def _names_in(storage: Storage, file: StateFile) -> frozenset[str]:
    """The last part of every string in a file of the timeline, whatever its record is. MalformedError: unreadable."""
    data, instant = storage.read(file.path), file.instant
    is_plan = instant.state is State.REQUESTED
    try:
        if not data and not (instant.action == "savepoint" or (instant.action in _PLANNED and is_plan)):
            return frozenset()
        record = any_record(data, file.path) if data.startswith(MAGIC) else json.loads(data)
        return frozenset(text.rpartition("/")[2] for text in _texts(record))
    except (ValueError, RecursionError, MalformedError) as error:
        raise MalformedError(
            f"a file of a {instant.action} cannot be read: it may name any file",
            path=file.path,
            instant=instant.requested_time,
            found=f"{len(data)} bytes, {error}",
            todo="Its process may still be writing it. Otherwise restore it from a copy, or undo the action: "
            "`timeline validate TABLE` shows what is wrong with the table.",
        ) from error


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _blocks(table: Table, facts: OrphanFacts, items: Sequence[Item]) -> Iterator[tuple[str, str]]:
    """(path of a log file, why its blocks keep it). Where names show the writer of a log file no block is read. On
    version 6 several writes append to one log file, so it stays while any write is pending; compactions append to none.
    Log files of buckets that a resize makes are named after the resize, and hold blocks of the writes that go on
    meanwhile."""
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    if not by_base and not table.config.may_have_upgraded_logs and not is_consistently_hashed(table.storage):
        return
    pending = facts.timeline.pending_writes.values()
    writing = next((i.requested_time for i in pending if i.action != "compaction"), None) if by_base else None
    for item in (i for i in items if i.kind is OrphanKind.LOG):
        if writing is not None:
            yield item.path, f"write {writing} is pending, and may append to it"
        elif (why := why_blocks(_instants_in(table, item.path), facts)) is not None:
            yield item.path, why


def _instants_in(table: Table, path: str) -> Iterator[str | None]:
    for block in scan_blocks(table.storage.open_input(path), path):
        if block.kind is BlockKind.CORRUPT:
            yield None
        elif block.kind is not BlockKind.COMMAND:
            yield block.headers.get(HeaderKey.INSTANT_TIME)
