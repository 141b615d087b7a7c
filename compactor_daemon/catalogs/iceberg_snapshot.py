"""One snapshot of Iceberg that removes and adds data files by name.

Manifests are kept in the order of partitions and small, about the square root of the number of files, so that a
snapshot writes few entries again. The name of each says between which paths its files are, so that those without a
file of a changed group are not read. pyiceberg's own overwrite reads each manifest twice, writes those that it adds or
empties beside the others, and never joins them."""

from __future__ import annotations

import math
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import OutputFile
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.event_log import get_logger

_log = get_logger()
_LEAST = 100
"""Entries of a manifest."""
_KEPT = 4096


_SHOWN = 32
"""Bytes of a path that the name of a manifest has."""
_RANGE = re.compile(r"\.(\d+)\.([0-9a-f]{8})\.([\w-]*)\.([\w-]*)\.avro")


def range_name(first: str, last: str) -> str:
    """The part of a manifest's name that says between which paths its files are: the folder that they share, as length
    and checksum, and how the paths go on below it."""
    low, high = first.encode(), last.encode()
    same = next((n for n, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    shared = low[: low.rfind(b"/", 0, same) + 1]
    rest = (urlsafe_b64encode(path[len(shared) :][:_SHOWN]).decode().rstrip("=") for path in (low, high))
    return ".".join(["", str(len(shared)), f"{zlib.crc32(shared):08x}", *rest])


class WantedPaths:
    """Which manifests may have files of these folders (with `/` at their end) whose names begin so (pure)."""

    def __init__(self, wanted: Iterable[tuple[str, str]]) -> None:
        found: dict[tuple[int, int], set[bytes]] = {}
        for folder, begins in wanted:
            path = folder.encode()
            for shared in (0, *(at.end() for at in re.finditer(b"/", path))):
                rest = (path + begins.encode())[shared:][:_SHOWN]
                found.setdefault((shared, zlib.crc32(path[:shared])), set()).add(rest)
        self._rests = {key: sorted(rests) for key, rests in found.items()}

    def may_be_in(self, manifest: str) -> bool:
        found = _RANGE.search(manifest)
        if found is None:  # of another program
            return True
        rests = self._rests.get((int(found[1]), int(found[2], 16)), [])
        low, high = (urlsafe_b64decode(text + "==") for text in (found[3], found[4]))
        at = bisect_left(rests, low)
        return any(one <= high for one in rests[at : at + 1]) or any(
            low[:n] in rests[(at := bisect_left(rests, low[:n])) : at + 1] for n in range(len(low))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The data files of a snapshot: manifests, and of each its files by path, with their bytes; None: it was not read,
    since it has none of the files that were asked for."""

    manifests: Mapping[ManifestFile, Mapping[str, int] | None] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, int]:
        return {path: size for files in self.manifests.values() for path, size in (files or {}).items()}


_seen: dict[str, Mapping[str, int]] = {}
"""The files of manifests by their paths: a manifest never changes."""


def published_files(io: Any, snapshot: Any, where: str, only: Collection[tuple[str, str]] | None = None) -> Published:
    """The files of a snapshot. `only`: see `WantedPaths`; other files may be left out.
    ConflictError: another program has deleted rows of the table."""
    found: dict[ManifestFile, Mapping[str, int] | None] = {}
    wanted = None if only is None else WantedPaths(only)
    for manifest in () if snapshot is None else snapshot.manifests(io):
        if manifest.content is not ManifestContent.DATA and manifest.content != ManifestContent.DATA:
            raise ConflictError(
                "another program has deleted rows of the Iceberg table",
                path=where,
                expected="a table that only phantombase writes",
                found="delete files",
                todo="Roll the Iceberg table back to a snapshot of phantombase, or drop it, and sync again.",
            )
        path = manifest.manifest_path
        files = _seen.get(path)
        if files is None and (wanted is None or _count(manifest) is None or wanted.may_be_in(path)):
            entries = manifest.fetch_manifest_entry(io)
            files = {entry.data_file.file_path: entry.data_file.file_size_in_bytes for entry in entries}
            if len(_seen) >= _KEPT:
                _seen.clear()
            _seen[path] = files
        found[manifest] = files
    return Published(manifests=found)


def _count(manifest: ManifestFile) -> int | None:
    """The files that a manifest has and that are not deleted; None: it does not say."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    return None if added is None or existing is None else added + existing


class PublishFiles(_OverwriteFiles):
    """`published`: the files of the parent. `added`: in the newest partitioning. `removed`: by path."""

    def __init__(
        self,
        transaction: Transaction,
        io: Any,
        published: Published,
        added: Iterable[DataFile],
        removed: Collection[str],
        summary: dict[str, str],
    ) -> None:
        operation = Operation.OVERWRITE if published.manifests or removed else Operation.APPEND
        super().__init__(operation, transaction, io, snapshot_properties=summary)
        for one in added:
            self.append_data_file(one)
        self._removed, self._published = frozenset(removed), published
        self._counts = {m: (_count(m) or 0) if of is None else len(of) for m, of in published.manifests.items()}
        self._size = max(_LEAST, math.isqrt(sum(self._counts.values()) + len(self._added_data_files)))
        self._range = ""
        self._touched = {manifest: self.fetch_manifest_entry(manifest) for manifest in self._to_write()}
        for entries in self._touched.values():
            for entry in entries:
                if entry.data_file.file_path in self._removed:
                    self.delete_data_file(entry.data_file)

    def _clean_all_uncommitted(self) -> None:
        """Nothing yet: pyiceberg takes a failed commit for one that had no effect. If its client repeated the request,
        the first one may have had, and the catalog names these files."""

    def clean(self) -> None:
        """Removes the files of a commit that had no effect."""
        super()._clean_all_uncommitted()

    def _to_write(self) -> list[ManifestFile]:
        """The manifests that lose files, and small ones, so that they become fewer."""
        files = self._published.manifests
        lose = [manifest for manifest, of in files.items() if not self._removed.isdisjoint(of or ())]
        small = [m for m, count in self._counts.items() if m not in lose and 0 < count < self._size // 2]
        return [*lose, *(small if len(small) > 1 else ())]

    def _manifests(self) -> list[ManifestFile]:
        made = [m for m, count in self._counts.items() if count and m not in self._touched]
        for spec_id, entries in self._entries().items():
            for start in range(0, len(entries), self._size):
                part = entries[start : start + self._size]
                self._range = range_name(part[0].data_file.file_path, part[-1].data_file.file_path)
                with self.new_manifest_writer(self.spec(spec_id)) as writer:
                    for entry in part:
                        writer.add_entry(entry)
                made.append(writer.to_manifest_file())
        return made

    def new_manifest_output(self) -> OutputFile:
        name = f"{self.commit_uuid}-m{next(self._manifest_num_counter)}{self._range}.avro"
        path = self._transaction._table.location_provider().new_metadata_location(name)
        self._written_manifests.append(path)
        return self._io.new_output(path)

    def _entries(self) -> dict[int, list[ManifestEntry]]:
        """Those of new manifests by partitioning, in the order of paths, which begin with the partition."""
        found: dict[int, list[ManifestEntry]] = {}
        for manifest, entries in self._touched.items():
            for old in entries:
                gone = old.data_file.file_path in self._removed
                kept = ManifestEntry.from_args(
                    status=ManifestEntryStatus.DELETED if gone else ManifestEntryStatus.EXISTING,
                    snapshot_id=self._snapshot_id if gone else old.snapshot_id,
                    sequence_number=old.sequence_number,
                    file_sequence_number=old.file_sequence_number,
                    data_file=old.data_file,
                )
                found.setdefault(manifest.partition_spec_id, []).append(kept)
        spec_id = self._transaction.table_metadata.default_spec_id  # milliseconds, each time
        for one in self._added_data_files:
            new = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=one,
            )
            found.setdefault(spec_id, []).append(new)
        return {
            spec_id: sorted(entries, key=lambda e: (e.data_file.file_path, e.status))
            for spec_id, entries in found.items()
        }


def sweep(left: Callable[[], Iterable[Any]], gone: Collection[Any], io: Any, where: str) -> None:
    """Removes the manifests that only expired snapshots name. `left`: asks for those that the table still has."""
    try:
        stay = {manifest.manifest_path for one in left() for manifest in one.manifests(io)}
        for path in {manifest.manifest_path for one in gone for manifest in one.manifests(io)} - stay:
            io.delete(path)
        for one in gone:
            io.delete(one.manifest_list)
    except Exception as error:  # they cost space only
        _log.warning("iceberg_metadata_left", table=where, error=f"{type(error).__name__}: {error}")
