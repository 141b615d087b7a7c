"""The archived timeline, read only: completed instants that were moved out of the active timeline, and their records.

Version 6, folder `.hoodie/archived`: log files `.commits_.archive.<n>_<token>` of Avro blocks, one
`HoodieArchivedMetaEntry` for each state file of an instant. While Hudi merges small archive files into a larger one,
the file `mergeArchivePlan` names the larger one, which may be incomplete; the small ones exist until it is complete.

Versions 8 and 9, folder `.hoodie/timeline/history`, a log-structured merge tree: `_version_` (text, current n) ->
`manifest_<n>` (JSON, `{"files": [{"fileName", "fileLen"}]}`) -> Parquet files, one row per completed instant. Hudi
replaces `_version_` by deleting and writing it; in between, the greatest manifest is the current one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_container import STRING, decode_value, optional, parsed_schema, read_record, root_record
from ..codec.parquet_read import read_parquet, readable
from ..errors import MalformedError, MissingFileError, PhantombaseError, UnknownStateError, reason_of
from ..format.clean import CleanPlan, clean_plan_of, decode_clean_plan
from ..format.commit_metadata import CommitMetadata, from_record
from ..format.commit_metadata import decode as decode_commit
from ..format.instant import Instant, State, highest_states
from ..format.log_block import BlockKind, HeaderKey, scan_blocks
from ..format.log_decode import avro_values, decoding
from ..format.table_config import TableConfig
from ..storage.contract import Storage, listed_if_there
from .timeline import Timeline

T = TypeVar("T")
VERSION_FILE = "_version_"
_MANIFEST = re.compile(r"manifest_(\d+)")
_LSM_COLUMNS = ("instantTime", "completionTime", "action")
_NAME_COLUMNS = ("instantTime", "action")
_ARCHIVE = re.compile(r"\.commits_\.archive\.\d+.*")
_ENTRY = ("commitTime", "actionType", "actionState")
_MERGE_PLAN = "mergeArchivePlan"
_MERGE_PLAN_SCHEMA = root_record("HoodieMergeArchiveFilePlan", optional("mergedArchiveFileName", STRING))


def with_archive(storage: Storage, config: TableConfig, timeline: Timeline) -> Timeline:
    """The timeline with its archived instants loaded. UnknownStateError: see `load_history`."""
    return replace(timeline, archived=load_history(storage, config))


def load_history(storage: Storage, config: TableConfig) -> tuple[Instant, ...]:
    """Every completed archived instant, ordered by time; only those of v8+ have completion times. Without a history
    folder, or with an empty one, nothing was archived: the result is an empty tuple. UnknownStateError: a file in the
    folder is missing or unreadable. An instant that is not found may be in that file, so "not found" must not be
    treated as "not archived"."""
    return whole(config, lambda: highest_states(_instants(storage, config)))


def whole(config: TableConfig, load: Callable[[], T]) -> T:
    """Runs a read of the archive. UnknownStateError: see `load_history`."""
    try:
        try:
            return load()
        except MissingFileError:
            # Hudi removes files while it compacts the history: a second try finds the files that replaced them.
            return load()
    except (PhantombaseError, OSError) as error:
        raise UnknownStateError(
            "the archived timeline cannot be read, so its instants are unknown",
            path=config.history_folder,
            found=str(error),
            todo="Try again; if the error persists, repair or restore the file, or let Hudi rewrite its archive.",
        ) from error


def check_archive(storage: Storage, config: TableConfig) -> None:
    """Whether the files that the history of versions 8 and 9 names are there, with the sizes that it says. Their
    contents are not read. UnknownStateError: see `load_history`."""
    if config.layout.has_completion_times:
        whole(config, lambda: _check_files(storage, config.history_folder))


def _check_files(storage: Storage, folder: str) -> None:
    sizes = {entry.name: entry.size for entry in listed_if_there(storage, folder) or ()}
    for file in named_history(storage, folder, sizes):
        if (size := sizes.get(file.name)) != file.size:
            raise MalformedError(
                "a history file is lost or damaged",
                path=f"{folder}/{file.name}",
                expected=f"{file.size} bytes",
                found="no such file" if size is None else f"{size} bytes",
            )


def archived_commits(
    storage: Storage, config: TableConfig, wanted: Collection[Instant]
) -> dict[Instant, CommitMetadata]:
    """The metadata of archived writes: of most on versions 8 and 9, of none on 6. Errors as in `load_history`."""
    where = config.history_folder
    records = archived_records(storage, config, wanted)
    return whole(config, lambda: {i: decode_commit(data, where) for i, data in records.items()})


def archived_records(
    storage: Storage, config: TableConfig, wanted: Collection[Instant], *, plans: bool = False
) -> dict[Instant, bytes]:
    """The bytes of the completed files of archived instants that the archive contains, see `archived_commits`. `plans`:
    the bytes of the requested files of cleans and other services instead."""
    if not wanted or not config.layout.has_completion_times:
        return {}
    by_name = {(i.requested_time, i.action): i for i in wanted}
    return whole(config, lambda: dict(_records(storage, config, by_name, "plan" if plans else "metadata")))


def _records(
    storage: Storage, config: TableConfig, wanted: Mapping[tuple[str, str], Instant], column: str
) -> Iterator[tuple[Instant, bytes]]:
    folder = config.history_folder
    names = [entry.name for entry in listed_if_there(storage, folder) or ()]
    for file in named_history(storage, folder, names):
        path = f"{folder}/{file.name}"
        with readable("history file", path):
            times = pc.field("instantTime").isin(sorted({time for time, _ in wanted}))
            rows = read_parquet(storage.open_input(path), (*_NAME_COLUMNS, column)).filter(times).to_pylist()
            found = [(wanted.get((row["instantTime"], row["action"])), row[column]) for row in rows]
        yield from ((instant, content) for instant, content in found if instant is not None and content)


def _instants(storage: Storage, config: TableConfig) -> Iterator[Instant]:
    folder = config.history_folder
    try:
        names = [entry.name for entry in storage.list(folder)]
    except MissingFileError:
        return
    if config.layout.has_completion_times:
        for file in named_history(storage, folder, names):
            yield from _parquet_instants(storage, f"{folder}/{file.name}")
    else:
        for path in archived_logs(storage, config):
            yield from _unless_merged(storage, path, archive_log_instants(storage, path))


def archived_logs(storage: Storage, config: TableConfig) -> list[str]:
    """Paths of the archive logs of version 6. MissingFileError: there is no such folder."""
    names = [entry.name for entry in storage.list(config.history_folder)]
    return [f"{config.history_folder}/{name}" for name in names if _ARCHIVE.fullmatch(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """An entry of a manifest of the history; `size` in bytes."""

    name: str
    size: int


def manifest_path(folder: str, number: int) -> str:
    return f"{folder}/manifest_{number}"


def manifest_numbers(names: Iterable[str]) -> list[int]:
    """The manifests among the names of a folder, ascending."""
    return sorted(int(match[1]) for name in names if (match := _MANIFEST.fullmatch(name)))


def read_manifest(storage: Storage, folder: str, number: int) -> tuple[HistoryFile, ...]:
    """The entries of a manifest. MalformedError: unreadable. MissingFileError: there is none."""
    path = manifest_path(folder, number)
    data = storage.read(path)
    try:
        files = tuple(HistoryFile(name=e["fileName"], size=int(e["fileLen"])) for e in json.loads(data)["files"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError("unreadable history manifest", path=path, found=reason_of(error)) from error
    if not all(isinstance(one.name, str) and "/" not in one.name for one in files):
        found = repr([one.name for one in files])
        raise MalformedError("history manifest with entries that are not file names", path=path, found=found)
    return files


def history_version(storage: Storage, folder: str) -> int | None:
    """The manifest that counts; None: Hudi is replacing the file. MalformedError: not a number."""
    path = f"{folder}/{VERSION_FILE}"
    try:
        text = storage.read(path).decode(errors="replace").strip()
    except MissingFileError:
        return None
    if text and not text.isdecimal():
        raise MalformedError("unreadable history version", path=path, expected="a number", found=repr(text))
    return int(text) if text else None


def named_history(storage: Storage, folder: str, names: Iterable[str]) -> tuple[HistoryFile, ...]:
    """The files that count for a reader; without any manifest nothing was archived yet. `names`: of the folder."""
    version = history_version(storage, folder)
    if version is None:
        version = max(manifest_numbers(names), default=None)
    return () if version is None else read_manifest(storage, folder, version)


def _parquet_instants(storage: Storage, path: str) -> Iterator[Instant]:
    with readable("history file", path):
        table = read_parquet(storage.open_input(path), _LSM_COLUMNS)
        rows = table.select(_LSM_COLUMNS).cast(pa.schema([(name, pa.string()) for name in _LSM_COLUMNS]))
    for row in rows.to_pylist():
        if None in row.values():
            raise MalformedError("history row with a null", path=path, found=repr(row))
        time, done, action = (row[name] for name in _LSM_COLUMNS)
        yield Instant(requested_time=time, action=action, state=State.COMPLETED, completion_time=done)


def archive_log_instants(storage: Storage, path: str) -> Iterator[Instant]:
    """The completed instants in one archive log of version 6. MalformedError: unreadable."""
    for record in _log_records(storage, path):
        if record.get("actionState") not in (None, State.COMPLETED.name):  # very old archives contain no state
            continue
        if record.get("commitTime") is None or record.get("actionType") is None:
            raise MalformedError("archive entry without time or action", path=path, found=repr(record)[:800])
        yield Instant(requested_time=record["commitTime"], action=record["actionType"], state=State.COMPLETED)


def is_being_merged(storage: Storage, log: str) -> bool:
    """Whether Hudi is writing this archive log, which may be incomplete: the logs that it merges still exist."""
    folder, _, name = log.rpartition("/")
    path = f"{folder}/{_MERGE_PLAN}"
    try:
        data = storage.read(path)
    except MissingFileError:
        return False
    _, plan = read_record(data, path, _MERGE_PLAN_SCHEMA)
    return str(plan["mergedArchiveFileName"] or "").rpartition("/")[2] == name


Extras: TypeAlias = tuple[str, Mapping[str, str], str | None]
"""Requested time, entries, operation."""
_AT_ONCE = 16
_COMMIT, _REPLACE, _CLEAN = "hoodieCommitMetadata", "hoodieReplaceCommitMetadata", "hoodieCleanerPlan"


def archived_extras(storage: Storage, config: TableConfig, archived: Sequence[Instant]) -> Iterator[Extras]:
    """The writes among these archived instants, newest first. UnknownStateError: the archive cannot be read."""
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
    """The writes among these archived instants with their metadata, if the archive contains it, in any order.
    UnknownStateError: the archive cannot be read."""
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
    """The cleans among these archived instants with their plans, if the archive contains them. UnknownStateError: the
    archive cannot be read. MalformedError: a plan cannot be decoded."""
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
    def read() -> list[tuple[str, Any]]:
        logs = archived_logs(storage, config)
        return [one for log in logs for one in _unless_merged(storage, log, _of_log(storage, log, fields))]

    return whole(config, read)


def _unless_merged(storage: Storage, path: str, found: Iterator[T]) -> list[T]:
    """What is found in an archive log; nothing if it is incomplete: the logs that Hudi merges into it still exist."""
    try:
        return list(found)
    except MalformedError:
        if not is_being_merged(storage, path):
            raise
        return []


def _of_log(storage: Storage, path: str, fields: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The state files in an archive log of version 6 that have one of these fields: their times and records."""
    for record in _log_records(storage, path):
        if record.get("commitTime") is None:
            raise MalformedError("archive entry without time", path=path)
        if any(record.get(name) is not None for name in fields):
            yield record["commitTime"], record


def _log_records(storage: Storage, path: str) -> Iterator[dict[str, Any]]:
    """The records of an archive log of version 6, one by one: a block has ten, of some 200 fields."""
    source = storage.open_input(path)
    for block in scan_blocks(source, path):
        if block.kind is not BlockKind.AVRO_DATA:
            raise MalformedError("unexpected block in an archive", path=path, found=block.kind.name)
        with decoding(block):
            schema = parsed_schema(block.header(HeaderKey.SCHEMA))
            for value in avro_values(block, source):
                record = decode_value(value, schema)
                if not isinstance(record, dict) or not all(isinstance(record.get(n), str | None) for n in _ENTRY):
                    raise MalformedError("archive entry that is no record of texts", path=path)
                yield record


def _completed(storage: Storage, config: TableConfig) -> Iterator[tuple[str, Any]]:
    for time, record in _all_records(storage, config, _COMMIT, _REPLACE):
        if record.get("actionState") in (None, State.COMPLETED.name):
            yield time, record


def _commit_in(record: Any) -> Any:
    return next((record[name] for name in (_COMMIT, _REPLACE) if record.get(name) is not None), None)


def _extras(time: str, record: Any) -> Extras:
    commit = _commit_in(record)
    return time, commit.get("extraMetadata") or {}, commit.get("operationType")
