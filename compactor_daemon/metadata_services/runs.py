"""Builds of the metadata table: the state of the table that one has staged, and its folder, by which others know it.

    <folder of builds>/<uuid>/    `partitions`, `staged`, a heartbeat, and the staged files

A run that died, or ended with an error, leaves its folder. The next one of the same kind continues there: what it finds
is a state of the table and what was staged for it, and the way from there to the newest state is as in any run. Other
folders without a heartbeat are removed. `staged` is replaced as a whole, so two processes that use one folder do not
harm each other; it goes after an error that continuing may repeat."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeAlias

from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError, UnsupportedError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.layout import Slicing
from phantombase.timeline.locks.heartbeat import BEAT_S, heartbeat, is_live, read_heartbeat
from phantombase.timeline.metadata_table.index_logs import FileKeys, IndexLog
from phantombase.timeline.metadata_table.records.keys import Sizes
from phantombase.timeline.metadata_table.validate import finished_bytes
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import BUILDS
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import FileSlice, GroupKey

from ..attempt.pending_clusterings import ALIVE

_TAKEN_OUT, _STAGED = "partitions", "staged"
FILES_AT_ONCE, _STEPS_MAX = 512, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedState:
    """`files`: names and sizes in bytes of the files of completed writes, by partition. `slices`: for indexes of rows,
    the newest slice of each file group; `marks`: by which a change of its rows is noticed."""

    files: Sizes = field(default_factory=dict)
    marks: Mapping[GroupKey, str] = field(default_factory=dict)
    slices: Mapping[GroupKey, FileSlice] = field(default_factory=dict, compare=False)

    @property
    def count(self) -> int:
        return sum(map(len, self.files.values()))

    def changed(self, after: ListedState) -> list[GroupKey]:
        """The file groups whose rows differ in a later state."""
        return sorted(key for key, mark in after.marks.items() if self.marks.get(key) != mark)

    def steps(self, after: ListedState) -> Iterator[ListedState]:
        """The states on the way to a later one, which have some files more each; the last one is that."""
        added = [(p, name) for p, names in grown(self.files, after.files).items() for name in names]
        changed, files, marks = self.changed(after), {p: dict(of) for p, of in self.files.items()}, dict(self.marks)
        total = max(len(added), len(changed))
        step = max(FILES_AT_ONCE, -(-total // _STEPS_MAX))
        for end in range(step, total, step):
            for p, name in added[end - step : end]:
                files.setdefault(p, {})[name] = after.files[p][name]
            marks |= {key: after.marks[key] for key in changed[end - step : end]}
            yield replace(after, files={p: dict(of) for p, of in files.items()}, marks=dict(marks))
        yield after


def state_of(table: Snapshot, *, indexed: bool = False) -> ListedState:
    """The newest state; `indexed`: with its slices. MissingFileError: a file of it is gone. Other errors: as in any
    read."""
    view = table.load_view()
    seen = table.with_timeline(view.timeline)
    for slice_ in view.slices():
        slice_.check_whole(table.storage.base_path)
    # On version 6 a pending write may have made a log file that counts by its name.
    by_blocks = table.layout.slicing is Slicing.BY_BASE_INSTANT and bool(view.timeline.inflight_writers)
    files = defaultdict[str, dict[str, int]](dict)
    for group in view.groups:
        for file in (file for slice_ in group.slices for file in slice_.files if file.size):
            if by_blocks and isinstance(file.name, LogFileName) and not finished_bytes(seen, file.path):
                continue
            files[group.partition][str(file.name)] = file.size
    slices = {slice_.key: slice_ for slice_ in view.slices()} if indexed else {}
    # On version 6 only the blocks of a log file show which writes count in it.
    timeline = view.timeline
    undone = [i.requested_time for i in timeline.instants if i.completed and i.action in ("rollback", "restore")]
    counted = (tuple(timeline.pending_writes), tuple(undone)) if table.layout.slicing is Slicing.BY_BASE_INSTANT else ()
    marks = {
        key: _mark(*((str(f.name), f.size) for f in slice_.files), *(counted if slice_.logs else ()))
        for key, slice_ in slices.items()
    }
    return ListedState(files=dict(files), marks=marks, slices=slices)


def _mark(*of: object) -> str:
    return blake2b(repr(of).encode(), digest_size=16).hexdigest()


SliceKeys: TypeAlias = dict[tuple[str, GroupKey], FileKeys]
"""Staged keys of the entries of indexes of rows, by partition and slice."""


def grown(before: Sizes, after: Sizes) -> dict[str, dict[str, int]]:
    """The files that are new, or larger than before."""
    found = {p: {n: s for n, s in names.items() if before.get(p, {}).get(n) != s} for p, names in after.items()}
    return {partition: names for partition, names in sorted(found.items()) if names}


@dataclass(kw_only=True)
class StagedBuild:
    """What a run has staged. `kind`: of the run, as JSON; `file_ids`: of each partition; `rounds`: log files of each
    difference; `state`: what they lead to; `keys`: see `Filling`."""

    kind: Mapping[str, Any]
    file_ids: Mapping[str, tuple[str, ...]]
    rounds: list[tuple[IndexLog, ...]] = field(default_factory=list)
    state: ListedState = field(default_factory=ListedState)
    keys: SliceKeys = field(default_factory=dict)

    def save(self, storage: Storage, folder: str) -> None:
        fields = {
            "kind": self.kind,
            "file_ids": self.file_ids,
            "logs": [asdict(log) for logs in self.rounds for log in logs],
            "files": self.state.files,
            "marks": [[*key, mark] for key, mark in self.state.marks.items()],
            "keys": [[name, one.to_json()] for (name, _), one in self.keys.items()],
            "sizes": _sizes(storage, folder, self._paths),
        }
        storage.overwrite(f"{folder}/{_STAGED}", json.dumps(fields).encode())

    @property
    def _paths(self) -> set[str]:
        return {log.path for log in chain(*self.rounds)} | {one.path for one in self.keys.values()}

    @staticmethod
    def load(storage: Storage, folder: str, kind: Mapping[str, Any]) -> StagedBuild | None:
        """What an earlier run of this kind has left; None: none has, or it cannot be read, or files of it are gone or
        torn: what was staged is not complete without them, which no reader of it would notice."""
        try:
            fields = json.loads(storage.read(f"{folder}/{_STAGED}"))
            if fields["kind"] != kind:
                return None
            keys = [(name, FileKeys(**one)) for name, one in fields["keys"]]
            found = StagedBuild(
                kind=kind,
                file_ids={name: tuple(ids) for name, ids in fields["file_ids"].items()},
                rounds=[tuple(IndexLog(**log) for log in fields["logs"])],
                state=ListedState(files=fields["files"], marks={(p, i): mark for p, i, mark in fields["marks"]}),
                keys={(name, (one.partition, one.file_id)): one for name, one in keys},
            )
            return found if _sizes(storage, folder, found._paths) == fields["sizes"] else None
        except (MissingFileError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _sizes(storage: Storage, folder: str, paths: Collection[str]) -> dict[str, int]:
    """The size in bytes of each staged file that is there."""
    found = ((f"{folder}/{entry.name}", entry.size) for entry in listed_if_there(storage, folder) or ())
    return {path: size for path, size in found if path in paths}


@contextmanager
def running(table: Table, names: tuple[str, ...], kind: Mapping[str, Any]) -> Iterator[tuple[str, StagedBuild | None]]:
    """The staging folder of a run that builds `names`, with its heartbeat, and what an earlier run has staged there;
    removed at its end. After an error what was taken out remains recorded."""
    storage = without_snapshot(table.storage)
    found = ((one, left) for one in _dead(table) if (left := StagedBuild.load(storage, one, kind)) is not None)
    folder, left = next(found, (f"{BUILDS}/{uuid.uuid4().hex}", None))
    with heartbeat(storage, f"{folder}/{ALIVE}", BEAT_S):
        storage.put_if_absent(f"{folder}/{_TAKEN_OUT}", json.dumps(names).encode())
        remove_dead(table)
        try:
            yield folder, left
        except (MalformedError, MissingFileError, UnsupportedError):
            with suppress(PhantombaseError):
                storage.delete(f"{folder}/{_STAGED}")
            raise
    storage.delete_folder(folder)


def _folders(table: Table) -> list[str]:
    found = listed_if_there(without_snapshot(table.storage), BUILDS) or ()
    return [f"{BUILDS}/{entry.name}" for entry in found if entry.is_folder]


def taken_out_by_runs(table: Table, *, dead: bool = False) -> frozenset[str]:
    """What earlier runs meant to build and did not. `dead`: of those that have ended: what is visible all the same may
    have become so after the lock was lost, and lack what was written until then."""
    found = set[str]()
    for folder in _dead(table) if dead else _folders(table):
        try:
            names = json.loads(table.storage.read(f"{folder}/{_TAKEN_OUT}"))
        except (MissingFileError, ValueError):
            continue
        found |= set(map(str, names)) if isinstance(names, list) else set()
    return frozenset(found)


def _dead(table: Table) -> list[str]:
    """The folders of runs that ended without success."""
    if not (folders := _folders(table)):
        return []
    storage = without_snapshot(table.storage)
    now_ms = storage_ms(storage)
    return [one for one in folders if not is_live(read_heartbeat(storage, f"{one}/{ALIVE}"), now_ms)]


def died(table: Table) -> bool:
    """Whether a run died, and none is at work."""
    return bool(dead := _dead(table)) and len(dead) == len(_folders(table))


def remove_dead(table: Table) -> None:
    """Removes the folders of runs that ended without success. A new run has recorded what these took out."""
    for folder in _dead(table):
        without_snapshot(table.storage).delete_folder(folder)
