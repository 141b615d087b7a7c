"""Hudi's data transfer objects as JSON values (pure).

Source: the DTO classes of `org.apache.hudi.common.table.timeline.dto`, as servers of 0.15.0 and 1.2.0 print them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..format.compaction_plan import CompactionOperation
from ..format.file_name import BaseFileName, parse_data_file
from ..format.instant import Instant
from ..instants.timeline import Timeline
from ..storage.folders import as_uri
from ..view.view import BaseFile, FileGroup, FileSlice, GroupKey, LogFile
from .table_state import counted

Json: TypeAlias = Any
"""A value that `json.dumps` accepts."""
_BLOCK_BYTES = 32 << 20
"""The block size that Hadoop's local file system reports; clients do not use it."""
_NOT_IN_A_URI = re.compile(r"[^A-Za-z0-9_\-!.~'()*,;:$&+=@/\u0080-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints files below a base path, as the client spells it. `modified`: ms since the epoch, by partition, name."""

    base_path: str
    modified: Mapping[str, Mapping[str, int]]

    def base_file(self, file: BaseFile) -> Json:
        return {
            "fileStatus": self._status(file),
            "fullPath": self._full(file.path),
            "fileLen": file.size,
            "commitTime": file.name.instant,
            "fileId": file.name.file_id,
            "bootstrapBaseFile": None,
        }

    def file_slice(self, slice_: FileSlice) -> Json:
        """A `FileSliceDTO`: log files newest first."""
        return {
            "baseFile": None if slice_.base is None else self.base_file(slice_.base),
            "logFiles": [
                {"fileStatus": self._status(log), "path": self._full(log.path), "len": log.size}
                for log in reversed(slice_.logs)
            ],
            "partition": slice_.partition,
            "fileId": slice_.file_id,
            "baseInstant": slice_.base_instant,
        }

    def file_groups(self, groups: list[FileGroup], timeline: Timeline) -> Json:
        """`FileGroupDTO`s: slices newest first; the first group carries the timeline for all of them."""
        writes = {"instants": [instant(i, timeline) for i in counted(timeline) if i.is_write]}
        return [
            {
                "partition": group.partition,
                "fileId": group.file_id,
                "slices": [self.file_slice(s) for s in reversed(group.slices)],
                "timeline": None if number else writes,
            }
            for number, group in enumerate(groups)
        ]

    def _status(self, file: BaseFile | LogFile) -> Json:
        return {
            "path": {"uri": self._uri(file.path)},
            "length": file.size,
            "isdir": False,
            "blockReplication": 0,
            "blocksize": _BLOCK_BYTES,
            "modificationTime": self.modified.get(file.partition, {}).get(str(file.name), 0),
        }

    def _full(self, path: str) -> str:
        """As Hadoop prints a path: one slash after `file:`."""
        return f"{as_uri(self.base_path)}/{path}"

    def _uri(self, path: str) -> str:
        """As Java prints a URI: only characters that a path must not contain are escaped, not non-ASCII ones."""
        scheme, found, rest = self.base_path.partition("://")
        head, below = (f"{scheme}://", rest) if found else ("file://", self.base_path)
        return head + _NOT_IN_A_URI.sub(lambda m: f"%{ord(m[0]):02X}", f"{below}/{path}")


def instant(instant_: Instant, timeline: Timeline) -> Json:
    """An `InstantDTO`. Version 6 has no completion times: there it is the requested time, which orders its slices."""
    completion = instant_.completion_time or timeline.legacy_completions.get(instant_.requested_time)
    return {
        "action": instant_.action,
        "ts": instant_.requested_time,
        "state": instant_.state.name,
        "requestedTime": instant_.requested_time,
        "completionTime": completion if timeline.layout.has_completion_times else instant_.requested_time,
    }


def compaction_operation(operation: CompactionOperation, plan_instant: str) -> Json:
    """A `CompactionOpDTO`."""
    base = operation.data_file_path or None
    name = parse_data_file(base) if base else None
    return {
        "baseInstant": operation.base_instant_time,
        "compactionInstant": plan_instant,
        "dataFileInstant": name.instant if isinstance(name, BaseFileName) else None,
        "deltaFiles": list(operation.delta_file_paths),
        "baseFile": base,
        "id": operation.file_id,
        "partition": operation.partition_path,
        "metrics": {name: float(value) for name, value in (operation.metrics or {}).items()},
        "bootstrapBaseFile": operation.bootstrap_file_path or None,
    }


def clustering_operation(key: GroupKey, instant_: Instant) -> Json:
    """A `ClusteringOpDTO`: a file group that a pending instant will replace."""
    return {
        "id": key[1],
        "partition": key[0],
        "instantTime": instant_.requested_time,
        "instantState": instant_.state.name,
        "instantAction": instant_.action,
    }
