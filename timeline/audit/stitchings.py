"""Verifies a completed stitching again from the files that still exist.

    ledger     its equations
    output     its size, its footer and the hash of all its rows
    inputs     while all of them exist: the sum of their row hashes is that of the output
    closure    no log file on an input: it is in no base file
    overlap    no other commit replaced an input: its rows would be visible again

A stitching is audited as long as its commit is on the active timeline; it leaves no audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..avro.schema import project
from ..errors import LedgerError, PhantombaseError
from ..format.commit_metadata import CommitMetadata
from ..format.file_name import parse_data_file
from ..merge.identity import identity_columns, identity_sum
from ..read.slice_stream import base_tables
from ..table.table import Table, TableSchema, consistent
from ..view.view import GroupKey, TableView
from .audit import BATCH_ROWS, GroupAudit, InstantAudit, Verdict, read_base, same
from .group_ledger import STITCHED, GroupLedger, decode_ledgers


def stitched_instants(table: Table) -> tuple[str, ...]:
    """Completed stitchings of phantombase on the active timeline, earliest first."""
    return tuple(time for time, metadata in _replacing(table).items() if STITCHED in metadata.extra_metadata)


def audit_stitching(table: Table, instant: str) -> InstantAudit:
    """Audits one of them. Errors of the tree: the commit or the view cannot be read."""
    commits = _replacing(table)
    recorded = decode_ledgers(commits[instant].extra_metadata[STITCHED], f"the commit of {instant}")
    replaced_by = {
        (partition, file_id): other
        for other, metadata in commits.items()
        for partition, ids in (metadata.partition_to_replace_file_ids or {}).items()
        for file_id in ids
        if other != instant
    }
    view = consistent(lambda: table.reload().load_view())
    now = _Now(table, view, replaced_by)
    return InstantAudit(
        instant=instant, groups=tuple(_audit_group(now, one) for one in recorded), problems=(), leftovers=()
    )


def _replacing(table: Table) -> dict[str, CommitMetadata]:
    completed = table.load_timeline().completed
    found = (i for i in completed if i.family == "replacecommit")
    return {i.requested_time: table.commit_metadata(i) for i in found}


@dataclass(frozen=True, slots=True)
class _Now:
    """The table as it is now. `replaced_by`: the other commits that replaced file groups."""

    table: Table
    view: TableView
    replaced_by: dict[GroupKey, str]

    def size(self, recorded: GroupLedger, name: str) -> int | None:
        entry = self.table.storage.find(recorded.path(name))
        return entry.size if entry is not None else None


def _audit_group(now: _Now, recorded: GroupLedger) -> GroupAudit:
    problems = [*_of_inputs(now, recorded)]
    verdict = Verdict.WRONG
    try:
        recorded.ledger.check_itself(recorded.path(recorded.file_id))
        verdict = _files(now, recorded)
    except PhantombaseError as error:
        problems.append(str(error))
    return GroupAudit(
        partition=recorded.partition,
        file_id=recorded.file_id,
        verdict=Verdict.WRONG if problems else verdict,
        rows=recorded.ledger.rows_out,
        problems=tuple(problems),
    )


def _of_inputs(now: _Now, recorded: GroupLedger) -> Iterator[str]:
    known = now.view.by_key()
    for text in recorded.inputs:
        name = parse_data_file(text)
        key = (recorded.partition, name.file_id if name is not None else text)
        if (other := now.replaced_by.get(key)) is not None:
            yield f"{recorded.path(text)} was also replaced by {other}: its rows are visible again"
        group = known.get(key)
        for log in group.slices[-1].logs if group is not None and group.slices else ():
            yield f"{log.path} belongs to a stitched file: its rows are in no base file"


def _files(now: _Now, recorded: GroupLedger) -> Verdict:
    """Checks as much as the existing files allow; raises an error of the tree if something disagrees."""
    output, ledger = str(recorded.output), recorded.ledger
    path, size = recorded.path(output), now.size(recorded, output)
    if size is None:
        if _is_superseded(now, recorded):
            return Verdict.CLEANED
        raise LedgerError("the written file is gone although it is the newest", path=path)
    same("size of the written file", size, recorded.size, path)
    rows_out, out, schema = read_base(now.table, path, recorded)
    same("number of rows in the written file", rows_out, ledger.rows_out, path)
    if ledger.identity is None:
        return Verdict.OUTPUT_PROVED
    same("hash of the rows in the written file", f"{out:016x}", f"{ledger.identity.out:016x}", path)
    if any(now.size(recorded, name) is None for name in recorded.inputs):
        return Verdict.OUTPUT_PROVED
    paths = [recorded.path(name) for name in recorded.inputs]
    found = sum(_hash_of(now.table, one, schema) for one in paths) % (1 << 64)
    same("hash of the rows in the files that were joined", f"{found:016x}", f"{out:016x}", path)
    return Verdict.PROVED


def _hash_of(table: Table, path: str, schema: TableSchema) -> int:
    """Of the rows as they are read with the schema of the written file: columns that an input lacks are null."""
    columns = project(schema.arrow, identity_columns(schema.arrow))
    return identity_sum(t for t, _ in base_tables(table.storage, path, columns, BATCH_ROWS))


def _is_superseded(now: _Now, recorded: GroupLedger) -> bool:
    """Whether a clean may have removed the written file: a newer one is there, or its file group was replaced."""
    if recorded.key in now.replaced_by:
        return True
    group = now.view.by_key().get(recorded.key)
    name = parse_data_file(str(recorded.output))
    bases = [s.base.name.instant for s in group.slices if s.base is not None] if group is not None else []
    return name is not None and any(instant > name.instant for instant in bases)
