"""Finds what a pending write has left in a table, by its markers and by listing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..errors import ConflictError, MissingFileError
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..format.layout import Slicing
from ..format.log_block import BlockKind, scan_blocks
from ..format.rollback_plan import RevokedSlice, RollbackPlan
from ..storage.contract import Entry
from ..storage.folders import join
from ..table.table import Table
from .markers import MarkerKind, list_markers


def traces_of(table: Table, target: str, action: str, *, scan: bool) -> RollbackPlan:
    """The files of a pending instant, by its markers and by listing.

    Names of base files contain their instant. So do names of log files from version 8 on, and before version 8 in file
    groups that the instant began. Other log files of version 6 are known from their markers: also those on a base file
    of another action of the same time, which later writes may have written. Without any marker, and with `scan`, all
    log files are searched for blocks of the instant.
    """
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
            elif entry.name in marked.get(partition, ()) or (search and _wrote_to(table, partition, name, target)):
                logs.setdefault((partition, name.file_id, name.instant), {})[entry.name] = entry.size
    return RollbackPlan(target=target, action=action, doomed=tuple(doomed), revoked=revoked_slices(logs))


def revoked_slices(logs: Mapping[tuple[str, str, str], Mapping[str, int]]) -> tuple[RevokedSlice, ...]:
    """The slices of log files that are to be revoked, by (partition, file id, base instant) with their sizes."""
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
    """The file groups of data files."""
    split = (path.rpartition("/") for path in paths)
    return frozenset(
        (partition, name.file_id) for partition, _, text in split if (name := parse_data_file(text)) is not None
    )


def _named_by_others(table: Table, time: str, action: str) -> frozenset[str]:
    """Files that other completed actions of that time name. ConflictError: one is pending, so its files are unknown."""
    timeline = table.load_timeline()
    others = [i for i in timeline.pending_writes_at(time) if i.family not in (action, "commit")]
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
    """Base and log files of a partition; empty if there is no such folder (it has a marker, but was never made)."""
    try:
        entries = table.storage.list(partition)
    except MissingFileError:
        return
    for entry in entries:
        if not entry.is_folder and (name := parse_data_file(entry.name)) is not None:
            yield entry, name


def _wrote_to(table: Table, partition: str, name: BaseFileName | LogFileName, instant: str) -> bool:
    if isinstance(name, BaseFileName):
        return False
    return instant in instants_in(table, join(partition, str(name)))


def instants_in(table: Table, path: str) -> Iterator[str]:
    """The instant of each block with rows or deletes of a log file, front to back."""
    blocks = scan_blocks(table.storage.open_input(path), path)
    return (b.instant for b in blocks if b.kind not in (BlockKind.CORRUPT, BlockKind.COMMAND))
