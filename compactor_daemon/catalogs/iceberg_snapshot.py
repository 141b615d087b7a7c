"""One snapshot of Iceberg that removes and adds data files by name.

Manifests are kept in the order of partitions and small, about the square root of the number of files, so that a
snapshot writes few entries again. pyiceberg's own overwrite reads each manifest twice, writes those that it adds or
empties beside the others, and never joins them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from phantombase.timeline.errors import ConflictError

_LEAST = 100
"""Entries of a manifest."""
_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The data files of a snapshot: manifests, and of each its files by path, with their bytes."""

    manifests: Mapping[ManifestFile, Mapping[str, int]] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, int]:
        return {path: size for files in self.manifests.values() for path, size in files.items()}


_seen: dict[str, Mapping[str, int]] = {}
"""The files of manifests by their paths: a manifest never changes."""


def published_files(io: Any, snapshot: Any, where: str) -> Published:
    """The files of a snapshot. ConflictError: another program has deleted rows of the table."""
    found: dict[ManifestFile, Mapping[str, int]] = {}
    for manifest in () if snapshot is None else snapshot.manifests(io):
        if manifest.content is not ManifestContent.DATA and manifest.content != ManifestContent.DATA:
            raise ConflictError(
                "another program has deleted rows of the Iceberg table",
                path=where,
                expected="a table that only phantombase writes",
                found="delete files",
                todo="Roll the Iceberg table back to a snapshot of phantombase, or drop it, and sync again.",
            )
        if (files := _seen.get(manifest.manifest_path)) is None:
            entries = manifest.fetch_manifest_entry(io)
            files = {entry.data_file.file_path: entry.data_file.file_size_in_bytes for entry in entries}
            if len(_seen) >= _KEPT:
                _seen.clear()
            _seen[manifest.manifest_path] = files
        found[manifest] = files
    return Published(manifests=found)


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
        self._size = max(_LEAST, math.isqrt(len(published.files) + len(self._added_data_files)))
        self._touched = self._to_write()
        for manifest in self._touched:
            for entry in self.fetch_manifest_entry(manifest):
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
        lose = [manifest for manifest, of in files.items() if not self._removed.isdisjoint(of)]
        small = [m for m, of in files.items() if m not in lose and 0 < len(of) < self._size // 2]
        return [*lose, *(small if len(small) > 1 else ())]

    def _manifests(self) -> list[ManifestFile]:
        made = [m for m, of in self._published.manifests.items() if of and m not in self._touched]
        for spec_id, entries in self._entries().items():
            for start in range(0, len(entries), self._size):
                with self.new_manifest_writer(self.spec(spec_id)) as writer:
                    for entry in entries[start : start + self._size]:
                        writer.add_entry(entry)
                made.append(writer.to_manifest_file())
        return made

    def _entries(self) -> dict[int, list[ManifestEntry]]:
        """Those of new manifests by partitioning, in the order of paths, which begin with the partition."""
        found: dict[int, list[ManifestEntry]] = {}
        for manifest in self._touched:
            for old in self.fetch_manifest_entry(manifest):
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
