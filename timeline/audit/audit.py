"""Proves a compaction again from the files that still exist.

    books      every equation of the ledger, and the audit log against the commit
    output     size, footer and the hash of all rows in it
    inputs     while all of them are there: the merge is run again and must give the same books; the base file alone
               is counted and hashed
    closure    no log file that the view puts under the compaction was left out
    strays     no second base file of the instant, no second commit of it, no staged data left

Cleaners take inputs first and outputs later, a rollback or restore takes both with the commit: what is gone that way is
said, not blamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ..avro.schema import project
from ..errors import LedgerError, PhantombaseError, UsageError
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..instants.attempt_names import STAGED_DATA, staged_files
from ..log.block import HeaderKey, scan_blocks
from ..log.visibility import select_blocks
from ..merge.identity import identity_columns, identity_sum
from ..merge.slice_rules import SliceRules
from ..parquet.read import open_parquet, readable
from ..read.slice_log import slice_blocks
from ..read.slice_stream import SliceStream, base_tables
from ..read.table_read import slice_rules
from ..table.table import Table, TableSchema, consistent
from ..view.view import DataFile, FileGroup, FileSlice, TableView, is_replaced, latest_base, slice_before
from .books import GroupBooks, logged_instants
from .kept_books import KeptBooks, commits_with_books, kept_books
from .log_totals import LogTotals, books_of_all, log_totals
from .undone import is_undone

_BATCH_ROWS = 65_536
_MEMORY_BYTES = 1 << 30
"""For the merge run again; log data beyond it is spilled."""


class Verdict(Enum):
    """What an audit can say of a file group."""

    PROVED = "proved"
    OUTPUT_PROVED = "output proved, inputs cleaned"
    CLEANED = "cleaned"
    UNDONE = "undone"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAudit:
    """One file group. `problems`: what does not agree, empty unless WRONG."""

    partition: str
    file_id: str
    verdict: Verdict
    rows: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantAudit:
    """One compaction. `problems`: those of the instant as a whole; `leftovers`: staged files, for the next run."""

    instant: str
    groups: tuple[GroupAudit, ...]
    problems: tuple[str, ...]
    leftovers: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Nothing is wrong."""
        return not self.problems and all(g.verdict is not Verdict.WRONG for g in self.groups)


def audited_instants(table: Table, only: str | None = None) -> tuple[str, ...]:
    """Compactions that left books, earliest first. UsageError: `only` is none of them."""
    found = {i.requested_time for i in commits_with_books(table)} | set(logged_instants(table.storage))
    if only is None:
        return tuple(sorted(found))
    if only not in found:
        raise UsageError(
            "no ledger of this instant",
            path=table.storage.base_path,
            instant=only,
            expected=", ".join(sorted(found)) or "none: phantombase has compacted nothing here",
            todo="Only compactions by phantombase leave one.",
        )
    return (only,)


def audit(table: Table, instant: str) -> InstantAudit:
    """Audits one instant."""
    books = kept_books(table, instant)
    problems = list(books.problems)
    now = _now(table, books, problems)
    groups = tuple(_audit_group(now, instant, one) for one in books.groups)
    return InstantAudit(
        instant=instant,
        groups=_without_undone(now, instant, groups, problems),
        problems=tuple(problems),
        leftovers=tuple(staged_files(table.storage, instant, STAGED_DATA)),  # a finished compaction has removed them
    )


def _without_undone(
    now: _Now, instant: str, groups: tuple[GroupAudit, ...], problems: list[str]
) -> tuple[GroupAudit, ...]:
    """Wrong ones whose file is gone are right where the compaction was undone. Asked only then: archives are large."""
    written = [b.path(b.output) for b in now.books.groups if b.output is not None]
    lost = {b.key for b in now.books.groups if b.output is None or now.size(b, b.output) is None}
    wrong = [g for g in groups if g.verdict is Verdict.WRONG and (g.partition, g.file_id) in lost]
    try:
        if not wrong or not is_undone(now.table, instant, written):
            return groups
    except PhantombaseError as error:
        problems.append(f"whether the compaction was undone is unknown: {error}")
        return groups
    return tuple(replace(g, verdict=Verdict.UNDONE, problems=()) if g in wrong else g for g in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The table as it is: its view, None where it has none, and the files of the partitions concerned."""

    table: Table
    books: KeptBooks
    view: TableView | None
    sizes: Mapping[str, Mapping[str, int]]

    def size(self, books: GroupBooks, name: str) -> int | None:
        return self.sizes.get(books.partition, {}).get(name)

    def group(self, books: GroupBooks) -> FileGroup | None:
        groups = self.view.groups if self.view is not None else ()
        return next((g for g in groups if g.key == books.key), None)


def _now(table: Table, books: KeptBooks, problems: list[str]) -> _Now:
    partitions = {b.partition for b in books.groups}
    there = {p for p in partitions if not p or table.storage.find(p) is not None}
    try:
        view = consistent(lambda: table.reload().load_view(exactly=there))
    except PhantombaseError as error:  # two base files of an instant, a lost one: what audits are for
        problems.append(str(error))
        view = None
    sizes = {p: {e.name: e.size for e in table.storage.list(p) if not e.is_folder} for p in there}
    return _Now(table=table, books=books, view=view, sizes=sizes)


def _audit_group(now: _Now, instant: str, books: GroupBooks) -> GroupAudit:
    problems = [*_missed_logs(now, instant, books), *_second_files(now, instant, books)]
    verdict = Verdict.WRONG
    try:
        books.ledger.check_itself(books.path(books.file_id))
        verdict = _files(now, instant, books)
    except PhantombaseError as error:
        problems.append(str(error))
    return GroupAudit(
        partition=books.partition,
        file_id=books.file_id,
        verdict=Verdict.WRONG if problems else verdict,
        rows=books.ledger.rows_out,
        problems=tuple(problems),
    )


def _missed_logs(now: _Now, instant: str, books: GroupBooks) -> Iterator[str]:
    """Closure, looked at again: logs of the compacted slice, also without a base file, which are not among the inputs.

    Of a replaced file group nobody reads any. A log compaction takes some logs of a slice only.
    """
    group = now.group(books)
    merges_logs = books.output is not None and isinstance(parse_data_file(books.output), LogFileName)
    if group is None or now.view is None or is_replaced(group, now.view.facts) or merges_logs or not books.inputs:
        return
    below = slice_before(group, instant)
    for log in below.logs if below is not None else ():
        if str(log.name) not in books.inputs:
            yield f"{log.path} lies under the compaction but was not merged: its rows are in no base file"


def _second_files(now: _Now, instant: str, books: GroupBooks) -> Iterator[str]:
    for text in now.sizes.get(books.partition, {}):
        name = parse_data_file(text)
        same = isinstance(name, BaseFileName) and (name.file_id, name.instant) == (books.file_id, instant)
        if same and text != books.output:
            yield f"{books.path(text)}: a second base file of the instant; the commit names {books.output}"


def _files(now: _Now, instant: str, books: GroupBooks) -> Verdict:
    """Proves what the files still allow; an error of the tree where they disagree."""
    if books.output is None:
        return Verdict.PROVED
    storage, path = now.table.storage, books.path(books.output)
    size = now.size(books, books.output)
    if size is None:
        if now.view is not None and _is_superseded(now, now.view, books, instant):
            return Verdict.CLEANED
        raise LedgerError("the file written is gone although it is the newest", path=path, instant=instant)
    _same("size of the file written", size, books.size, path)
    read = _read_log if isinstance(parse_data_file(books.output), LogFileName) else _read_base
    rows_out, out, schema = read(now.table, path, books)
    ledger = books.ledger
    _same("rows of the file written", rows_out, ledger.rows_out, path)
    if ledger.identity is not None:
        _same("hash of the rows in it", f"{out:016x}", f"{ledger.identity.out:016x}", path)
    if any(now.size(books, name) is None for name in books.inputs):
        return Verdict.OUTPUT_PROVED
    rules, inputs = _rules(now.table, schema, books), _inputs(now, books)
    stream = SliceStream(storage, inputs, rules)
    again = stream.ledger(sum(batch.num_rows for batch in stream.batches()), out)
    if read is _read_log and again != ledger and not ledger.superseded:  # copied, not merged
        taken = log_totals(storage, select_blocks(slice_blocks(storage, inputs), rules.visibility).blocks, rules)
        again = books_of_all(taken, LogTotals(rows=rows_out, deletes=taken.deletes, identity=out))
    _same("books of the merge run again", again, ledger, path)
    return Verdict.PROVED


def _read_base(table: Table, path: str, books: GroupBooks) -> tuple[int, int, TableSchema]:
    """Rows of a base file, their hash, and the schema of then: the table's may have changed since."""
    with table.storage.open_input(path) as source, readable("base file", path):
        footer = open_parquet(source).metadata
        schema = table.schema((footer.metadata or {}).get(b"parquet.avro.schema", b"").decode())
    columns = project(schema.arrow, identity_columns(schema.arrow))
    out = identity_sum(t for t, _ in base_tables(table.storage, path, columns, _BATCH_ROWS))
    return footer.num_rows, out, schema


def _read_log(table: Table, path: str, books: GroupBooks) -> tuple[int, int, TableSchema]:
    """Rows of the log file of a log compaction, their hash, and the schema of then."""
    with table.storage.open_input(path) as source:
        blocks = list(scan_blocks(source, path))
    schema = table.schema(blocks[-1].header(HeaderKey.SCHEMA))
    found = log_totals(table.storage, blocks, _rules(table, schema, books))
    _same("deletes of the file written", found.deletes, books.ledger.deletes_of_absent, path)
    return found.rows, found.identity, schema


def _rules(table: Table, schema: TableSchema, books: GroupBooks) -> SliceRules:
    every = table.layout.every_duplicate_compacted
    rules = slice_rules(table, table.load_timeline(), schema, every_duplicate=every)
    return replace(rules, identity=books.ledger.identity is not None, memory_bytes=_MEMORY_BYTES)


def _is_superseded(now: _Now, view: TableView, books: GroupBooks, instant: str) -> bool:
    """Whether a cleaner may have taken a file that was written for the group at the instant.

    Of a group without a file that is for certain while a commit names one: nobody cleans that unless it is replaced.
    """
    group = now.group(books)
    if books.key in view.facts.replaced:
        return True
    if group is None:
        return books.key not in view.facts.compacted and books.path(books.output or "") not in now.books.named
    base = latest_base(group)
    return base is not None and base.name.instant > instant


def _inputs(now: _Now, books: GroupBooks) -> FileSlice:
    """The slice as it was merged."""
    base, logs = None, []
    for text in books.inputs:
        name, size = parse_data_file(text), now.size(books, text) or 0
        if isinstance(name, BaseFileName):
            base = DataFile(partition=books.partition, name=name, size=size)
        elif name is not None:
            logs.append(DataFile(partition=books.partition, name=name, size=size))
    return FileSlice(
        partition=books.partition,
        file_id=books.file_id,
        base_instant=base.name.instant if base is not None else "",
        base=base,
        logs=tuple(logs),
    )


def _same(what: str, found: object, expected: object, path: str) -> None:
    if found != expected:
        raise LedgerError(f"{what} is not what the ledger says", path=path, expected=str(expected), found=str(found))
