"""What archived writes record beside their files, such as the table's schema: of all versions, the newest first."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import fastavro

from ..errors import MalformedError
from ..format.instant import Instant, State
from ..format.table_config import TableConfig
from ..log.block import HeaderKey, scan_blocks
from ..log.decode import content_of, content_version, decoding
from ..storage.contract import Storage
from .archived_timeline import archived_commits, archived_logs, is_being_merged, whole

Extras: TypeAlias = tuple[str, Mapping[str, str], str | None]
"""Requested time, entries, operation."""

_AT_ONCE = 16
_FIELDS = ("hoodieCommitMetadata", "hoodieReplaceCommitMetadata")


def archived_extras(storage: Storage, config: TableConfig, archived: Sequence[Instant]) -> Iterator[Extras]:
    """Of these archived instants the writes, as far as the archive has them. UnknownStateError: it cannot be read."""
    writes = sorted((i for i in archived if i.is_write), key=lambda i: i.requested_time, reverse=True)
    if config.layout.has_completion_times:
        for start in range(0, len(writes), _AT_ONCE):
            some = writes[start : start + _AT_ONCE]
            found = archived_commits(storage, config, some)
            commits = ((i.requested_time, found[i]) for i in some if i in found)
            yield from ((time, commit.extra_metadata, commit.operation_type) for time, commit in commits)
    elif writes:
        known = {i.requested_time for i in writes}
        found_in = whole(config, lambda: [_readable(storage, path) for path in archived_logs(storage, config)])
        entries = (one for found in found_in for one in found if one[0] in known)
        yield from sorted(entries, key=lambda one: one[0], reverse=True)


def _readable(storage: Storage, path: str) -> list[Extras]:
    try:
        return list(_of_log(storage, path))
    except MalformedError:
        if not is_being_merged(storage, path):
            raise
        return []


def _of_log(storage: Storage, path: str) -> Iterator[Extras]:
    """The completed writes of an archive log of version 6."""
    source = storage.open_input(path)
    for block in scan_blocks(source, path):
        schema = fastavro.parse_schema(json.loads(block.header(HeaderKey.SCHEMA)))
        content = content_of(block, source).to_pybytes()
        with decoding(block):
            count = content_version(content[:8], block)
            at = 8
            for _ in range(count):
                (size,) = struct.unpack_from(">i", content, at)
                at += 4 + size
                record: Any = fastavro.schemaless_reader(io.BytesIO(content[at - size : at]), schema, None)
                yield from _extras(record, path)


def _extras(record: Any, path: str) -> Iterator[Extras]:
    if not isinstance(record, dict) or record.get("commitTime") is None:
        raise MalformedError("archive entry without time", path=path)
    if record.get("actionState") in (None, State.COMPLETED.name):
        commit = next((record[name] for name in _FIELDS if record.get(name) is not None), None)
        if commit is not None:
            yield record["commitTime"], commit.get("extraMetadata") or {}, commit.get("operationType")
