"""Verifies a completed clustering again from the files that still exist.

    ledger     its equations
    output     its size, its footer and the hash of all its rows
    inputs     while all of them exist: the sum of their row hashes is that of the output
    closure    no log file on an input, since the output would lack its entries
    overlap    no other commit replaced an input, since its rows would be visible again

A clustering is audited while its commit is on the active timeline; it has no entry in the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..errors import LedgerError, MissingFileError
from ..format.commit_metadata import CommitMetadata
from ..format.file_name import parse_data_file
from ..format.ledger import CLUSTERED, GroupLedger, decode_ledgers
from ..table.table import Table, from_one_snapshot
from ..view.view import FileGroup, GroupKey, TableView, latest_base
from .audit import InstantAudit, Verdict, audited_group, hash_of_base, read_base, read_written, same, settled


def clustered_instants(table: Table) -> tuple[str, ...]:
    """Completed clusterings of phantombase on the active timeline, earliest first."""
    return tuple(time for time, metadata in _replacing(table).items() if CLUSTERED in metadata.extra_metadata)


def audit_clustering(table: Table, instant: str) -> InstantAudit:
    """Audits one clustering, see `settled`. Errors of the tree: the commit or the view cannot be read."""
    return settled(lambda: _audit(table, instant))


def _audit(table: Table, instant: str) -> InstantAudit:
    commits = _replacing(table)
    if instant not in commits:
        raise MissingFileError(
            "the clustering was archived or undone while the table was audited",
            path=table.storage.base_path,
            instant=instant,
            todo="Run it again: only clusterings on the active timeline are audited.",
        )
    recorded = decode_ledgers(commits[instant].extra_metadata[CLUSTERED], f"the commit of {instant}")
    replaced_by = {
        key: other for other, metadata in commits.items() if other != instant for key in metadata.replaced_groups
    }
    now = _Now(table, _groups_now(table, recorded), replaced_by)
    groups = tuple(audited_group(one, [*_of_inputs(now, one)], partial(_files, now, one)) for one in recorded)
    return InstantAudit(instant=instant, groups=groups, problems=(), leftovers=())


def _replacing(table: Table) -> dict[str, CommitMetadata]:
    completed = table.load_timeline().completed
    found = (i for i in completed if i.family == "replacecommit")
    return {i.requested_time: table.commit_metadata(i) for i in found}


def _groups_now(table: Table, recorded: Sequence[GroupLedger]) -> Mapping[GroupKey, FileGroup]:
    def load() -> TableView:
        now = table.reload()
        return now.load_view(exactly=now.views.existing(one.partition for one in recorded))

    return from_one_snapshot(load).by_key()


@dataclass(frozen=True, slots=True)
class _Now:
    """The table as it is now. `groups`: of its partitions. `replaced_by`: other commits that replaced file groups."""

    table: Table
    groups: Mapping[GroupKey, FileGroup]
    replaced_by: Mapping[GroupKey, str]

    def size(self, recorded: GroupLedger, name: str) -> int | None:
        entry = self.table.storage.find(recorded.path(name))
        return entry.size if entry is not None else None


def _of_inputs(now: _Now, recorded: GroupLedger) -> Iterator[str]:
    for text in recorded.inputs:
        name = parse_data_file(text)
        key = (recorded.partition, name.file_id if name is not None else text)
        if (other := now.replaced_by.get(key)) is not None:
            yield f"{recorded.path(text)} was also replaced by {other}: its rows are visible again"
        group = now.groups.get(key)
        for log in group.slices[-1].logs if group is not None and group.slices else ():
            yield f"{log.path} belongs to a clustered file: its rows are in no base file"


def _files(now: _Now, recorded: GroupLedger) -> Verdict:
    output = str(recorded.output)
    path, size = recorded.path(output), now.size(recorded, output)
    if size is None:
        if _is_superseded(now, recorded):
            return Verdict.CLEANED
        raise LedgerError("the written file is missing although it is the newest", path=path)
    out, schema = read_written(now.table, path, recorded, size, read_base)
    if any(now.size(recorded, name) is None for name in recorded.inputs):
        return Verdict.OUTPUT_PROVED
    found = sum(hash_of_base(now.table, recorded.path(name), schema) for name in recorded.inputs) % (1 << 64)
    same("hash of the rows in the files that were joined", f"{found:016x}", f"{out:016x}", path)
    return Verdict.PROVED


def _is_superseded(now: _Now, recorded: GroupLedger) -> bool:
    """Whether a clean may have removed the written file: a newer one exists, or its file group was replaced."""
    if recorded.key in now.replaced_by:
        return True
    group, name = now.groups.get(recorded.key), parse_data_file(str(recorded.output))
    base = latest_base(group) if group is not None else None
    return base is not None and name is not None and base.name.instant > name.instant
