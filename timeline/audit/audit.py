"""Verifies a compaction again from the files that still exist, and shows whether it was undone later.

    ledger     every equation of the ledger, and the audit log against the commit
    output     its size, its footer and the hash of all its rows
    inputs     while all of them exist: the merge is run again and must give the same ledger
    closure    no log file that the view puts under the compaction was left out
    strays     no second base file and no second commit of the instant, no staged data left

If inputs are removed, only the output is counted and hashed. A cleaner removes inputs first and outputs later; a
rollback or restore that undoes the compaction removes both together with the commit. The audit reports such files, but
not as an error: the entry in the audit log remains, and its files need not exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TypeAlias

from ..codec.arrow_schema import project
from ..codec.parquet_read import open_parquet, readable
from ..errors import LedgerError, PhantombaseError, UsageError
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..format.ledger import GroupLedger
from ..format.log_block import HeaderKey, scan_blocks, select_blocks
from ..instants.reserved_times import STAGED_DATA, staged_files
from ..instants.timeline import Timeline
from ..merge.rule import SliceRules
from ..merge.slice_merge import identity_columns, identity_sum
from ..merge.slice_stream import LogTotals, SliceStream, base_tables, copied_ledger, log_totals
from ..merge.table_rules import slice_rules
from ..shown import Shown
from ..table.in_progress import refuse_half_upgraded
from ..table.table import Table, TableSchema, from_one_snapshot
from ..view.log_blocks import slice_blocks
from ..view.view import DataFile, FileGroup, FileSlice, GroupKey, TableView, is_replaced, latest_base, slice_before
from .ledgers import KeptLedgers, commits_with_ledgers, kept_ledgers, ledger_of, logged_clusterings, logged_instants


def is_undone(table: Table, instant: str, written: Collection[str]) -> bool:
    """Whether the execution of a compaction that wrote these files (paths in the table) was undone. Raises an error of
    the tree if the table cannot be read, since the answer is then unknown."""
    table = table.snapshot(cached=False)
    refuse_half_upgraded(table)
    timeline = table.load_timeline()  # before the archive is: Hudi archives an instant, then removes it here
    for done in table.files.completed_commits(instant):
        metadata = table.commit_metadata(done)
        if ledger_of(metadata) is not None or not metadata.named_files.isdisjoint(written):
            return False
        # Otherwise the commit names other files: a write of the same millisecond, or Hudi executed the plan since.
    return was_undone(instant, table.with_archive(timeline))


def was_undone(instant: str, timeline: Timeline) -> bool:
    """Whether a compaction that once completed, and no longer has a phantombase commit, was not archived (pure).
    `timeline`: with its archive. Archiving removes the oldest completed instants first. So if it has passed this
    instant, the archive holds this instant or older ones."""
    archived = [i.requested_time for i in timeline.archived if i.is_write]
    if instant in archived:
        return False
    return instant >= timeline.start or any(time < instant for time in archived)


_BATCH_ROWS = 65_536
_MEMORY_BYTES = 1 << 30
"""Memory for the merge that is run again; log data beyond it is spilled."""
_LOOKS_MAX = 5


class Verdict(Enum):
    PROVED = "proved"
    OUTPUT_PROVED = "output proved, inputs cleaned"
    CLEANED = "cleaned"
    UNDONE = "undone"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAudit(Shown):
    """One file group. `problems`: the differences found; empty unless WRONG."""

    partition: str
    file_id: str
    verdict: Verdict
    rows: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantAudit(Shown):
    """One compaction. `problems`: of the complete instant; `leftovers`: staged files that the next run removes."""

    instant: str
    groups: tuple[GroupAudit, ...]
    problems: tuple[str, ...]
    leftovers: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.problems and all(g.verdict is not Verdict.WRONG for g in self.groups)


def audited_instants(table: Table, only: str | None = None) -> tuple[str, ...]:
    """Compactions with a ledger, earliest first. UsageError: `only` is not one of them."""
    known = {i.requested_time for i in commits_with_ledgers(table)}
    found = known.union(logged_instants(table.storage)) - logged_clusterings(table.storage, unless=known)
    if only is None:
        return tuple(sorted(found))
    if only not in found:
        raise UsageError(
            "no ledger of this instant",
            path=table.storage.base_path,
            instant=only,
            expected=", ".join(sorted(found)) or "none: phantombase has compacted nothing here",
            todo="Only compactions by phantombase leave a ledger.",
        )
    return (only,)


def audit(table: Table, instant: str) -> InstantAudit:
    """Audits one instant, see `settled`."""
    return settled(lambda: _audit(table, instant))


def settled(snapshot: Callable[[], InstantAudit]) -> InstantAudit:
    """The result of the first good audit, or of the second of two equal audits in a row. Services may remove listed
    files during an audit; the next audit does not list them."""
    found = from_one_snapshot(snapshot)
    for _ in range(_LOOKS_MAX - 1):
        if found.good:
            break
        before, found = found, from_one_snapshot(snapshot)
        if found == before:
            break
    return found


def _audit(table: Table, instant: str) -> InstantAudit:
    ledgers = kept_ledgers(table, instant)
    problems = list(ledgers.problems)
    now = _now(table, ledgers, problems)
    flawed = ((one, [*_missed_logs(now, instant, one), *_second_files(now, instant, one)]) for one in ledgers.groups)
    groups = tuple(audited_group(one, found, partial(_files, now, instant, one)) for one, found in flawed)
    lost = {b.key for b in ledgers.groups if b.output is None or now.size(b, b.output) is None}
    groups = without_undone(table, instant, ledgers.groups, groups, lost, problems, only_wrong=True)
    staged = tuple(staged_files(table.storage, instant, STAGED_DATA))  # a finished compaction has removed them
    return InstantAudit(instant=instant, groups=groups, problems=tuple(problems), leftovers=staged)


def without_undone(
    table: Table,
    instant: str,
    recorded: Sequence[GroupLedger],
    groups: tuple[GroupAudit, ...],
    lost: Collection[GroupKey],
    problems: list[str],
    *,
    only_wrong: bool = False,
) -> tuple[GroupAudit, ...]:
    """Marks `lost` groups, whose file is missing, as UNDONE if the instant was undone; `only_wrong`: those that are
    wrong. Reads the archive, which is large, only for these."""
    written = [one.path(name) for one in recorded for name, _ in one.outputs]
    gone = [g for g in groups if (g.partition, g.file_id) in lost and (g.verdict is Verdict.WRONG or not only_wrong)]
    try:
        if not gone or not is_undone(table, instant, written):
            return groups
    except PhantombaseError as error:
        problems.append(f"whether it was undone is unknown: {error}")
        return groups
    return tuple(replace(g, verdict=Verdict.UNDONE, problems=()) if g in gone else g for g in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The table as it is now: its view, None if it cannot be built, and the files of the partitions concerned."""

    table: Table
    ledgers: KeptLedgers
    view: TableView | None
    sizes: Mapping[str, Mapping[str, int]]

    def size(self, recorded: GroupLedger, name: str) -> int | None:
        return self.sizes.get(recorded.partition, {}).get(name)

    def group(self, recorded: GroupLedger) -> FileGroup | None:
        groups = self.view.groups if self.view is not None else ()
        return next((g for g in groups if g.key == recorded.key), None)


def _now(table: Table, ledgers: KeptLedgers, problems: list[str]) -> _Now:
    there = table.views.existing(b.partition for b in ledgers.groups)
    try:
        view = from_one_snapshot(lambda: table.snapshot(cached=False).load_view(exactly=there))
    except PhantombaseError as error:  # two base files of an instant, or a lost one: audits must report that
        problems.append(str(error))
        view = None
    sizes = {p: {e.name: e.size for e in table.storage.list(p) if not e.is_folder} for p in there}
    return _Now(table=table, ledgers=ledgers, view=view, sizes=sizes)


def audited_group(recorded: GroupLedger, problems: list[str], files: Callable[[], Verdict]) -> GroupAudit:
    """The result for a file group. `problems`: found so far; `files`: checks its files, and raises what disagrees."""
    verdict = Verdict.WRONG
    try:
        recorded.ledger.check_itself(recorded.path(recorded.file_id))
        verdict = files()
    except PhantombaseError as error:
        problems.append(str(error))
    return GroupAudit(
        partition=recorded.partition,
        file_id=recorded.file_id,
        verdict=Verdict.WRONG if problems else verdict,
        rows=recorded.ledger.rows_out,
        problems=tuple(problems),
    )


def _missed_logs(now: _Now, instant: str, recorded: GroupLedger) -> Iterator[str]:
    """Checks closure again: finds logs of the compacted slice, with or without a base file, that are not inputs. Skips
    replaced file groups, whose logs readers ignore, and log compactions, which merge only some."""
    group = now.group(recorded)
    if (
        group is None
        or now.view is None
        or is_replaced(group, now.view.facts)
        or _merges_logs(recorded)
        or not recorded.inputs
    ):
        return
    below = slice_before(group, instant)
    for log in below.logs if below is not None else ():
        if str(log.name) not in recorded.inputs:
            yield f"{log.path} belongs to the compacted slice but was not merged: its rows are in no base file"


def _second_files(now: _Now, instant: str, recorded: GroupLedger) -> Iterator[str]:
    for text in now.sizes.get(recorded.partition, {}):
        name = parse_data_file(text)
        same = isinstance(name, BaseFileName) and (name.file_id, name.instant) == (recorded.file_id, instant)
        if same and text != recorded.output:
            yield f"{recorded.path(text)}: a second base file of the instant; the commit names {recorded.output}"


def _files(now: _Now, instant: str, recorded: GroupLedger) -> Verdict:
    """Checks what the existing files allow; raises an error of the tree if something disagrees."""
    if recorded.output is None:
        return Verdict.PROVED
    storage, path = now.table.storage, recorded.path(recorded.output)
    size = now.size(recorded, recorded.output)
    if size is None:
        if now.view is not None and _is_superseded(now, now.view, recorded, instant):
            return Verdict.CLEANED
        raise LedgerError("the written file is missing although it is the newest", path=path, instant=instant)
    read = _read_log if _merges_logs(recorded) else read_base
    out, schema = read_written(now.table, path, recorded, size, read)
    ledger = recorded.ledger
    if any(now.size(recorded, name) is None for name in recorded.inputs):
        return Verdict.OUTPUT_PROVED
    schema = now.table.with_timeline(now.table.load_timeline()).schema_written(schema.commit_text, instant)
    # A log compaction merges logs without their base file, which blocks may name: it is of an earlier instant.
    below = instant if _merges_logs(recorded) else ""
    rules = rules_of_audit(now.table, schema, recorded)
    inputs = slice_of(recorded.key, recorded.inputs, partial(now.size, recorded), below)
    stream = SliceStream(storage, inputs, rules)
    again = stream.ledger(sum(batch.num_rows for batch in stream.batches()), out)
    if read is _read_log and again != ledger and not ledger.superseded:  # copied, not merged
        taken = log_totals(storage, select_blocks(slice_blocks(storage, inputs), rules.visibility).blocks, rules)
        again = copied_ledger(taken, LogTotals(rows=ledger.rows_out, deletes=taken.deletes, identity=out))
    same("ledger of the repeated merge", again, ledger, path)
    return Verdict.PROVED


_Read: TypeAlias = Callable[[Table, str, GroupLedger], tuple[int, int, TableSchema]]


def read_written(table: Table, path: str, recorded: GroupLedger, size: int, read: _Read) -> tuple[int, TableSchema]:
    """Hash of the rows of the written file, and its schema. LedgerError: it is not as recorded."""
    ledger = recorded.ledger
    same("size of the written file", size, recorded.size, path)
    rows_out, out, schema = read(table, path, recorded)
    same("number of rows in the written file", rows_out, ledger.rows_out, path)
    if ledger.identity is not None:
        same("hash of the rows in the written file", f"{out:016x}", f"{ledger.identity.out:016x}", path)
    return out, schema


def read_base(table: Table, path: str, recorded: GroupLedger) -> tuple[int, int, TableSchema]:
    """Row count and row hash of a base file, and the schema it was written with (the table's may have changed)."""
    with table.storage.open_input(path, whole=False) as source, readable("base file", path):
        footer = open_parquet(source).metadata
        schema = table.schema((footer.metadata or {}).get(b"parquet.avro.schema", b"").decode())
    return footer.num_rows, hash_of_base(table, path, schema), schema


def hash_of_base(table: Table, path: str, schema: TableSchema) -> int:
    """Hash of the rows of a base file, read with a schema; columns missing in the file are null."""
    columns = project(schema.arrow, identity_columns(schema.arrow))
    return identity_sum(t for t, _ in base_tables(table.storage, path, columns, _BATCH_ROWS))


def _read_log(table: Table, path: str, recorded: GroupLedger) -> tuple[int, int, TableSchema]:
    """Row count and row hash of a log compaction's file, and the schema it was written with."""
    with table.storage.open_input(path) as source:
        blocks = list(scan_blocks(source, path))
    schema = table.schema(blocks[-1].header(HeaderKey.SCHEMA))
    found = log_totals(table.storage, blocks, rules_of_audit(table, schema, recorded))
    same("number of deletes in the written file", found.deletes, recorded.ledger.deletes_of_absent, path)
    return found.rows, found.identity, schema


def rules_of_audit(table: Table, schema: TableSchema, recorded: GroupLedger) -> SliceRules:
    """How the inputs are merged again."""
    every = not table.config.merges_as_1x
    rules = slice_rules(table.with_timeline(table.load_timeline()), schema, every_duplicate=every)
    ledger = recorded.ledger
    return replace(rules, identity=ledger.identity is not None, memory_bytes=_MEMORY_BYTES, expiry=ledger.expiry)


def _is_superseded(now: _Now, view: TableView, recorded: GroupLedger, instant: str) -> bool:
    """Whether a clean may have removed the file: a newer one exists, it was replaced, or no commit names one."""
    group = now.group(recorded)
    if recorded.key in view.facts.replaced:
        return True
    if group is None:
        return (
            recorded.key not in view.facts.compacted and recorded.path(recorded.output or "") not in now.ledgers.named
        )
    base = latest_base(group)
    return base is not None and base.name.instant > instant


def slice_of(
    key: GroupKey, names: Iterable[str], size: Callable[[str], int | None], without_base: str = ""
) -> FileSlice:
    """The merged files of a group as a slice. `without_base`: its instant if there is no base file."""
    (partition, file_id), base, logs = key, None, []
    for text in names:
        name, found = parse_data_file(text), size(text) or 0
        if isinstance(name, BaseFileName):
            base = DataFile(partition=partition, name=name, size=found)
        elif name is not None:
            logs.append(DataFile(partition=partition, name=name, size=found))
    of = without_base if base is None else base.name.instant
    return FileSlice(partition=partition, file_id=file_id, base_instant=of, base=base, logs=tuple(logs))


def _merges_logs(recorded: GroupLedger) -> bool:
    return recorded.output is not None and isinstance(parse_data_file(recorded.output), LogFileName)


def same(what: str, found: object, expected: object, path: str) -> None:
    """LedgerError: they differ."""
    if found != expected:
        raise LedgerError(f"{what} is not what the ledger says", path=path, expected=str(expected), found=str(found))
