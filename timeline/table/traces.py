"""Traces of a pending write in a table: markers, data files, log blocks; how they are found and revoked.

Markers name the files that a pending instant may have made. Hudi's rollback reads them.

    direct           .hoodie/.temp/<t>/<partition>/<file name>.marker.<CREATE|MERGE|APPEND>, empty files
    timeline server  .hoodie/.temp/<t>/MARKERS.type (text) and MARKERS0, MARKERS1, ...: the same paths, one a line

A marker is made before its file and removed after the instant is completed or rolled back. Base files have CREATE or
MERGE; log files have APPEND on version 6 and CREATE on versions 8 and 9, where each delta commit has its own log files.
Blocks that a pending instant appended on version 6 are revoked by command blocks, since their log file is shared.

What processes that ended or died have left is removed too: staged files and markers of writes, and heartbeats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import ConflictError, MalformedError, MissingFileError, UnsupportedError
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..format.instant import Instant, State
from ..format.layout import Layout, Slicing
from ..format.log_block import BlockKind, HeaderKey, scan_blocks
from ..format.rollback_plan import RevokedSlice, RollbackPlan
from ..instants.instant_files import StateFile, load_state_files
from ..locks.heartbeat import heartbeat_path, is_live, read_heartbeat
from ..storage.contract import Entry, Storage
from ..storage.folders import WRITES, inside_table, join, marker_folder, staged_folder
from .in_progress import clustering_in_rollback, completed_rollback_of
from .table import Table

_MARKER = re.compile(r"(?:(?P<partition>.+)/)?(?P<file>[^/]+)\.marker\.(?P<kind>CREATE|MERGE|APPEND)")
TYPE_FILE = "MARKERS.type"
"""The file that names the form of the markers in its folder."""
TIMELINE_SERVER = "TIMELINE_SERVER_BASED"
"""Its content if a timeline server writes the markers."""
_LISTS = re.compile(r"MARKERS\d+")


class MarkerKind(Enum):
    CREATE = "CREATE"
    MERGE = "MERGE"
    APPEND = "APPEND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One marked file: its partition ("" in a non-partitioned table), its name, and what the write does with it."""

    partition: str
    file: str
    kind: MarkerKind

    @property
    def path(self) -> str:
        return join(self.partition, self.file)

    @property
    def text(self) -> str:
        """The marker's path below the marker folder: inverse of `parse`."""
        return f"{self.path}.marker.{self.kind.value}"

    @staticmethod
    def parse(text: str, where: str) -> Marker:
        """The marker of a path below the marker folder. MalformedError: not a marker; the error names `where`."""
        match = _MARKER.fullmatch(text)
        if match is None or not inside_table(text):
            raise MalformedError(
                "not a write marker",
                path=where,
                expected="[<partition>/]<file>.marker.<CREATE|MERGE|APPEND>",
                found=repr(text),
                todo="If it is not Hudi's, remove it: with it, the files of a pending write cannot be determined.",
            )
        return Marker(partition=match["partition"] or "", file=match["file"], kind=MarkerKind(match["kind"]))


def log_marker_kind(layout: Layout) -> MarkerKind:
    return MarkerKind.APPEND if layout.slicing is Slicing.BY_BASE_INSTANT else MarkerKind.CREATE


def make_marker(storage: Storage, instant: str, marker: Marker) -> None:
    """Creates a direct marker, unless it exists already."""
    storage.put_if_absent(f"{marker_folder(instant)}/{marker.text}", b"")


def list_markers(storage: Storage, instant: str) -> list[Marker]:
    """Every marker of an instant. MalformedError: other files. UnsupportedError: a later marker type."""
    return sorted(set(_markers(storage, marker_folder(instant))), key=lambda m: (m.path, m.kind.value))


def _markers(storage: Storage, folder: str) -> Iterator[Marker]:
    for path, entry in storage.list_below(folder):
        where = f"{folder}/{path}"
        if entry.name.endswith(".crc"):
            continue
        if path == TYPE_FILE:
            kind = storage.read(where).decode(errors="replace").strip()
            if kind not in ("", TIMELINE_SERVER):  # empty: its writer was killed while it wrote the file
                raise UnsupportedError("unknown type of write markers", path=where, found=kind)
        elif _LISTS.fullmatch(path):
            lines = storage.read(where).decode(errors="replace").splitlines()
            yield from (Marker.parse(line, where) for line in lines if line)
        else:
            yield Marker.parse(path, where)


def delete_markers(storage: Storage, instant: str) -> None:
    storage.delete_folder(marker_folder(instant))


_TOKEN = "1-0-1"  # as in Hudi's own command blocks
_TRIES = 20


def revoke(table: Table, slice_: RevokedSlice, target: str) -> tuple[tuple[str, str], int] | None:
    """Puts a command block after the revoked log files of a slice, once; returns its file and that file's size (bytes).
    None if the slice has no log file any more. ConflictError: other processes used the file name at each try. The
    block's own instant is its target. Hudi uses the rollback's instant, which is greater than those of writes that ran
    concurrently: Hudi 0.15 stops reading a slice there and hides their rows (hudi-format.md 6.2)."""
    for _ in range(_TRIES):
        logs = [
            (name, entry.size)
            for entry, name in data_files(table, slice_.partition)
            if isinstance(name, LogFileName) and (name.file_id, name.instant) == (slice_.file_id, slice_.base_instant)
        ]
        if not logs:
            return None
        behind = max((n.version for n, _ in logs if str(n) in slice_.logs), default=0)
        for name, size in logs:
            if name.version > behind and revokes(table, join(slice_.partition, str(name)), target):
                return (slice_.partition, str(name)), size
        version = max(name.version for name, _ in logs) + 1
        made = LogFileName(file_id=slice_.file_id, instant=slice_.base_instant, version=version, token=_TOKEN)
        from ..format.log_encode import rollback_block  # late: it takes pyarrow

        block = rollback_block(target, target)
        if table.storage.put_if_absent(join(slice_.partition, str(made)), block):
            return (slice_.partition, str(made)), len(block)
    what = "no free name for a log file: other processes took it at each try"
    raise ConflictError(
        what, path=slice_.partition, found=f"{_TRIES} tries in file group {slice_.file_id}", todo="Run again."
    )


def revokes(table: Table, path: str, target: str) -> bool:
    blocks = scan_blocks(table.storage.open_input(path), path)
    return any(b.kind is BlockKind.COMMAND and b.headers.get(HeaderKey.TARGET_INSTANT_TIME) == target for b in blocks)


def traces_of(table: Table, target: str, action: str, *, scan: bool) -> RollbackPlan:
    """The files of a pending instant, by its markers and by listing. Names of base files contain their instant. So do
    names of log files from version 8 on, and on version 6 in file groups that the instant started. Other log files of
    version 6 are known from their markers, also those on a base file of another action of the same time, which later
    writes may have written. Without any marker, and with `scan`, all log files are searched for blocks of the
    instant."""
    markers = list_markers(table.storage, target)
    marked: dict[str, set[str]] = {m.partition: set() for m in markers}
    for marker in markers:
        if marker.kind is MarkerKind.APPEND:
            marked[marker.partition].add(marker.file)
    doomed: list[tuple[str, str]] = []
    logs: dict[tuple[str, str, str], dict[str, int]] = {}
    by_base = table.layout.slicing is Slicing.BY_BASE_INSTANT
    search = scan and not markers and by_base
    planned, named = _planned_groups(table, target), _named_by_others(table, target, action)
    begun = _groups_of(named) if by_base else frozenset()
    for partition in sorted({*table.partitions(), *marked}):
        for entry, name in data_files(table, partition):
            # A plan may share its millisecond with a writer that takes no lock: the plan's base files, and on version 6
            # the logs that others wrote under it, do not belong to the write.
            is_base, key = isinstance(name, BaseFileName), (partition, name.file_id)
            of_plan = key in planned and (by_base or is_base)
            on_others = key in begun and not is_base
            if name.instant == target and not (of_plan or on_others) and join(partition, entry.name) not in named:
                doomed.append((partition, entry.name))
            elif entry.name in marked.get(partition, ()) or (
                search and not is_base and target in instants_in(table, join(partition, entry.name))
            ):
                logs.setdefault((partition, name.file_id, name.instant), {})[entry.name] = entry.size
    return RollbackPlan(target=target, action=action, doomed=tuple(doomed), revoked=revoked_slices(logs))


def revoked_slices(logs: Mapping[tuple[str, str, str], Mapping[str, int]]) -> tuple[RevokedSlice, ...]:
    """The slices of the log files to revoke. `logs`: by (partition, file id, base instant), with their sizes."""
    return tuple(
        RevokedSlice(partition=partition, file_id=file_id, base_instant=base, logs=names)
        for (partition, file_id, base), names in sorted(logs.items())
    )


def _planned_groups(table: Table, time: str) -> frozenset[tuple[str, str]]:
    """The file groups of the compaction plan of that time; empty without such a plan."""
    requested = table.files.requested_merge(time)
    if requested.action != "compaction" or table.storage.find(table.instant_path(requested)) is None:
        return frozenset()
    return table.compaction_plan(time).groups


def _groups_of(paths: Iterable[str]) -> frozenset[tuple[str, str]]:
    split = (path.rpartition("/") for path in paths)
    return frozenset(
        (partition, name.file_id) for partition, _, text in split if (name := parse_data_file(text)) is not None
    )


def _named_by_others(table: Table, time: str, action: str) -> frozenset[str]:
    """Files that other completed actions of that time name. ConflictError: one is pending, so its files are unknown."""
    timeline = table.load_timeline()
    pending = (i for i in timeline.at(time) if i.is_write and not i.completed)
    others = [i for i in pending if i.family not in (action, "commit")]
    if others:
        raise ConflictError(
            "another pending action has the same time as this write, and their files cannot be distinguished",
            path=table.storage.base_path,
            instant=time,
            found=others[0].action,
            todo="Let it complete, or be rolled back, with Hudi; then run again.",
        )
    return table.facts.named_files(timeline, time, but=action)


def data_files(table: Table, partition: str) -> Iterator[tuple[Entry, BaseFileName | LogFileName]]:
    """Base and log files of a partition; empty if the folder does not exist (a marker named it before its creation)."""
    try:
        entries = table.storage.list(partition)
    except MissingFileError:
        return
    for entry in entries:
        if not entry.is_folder and (name := parse_data_file(entry.name)) is not None:
            yield entry, name


def instants_in(table: Table, path: str) -> Iterator[str]:
    """The instant of each block with rows or deletes of a log file, front to back."""
    blocks = scan_blocks(table.storage.open_input(path), path)
    return (b.instant for b in blocks if b.kind not in (BlockKind.CORRUPT, BlockKind.COMMAND))


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """`plan`: the files of an instant. `commands`: (partition, name) of the log files that revoke it, and sizes."""

    plan: RollbackPlan
    commands: Mapping[tuple[str, str], int]


def undo_files(table: Table, target: str, find: Callable[[], RollbackPlan]) -> Undone:
    """Removes the files of an instant that no reader sees; may be repeated. Staged files are first: from then on no
    process, even one that has lost its lock, can place a file. `find`, which lists the files, is called after that."""
    table.storage.delete_folder(staged_folder(target))
    plan = find()
    table.storage.delete_all([join(partition, name) for partition, name in plan.doomed])
    made = (revoke(table, slice_, target) for slice_ in plan.revoked)
    commands = dict(command for command in made if command is not None)
    delete_markers(table.storage, target)
    return Undone(plan=plan, commands=commands)


def unpublish(table: Table, instant: Instant) -> Sequence[StateFile]:
    """Deletes the completed files of an instant: from here on no reader sees it. Returns all its files until then."""
    files = load_state_files(table.storage, table.config).files(instant)
    for one in files:
        if one.instant.completed:
            table.storage.delete(one.path)
    return files


def undo(
    table: Table, instant: Instant, find: Callable[[], RollbackPlan], forget: Callable[[], object] = lambda: None
) -> Undone:
    """Undoes one instant, completed or pending; may be repeated. `table`: of a section. `find`: see `undo_files`.
    `forget`: removes what other records have of the instant, as the metadata table. The requested file is removed last:
    until then the instant is on the timeline."""
    files = unpublish(table, instant)
    done = undo_files(table, instant.requested_time, find)
    forget()
    pending = sorted((f for f in files if not f.instant.completed), key=lambda f: -f.instant.state)
    # A stalled process may have put the inflight file of a clustering since the listing.
    late = [f.instant.at(State.INFLIGHT) for f in pending if instant.family == "replacecommit"]
    for path in dict.fromkeys([*map(table.instant_path, late), *(f.path for f in pending)]):
        table.storage.delete(path)
    table.storage.delete(heartbeat_path(instant.requested_time))
    return done


def forget_heartbeats(table: Table, *, now_ms: Callable[[], int], expiry_s: float) -> None:
    """Removes heartbeats of rollbacks and of their targets, left by a process that was killed at its very end. Also
    removes phantombase heartbeats that are no longer live, of instants that completed or never started. `now_ms`: see
    `roll_back_dead_writers`."""
    folder = heartbeat_path("").rstrip("/")
    if table.storage.find(folder) is None:
        return
    beats = [e.name for e in table.storage.list(folder) if e.name.isdigit()]
    seen = table.with_timeline(table.load_timeline())
    active = {i.requested_time: i for i in seen.timeline.instants}
    half_way = clustering_in_rollback(seen) if beats else None
    for name in beats:
        instant = active.get(name)
        if instant is not None and (not instant.completed or instant == half_way):
            continue
        beat = read_heartbeat(table.storage, name)
        if beat is not None and beat.ours and not is_live(beat, now_ms(), expiry_s):
            over = True
        elif instant is None:
            over = completed_rollback_of(table, name) is not None
        else:
            over = instant.action == "rollback"
        if over:
            table.storage.delete(heartbeat_path(name))


def remove_left_behind(table: Table) -> None:
    """Removes staged files and markers of writes that are not pending. Staged folders are listed before the timeline is
    loaded: a write is on the timeline before it stages files."""
    storage = table.storage
    if storage.find(WRITES) is None:
        return
    staged = [e.name for e in storage.list(WRITES) if e.is_folder]
    pending = table.load_timeline().pending_writes
    for instant in staged:
        if instant not in pending:
            delete_markers(storage, instant)  # before the staging folder, which shows that there may be markers
            storage.delete_folder(staged_folder(instant))
