"""Verifies a completed clustering again from the files that still exist.

    ledger     its equations, and the audit log against the commit
    outputs    their sizes, their footers, and the hash of the rows of each
    inputs     while all of them exist: merged again, they have the same ledger; without log files, the same hash
    closure    no log file on an input that is not an input itself, since the outputs would lack its entries
    overlap    no other commit replaced an input, since its rows would be visible again

One whose commit was archived, or undone, is audited by its entry in the audit log: its files need not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..errors import LedgerError
from ..format.commit_metadata import CommitMetadata
from ..format.file_name import parse_data_file
from ..format.ledger import CLUSTERED, MASK, GroupLedger, Ledger, total
from ..merge.slice_stream import SliceStream
from ..record_fields import gathered
from ..table.table import Table, TableSchema, from_one_snapshot
from ..view.view import FileGroup, GroupKey, TableView, latest_base
from .audit import (
    InstantAudit,
    Verdict,
    audit,
    audited_group,
    audited_instants,
    hash_of_base,
    read_base,
    rules_of_audit,
    same,
    settled,
    slice_of,
    without_undone,
)
from .ledgers import commits_with_ledgers, kept_ledgers, logged_clusterings


def clustered_instants(table: Table) -> tuple[str, ...]:
    """Completed clusterings of phantombase, also archived and undone ones, earliest first."""
    active = {time for time, metadata in _replacing(table).items() if CLUSTERED in metadata.extra_metadata}
    known = active.union(i.requested_time for i in commits_with_ledgers(table))
    return tuple(sorted(active | logged_clusterings(table.storage, unless=known)))


def audit_clustering(table: Table, instant: str) -> InstantAudit:
    """Audits one clustering, see `settled`. Errors of the tree: the commit or the view cannot be read."""
    return settled(lambda: _audit(table, instant))


def audits(table: Table, only: str | None = None) -> dict[str, Callable[[Table, str], InstantAudit]]:
    """The compactions and clusterings with a ledger, earliest first, each with what audits it. UsageError: `only` is
    none of them."""
    clustered = clustered_instants(table)
    if only in clustered:
        return {only: audit_clustering}
    found = dict.fromkeys(audited_instants(table, only), audit)
    if only is None:
        found |= dict.fromkeys(clustered, audit_clustering)
    return dict(sorted(found.items()))


def _audit(table: Table, instant: str) -> InstantAudit:
    commits, ledgers = _replacing(table), kept_ledgers(table, instant)
    recorded, problems = ledgers.groups, list(ledgers.problems)
    replaced_by = {
        key: other for other, metadata in commits.items() if other != instant for key in metadata.replaced_groups
    }
    now = _Now(table, _groups_now(table, recorded), replaced_by, ledgers.named)
    flawed = [(one, [*_of_inputs(now, one)] if instant in commits else []) for one in recorded]
    groups = tuple(audited_group(one, found, partial(_files, now, one)) for one, found in flawed)
    lost = {one.key for one in recorded if any(now.size(one, name) is None for name, _ in one.outputs)}
    if lost and instant not in commits:
        groups = without_undone(table, instant, recorded, groups, lost, problems)
    return InstantAudit(instant=instant, groups=groups, problems=tuple(problems), leftovers=())


def _replacing(table: Table) -> dict[str, CommitMetadata]:
    completed = table.load_timeline().completed
    found = (i for i in completed if i.family == "replacecommit")
    return {i.requested_time: table.commit_metadata(i) for i in found}


def _groups_now(table: Table, recorded: Sequence[GroupLedger]) -> Mapping[GroupKey, FileGroup]:
    def load() -> TableView:
        now = table.snapshot(cached=False)
        return now.load_view(exactly=now.views.existing(one.partition for one in recorded))

    return from_one_snapshot(load).by_key()


@dataclass(frozen=True, slots=True)
class _Now:
    """The table as it is now. `groups`: of its partitions. `replaced_by`: other commits that replaced file groups.
    `named`: files that the commit of the clustering names."""

    table: Table
    groups: Mapping[GroupKey, FileGroup]
    replaced_by: Mapping[GroupKey, str]
    named: frozenset[str]

    def size(self, recorded: GroupLedger, name: str) -> int | None:
        entry = self.table.storage.find(recorded.path(name))
        return entry.size if entry is not None else None


def _of_inputs(now: _Now, recorded: GroupLedger) -> Iterator[str]:
    merged = frozenset(recorded.inputs)
    for key, texts in _by_file_id(recorded).items():
        text = texts[0]
        if (other := now.replaced_by.get(key)) is not None:
            yield f"{recorded.path(text)} was also replaced by {other}: its rows are visible again"
        group = now.groups.get(key)
        for log in group.slices[-1].logs if group is not None and group.slices else ():
            if str(log.name) not in merged:
                yield f"{log.path} belongs to a clustered file: its rows are in no base file"


def _by_file_id(recorded: GroupLedger) -> dict[GroupKey, tuple[str, ...]]:
    """The names of the inputs, by file group."""
    names = ((text, parse_data_file(text)) for text in recorded.inputs)
    return gathered(((recorded.partition, text if name is None else name.file_id), text) for text, name in names)


def _files(now: _Now, recorded: GroupLedger) -> Verdict:
    rows = out = 0
    schema, gone = None, False
    for number, (output, expected) in enumerate(recorded.outputs):
        path, size = recorded.path(output), now.size(recorded, output)
        if size is None:
            if not _is_superseded(now, recorded, output):
                raise LedgerError("the written file is missing although it is the newest", path=path)
            gone = True
            continue
        same("size of the written file", size, expected, path)
        count, hash_, schema = read_base(now.table, path, recorded)
        if recorded.hashes:
            same("hash of the rows in the written file", f"{hash_:016x}", f"{recorded.hashes[number]:016x}", path)
        rows, out = rows + count, (out + hash_) & MASK
    if gone:
        return Verdict.CLEANED
    where, ledger = recorded.path(recorded.file_id), recorded.ledger
    same("number of rows in the written files", rows, ledger.rows_out, where)
    if ledger.identity is not None:
        same("hash of the rows in the written files", f"{out:016x}", f"{ledger.identity.out:016x}", where)
    if any(now.size(recorded, name) is None for name in recorded.inputs):
        return Verdict.OUTPUT_PROVED
    if schema is None:
        schema = now.table.with_timeline(now.table.load_timeline()).newest_schema()
    if ledger.log_entries or any(name.startswith(".") for name in recorded.inputs):
        same("ledger of the repeated merge", _merged_again(now, recorded, schema, out), ledger, where)
        return Verdict.PROVED
    found = sum(hash_of_base(now.table, recorded.path(name), schema) for name in recorded.inputs) & MASK
    same("hash of the rows in the files that were joined", f"{found:016x}", f"{out:016x}", where)
    return Verdict.PROVED


def _merged_again(now: _Now, recorded: GroupLedger, schema: TableSchema, out: int) -> Ledger:
    """The ledger of the inputs, merged again. `out`: the hash of the rows written."""
    rules, ledgers, rows = rules_of_audit(now.table, schema, recorded), [], 0
    for key, texts in _by_file_id(recorded).items():
        stream = SliceStream(now.table.storage, slice_of(key, texts, partial(now.size, recorded)), rules)
        rows += sum(batch.num_rows for batch in stream.batches())
        ledgers.append(stream.ledger(0, 0))
    found = total(ledgers)
    return replace(found, rows_out=rows, identity=found.identity and replace(found.identity, out=out))


def _is_superseded(now: _Now, recorded: GroupLedger, output: str) -> bool:
    """Whether a clean may have removed a written file: a newer one exists, or its file group was replaced."""
    name = parse_data_file(output)
    key = (recorded.partition, recorded.file_id if name is None else name.file_id)
    if key in now.replaced_by:
        return True
    if (group := now.groups.get(key)) is None:
        return recorded.path(output) not in now.named
    base = latest_base(group)
    return base is not None and name is not None and base.name.instant > name.instant
