"""Two storages in front of another one: a point-in-time read cache, and a guard that asks before each change.

`SnapshotStorage` lists each folder, and reads each object, at most once: a step that makes a decision needs the same
few answers repeatedly (the timeline, the records of attempts, the settings). The listing of a folder also answers
whether an object exists. The cache reflects the time of its first request, so each step that must see concurrent
changes creates a new one. What this process writes through a snapshot is visible in it.

`GuardedStorage` is that of a section under the table lock; its question is whether the lock is still held
(`table.in_progress.exclusive`). Reads cost nothing more. The question is asked once for each call, so files that are
removed together by `delete_all` cost one. A lock file and a lease answer from memory; ZooKeeper makes two requests."""

from __future__ import annotations

import builtins
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import md5

from ..errors import MissingFileError
from ..prefetch import Threads
from .contract import Entry, ForwardingStorage, PrefixStorage, Storage, count_change, list_at_once
from .folders import AFTER_INSTANTS, RECORDS

_THREADS = 8
_MD5_DIGITS = 32
_KEPT_BYTES, _KEPT_EACH_BYTES = 16 << 20, 1 << 20


class ContentCache:
    """Contents of small objects by path and content tag: under one tag a content never changes."""

    def __init__(self) -> None:
        self._contents: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ContentCache], tuple[()]]:
        """Another process receives an empty cache."""
        return ContentCache, ()

    def find(self, path: str, tag: str) -> bytes | None:
        with self._lock:
            return self._contents.get((path, tag))

    def keep(self, path: str, tag: str, content: bytes) -> None:
        """Caches it; the oldest are evicted beyond 16 MiB in total."""
        if len(content) > _KEPT_EACH_BYTES:
            return
        with self._lock:
            if (path, tag) not in self._contents:
                self._contents[path, tag] = content
                self._bytes += len(content)
            while self._bytes > _KEPT_BYTES:
                self._bytes -= len(self._contents.popitem(last=False)[1])


class SnapshotStorage(ForwardingStorage):
    """See the module. `whole`: folders that are listed even to find one name."""

    def __init__(self, origin: Storage, whole: Iterable[str], kept: ContentCache) -> None:
        self.storage = without_snapshot(origin)
        self._whole, self._kept = frozenset(whole), kept
        self._lists: dict[str, builtins.list[Entry] | None] = {}
        self._named: dict[str, tuple[builtins.list[Entry], dict[str, Entry]]] = {}
        self._changed: defaultdict[str, set[str]] = defaultdict(set)
        self._read: dict[str, bytes | None] = {}
        self._records: Sequence[tuple[str, Entry]] | None = None
        self._records_in: dict[str, dict[str, Entry]] = {}

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        """Another process receives the storage itself."""
        return without_snapshot, (self.storage,)

    # --- reading

    def list(self, folder: str) -> builtins.list[Entry]:
        found = self._listed(folder)
        if found is None:
            raise MissingFileError("no such folder", path=f"{self.base_path}/{folder}")
        return found

    def _listed(self, folder: str) -> builtins.list[Entry] | None:
        """None: there is no such folder."""
        if self._changed.pop(folder, None):
            del self._lists[folder]
        if folder not in self._lists:
            if self._is_record(folder):
                self._all_records()
                named = self._records_in.get(folder)
                self._lists[folder] = None if named is None else [named[name] for name in sorted(named)]
            elif self._is_known_absent(folder):
                self._lists[folder] = None
            else:
                try:
                    self._lists[folder] = (
                        list_at_once(self.storage, folder) if folder in self._whole else self.storage.list(folder)
                    )
                except MissingFileError:
                    self._lists[folder] = None
        return self._lists[folder]

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        if (folder, before, after) == (RECORDS, AFTER_INSTANTS, ""):
            return self._all_records()
        return () if self._is_known_absent(folder) else self.storage.list_below(folder, before, after)

    def find(self, path: str) -> Entry | None:
        folder, _, name = path.rpartition("/")
        if self._is_record(path):
            self._all_records()
            return self._records_in.get(folder, {}).get(name)
        if path and (folder in self._whole or folder in self._lists) and name not in self._changed[folder]:
            if folder not in self._lists:
                self._listed(folder)
            return self._entry(folder, name)
        return None if self._is_known_absent(path) else self.storage.find(path)

    def _entry(self, folder: str, name: str) -> Entry | None:
        """The entry that a folder's listing shows; names are indexed, since a timeline may have thousands."""
        listed = self._lists[folder]
        if listed is None:
            return None
        known = self._named.get(folder)
        if known is None or known[0] is not listed:
            known = self._named[folder] = (listed, {e.name: e for e in listed})
        return known[1].get(name)

    def read(self, path: str) -> bytes:
        if path not in self._read:
            # Names that a listing did not show are requested, too: settings are missing while they are replaced.
            folder = path.rpartition("/")[0]
            entry = self.find(path) if folder in self._whole or folder in self._lists else None
            tag = entry.tag if entry is not None else ""
            content = self._kept.find(path, tag) if tag else None
            if content is None:
                content = self.storage.read(path)
                if is_of(tag, content):
                    self._kept.keep(path, tag, content)
            self._read[path] = content
        if (known := self._read[path]) is None:
            raise MissingFileError("no such object", path=f"{self.base_path}/{path}")
        return known

    def _read_ahead(self, path: str) -> None:
        """Reads an object in advance; through the cache, if its folder was listed before. That phantombase's own are
        absent is known from then on: they are never missing while they are replaced, as settings are."""
        try:
            if path.rpartition("/")[0] in self._lists:
                self.read(path)
            else:
                self._read[path] = self.storage.read(path)
        except MissingFileError:
            if path.startswith(f"{RECORDS}/"):
                self._read[path] = None

    def _keep_read(self, path: str) -> None:
        """Caches a content that was read before the listing showed its tag, if its sum shows that it is not older."""
        content = self._read.get(path)
        if content is not None and (entry := self.find(path)) is not None and _sum(content) == entry.tag:
            self._kept.keep(path, entry.tag, content)

    def _is_record(self, path: str) -> bool:
        """Whether the listing of all records of instants shows it: not on a file system, which has empty folders."""
        return not self.is_file_system and is_of_instant(path)

    def _all_records(self) -> Sequence[tuple[str, Entry]]:
        if self._records is None:
            self._records = self.storage.list_below(RECORDS, AFTER_INSTANTS)
            self._records_in = _by_folder(self._records)
        return self._records

    def _is_known_absent(self, path: str) -> bool:
        """Whether a folder that was listed shows that nothing is there."""
        above = path
        while above:
            above, _, name = above.rpartition("/")
            if above in self._lists:
                return name not in self._changed[above] and self._entry(above, name) is None
        return False

    # --- writing: changed names are requested again

    def _forget(self, path: str, *, adds: bool = False) -> None:
        """Drops what a change at the path affects. `adds`: nothing is removed, so listed folders above it exist."""
        self._read.pop(path, None)
        if is_of_instant(path):
            self._records = None
            for folder in [f for f in self._lists if self._is_record(f)]:
                del self._lists[folder]
        for folder in list(self._lists):
            if f"{folder}/".startswith(f"{path}/"):
                self._lists.pop(folder)
                self._changed.pop(folder, None)
            elif not folder or path.startswith(f"{folder}/"):
                name = path[len(folder) :].removeprefix("/").partition("/")[0]
                entry = self._entry(folder, name) if adds else None
                if entry is None or not entry.is_folder:
                    self._changed[folder].add(name)

    def _changing(self, *paths: str, adds: bool = False) -> None:
        for path in paths:
            self._forget(path, adds=adds)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._forget(path, adds=True)
        is_put = self.storage.put_if_absent(path, data)
        if is_put:  # where tags are sums of the content, a listing with this tag shows that it is there
            self._kept.keep(path, _sum(data), data)
        return is_put

    def place(self, source: str, target: str) -> bool:
        if self.is_file_system:  # elsewhere the source is not removed
            self._forget(source)
        self._forget(target, adds=True)
        return self.storage.place(source, target)

    def delete_folder(self, folder: str) -> None:
        self._lists.clear()
        self._changed.clear()
        self._read.clear()
        self._records = None
        self.storage.delete_folder(folder)


def list_ahead(storage: Storage, folders: Iterable[str], *, records: bool = False, reads: Iterable[str] = ()) -> None:
    """Requests in parallel what will be needed: folders, the records of all instants, and contents of `reads`.
    The order of these requests is undefined. Does nothing on a file system, or without a snapshot."""
    if isinstance(storage, SnapshotStorage) and not storage.is_file_system:
        asked: list[Callable[[], object]] = [partial(storage._listed, folder) for folder in sorted(set(folders))]
        asked += [storage._all_records] if records else []
        read = sorted(set(reads))
        asked += [partial(storage._read_ahead, path) for path in read]
        with Threads(_THREADS) as pool:
            list(pool.map(lambda ask: ask(), asked))
        for path in read:
            storage._keep_read(path)


def is_of(tag: str, content: bytes) -> bool:
    """Whether a content that was read after a listing is the one that was listed; it may have been replaced since. A
    tag that looks like an MD5 sum is treated as one: equal contents have the same tag. Other tags are never reused."""
    return bool(tag) and (len(tag) != _MD5_DIGITS or _sum(content) == tag)


def _sum(content: bytes) -> str:
    return md5(content, usedforsecurity=False).hexdigest()


def without_snapshot(storage: Storage) -> Storage:
    """The storage below a snapshot: each request sees its current state."""
    return storage.storage if isinstance(storage, SnapshotStorage) else storage


def is_of_instant(path: str) -> bool:
    """Whether a path is in the records of an instant: their folders, and the pauses, alone begin with digits."""
    return path.startswith(f"{RECORDS}/") and path[len(RECORDS) + 1 :][:1].isdigit()


def _by_folder(files: Sequence[tuple[str, Entry]]) -> dict[str, dict[str, Entry]]:
    """The entries of each folder by their names, of files below `RECORDS`."""
    found: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
    for path, entry in files:
        *above, name = path.split("/")
        folder = RECORDS
        for part in above:
            found[folder].setdefault(part, Entry(name=part, is_folder=True))
            folder = f"{folder}/{part}"
        found[folder][name] = entry
    return dict(found)


@dataclass(frozen=True, slots=True)
class GuardedStorage(ForwardingStorage):
    """`check`: raises if nothing may be changed. An output is asked about once: it is shown by another call."""

    storage: Storage
    check: Callable[[], None]

    def __reduce__(self) -> tuple[Callable[[Storage], Storage], tuple[Storage]]:
        """Another process receives the storage itself."""
        return unguarded, (self.storage,)

    def _changing(self, *paths: str, adds: bool = False) -> None:
        self.check()
        count_change()


def unguarded(storage: Storage) -> Storage:
    """The same place without a guard, and without a snapshot."""
    storage = without_snapshot(storage)
    if isinstance(storage, GuardedStorage):
        return storage.storage
    if isinstance(storage, PrefixStorage):
        return replace(storage, storage=unguarded(storage.storage))
    return storage


def check_guard(storage: Storage) -> None:
    """Asks the guard of a storage, if there is one: after a change that another process may have preceded."""
    if isinstance(storage, GuardedStorage):
        storage.check()
    elif isinstance(storage, ForwardingStorage):
        check_guard(storage.storage)
