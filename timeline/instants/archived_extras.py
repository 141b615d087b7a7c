"""What archived writes record, of all versions: beside their files, such as the table's schema, and their files."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import fastavro

from ..errors import MalformedError
from ..format.clean import CleanPlan, clean_plan_of, decode_clean_plan
from ..format.commit_metadata import CommitMetadata, from_record
from ..format.instant import Instant, State
from ..format.table_config import TableConfig
from ..log.block import HeaderKey, scan_blocks
from ..log.decode import content_of, content_version, decoding
from ..storage.contract import Storage
from .archived_timeline import archived_commits, archived_logs, archived_records, is_being_merged, whole

Extras: TypeAlias = tuple[str, Mapping[str, str], str | None]
"""Requested time, entries, operation."""

_AT_ONCE = 16
_COMMIT, _REPLACE, _CLEAN = "hoodieCommitMetadata", "hoodieReplaceCommitMetadata", "hoodieCleanerPlan"


def archived_extras(storage: Storage, config: TableConfig, archived: Sequence[Instant]) -> Iterator[Extras]:
    """Of these archived instants the writes, as far as the archive has them, the newest first.

    UnknownStateError: it cannot be read.
    """
    writes = sorted((i for i in archived if i.is_write), key=lambda i: i.requested_time, reverse=True)
    if config.layout.has_completion_times:
        for start in range(0, len(writes), _AT_ONCE):
            some = writes[start : start + _AT_ONCE]
            found = archived_commits(storage, config, some)
            commits = ((i.requested_time, found[i]) for i in some if i in found)
            yield from ((time, commit.extra_metadata, commit.operation_type) for time, commit in commits)
    elif writes:
        known = {i.requested_time for i in writes}
        entries = (_extras(time, record) for time, record in _completed(storage, config) if time in known)
        yield from sorted(entries, key=lambda one: one[0], reverse=True)


def archived_writes(
    storage: Storage, config: TableConfig, archived: Sequence[Instant]
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Of these archived instants the writes with their metadata, in any order, as far as the archive has it.

    UnknownStateError: it cannot be read.
    """
    writes = [i for i in archived if i.is_write]
    if config.layout.has_completion_times:
        yield from archived_commits(storage, config, writes).items()
    elif writes:
        by_name = {(i.requested_time, i.family == "replacecommit"): i for i in writes}
        for time, record in _completed(storage, config):
            is_replace = record.get(_REPLACE) is not None
            if (instant := by_name.get((time, is_replace))) is not None:
                yield instant, from_record(_commit_in(record), is_replace=is_replace)


def archived_clean_plans(
    storage: Storage, config: TableConfig, archived: Sequence[Instant]
) -> Iterator[tuple[Instant, CleanPlan]]:
    """Of these archived instants the cleans with their plans, as far as the archive has them.

    UnknownStateError: it cannot be read. MalformedError: a plan is none.
    """
    cleans = {i.requested_time: i for i in archived if i.action == "clean"}
    where = config.history_folder
    if config.layout.has_completion_times:
        plans = archived_records(storage, config, tuple(cleans.values()), plans=True)
        yield from ((clean, decode_clean_plan(data, where)) for clean, data in plans.items())
    elif cleans:
        for time, record in _all_records(storage, config, _CLEAN):
            if time in cleans:
                yield cleans[time], clean_plan_of(record[_CLEAN], where)


def _all_records(storage: Storage, config: TableConfig, *fields: str) -> list[tuple[str, Any]]:
    found = whole(config, lambda: [_readable(storage, path, fields) for path in archived_logs(storage, config)])
    return [one for records in found for one in records]


def _readable(storage: Storage, path: str, fields: Sequence[str]) -> list[tuple[str, Any]]:
    try:
        return list(_of_log(storage, path, fields))
    except MalformedError:
        if not is_being_merged(storage, path):
            raise
        return []


def _of_log(storage: Storage, path: str, fields: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The state files in an archive log of version 6 that have one of these fields: their times and records."""
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
                if not isinstance(record, dict) or record.get("commitTime") is None:
                    raise MalformedError("archive entry without time", path=path)
                if any(record.get(name) is not None for name in fields):
                    yield record["commitTime"], record


def _completed(storage: Storage, config: TableConfig) -> Iterator[tuple[str, Any]]:
    """The completed writes in the archive of version 6."""
    for time, record in _all_records(storage, config, _COMMIT, _REPLACE):
        if record.get("actionState") in (None, State.COMPLETED.name):
            yield time, record


def _commit_in(record: Any) -> Any:
    return next((record[name] for name in (_COMMIT, _REPLACE) if record.get(name) is not None), None)


def _extras(time: str, record: Any) -> Extras:
    commit = _commit_in(record)
    return time, commit.get("extraMetadata") or {}, commit.get("operationType")
