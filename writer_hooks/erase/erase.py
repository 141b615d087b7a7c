"""Erases keys: their rows are deleted, and the files that held them are compacted, or removed.

Each round does what the search for the keys shows to be left, by the services of the table, one after the other:

    search     every base and log file of the table, also those that no reader needs (`key_list`)
    delete     the rows that readers still find, by one delta commit
    compact    the newest slices of touched file groups that have logs: pending plans that name them, then a new plan. A
               delete is always a log, so the compaction of its file group writes a base file without the keys
    clean      all older slices of touched file groups, and touched file groups that were replaced

Before the first search writes of dead writers are rolled back, and what dead table services left is ended: their staged
files may hold keys. A round that changes nothing is the last one. What it still finds is refused by name: a savepoint,
a pin, a pending write or service keeps it. Then the metadata table is compacted and cleaned as far as its own rules
allow, and a certificate is put into the audit log. A run that dies at any step is continued by the next run of the same
keys: no step depends on what an earlier run remembers.

    .hoodie/.phantombase/audit/erasures/<time>-<salt>.json       the certificate; it names no key"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from phantombase.compactor_daemon.attempt.finish import remove_abandoned, tidy
from phantombase.compactor_daemon.attempt.pending_clusterings import remove_dead_runs
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cancel import settle_dead_clusterings
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions
from phantombase.compactor_daemon.services.options import least_expiry_s
from phantombase.compactor_daemon.undo.dead_writers import roll_back_dead_writers
from phantombase.timeline.audit.ledgers import AUDIT_LOG
from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import BarrierError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.locks.table_lock import TableLock, check_writers_known, table_lock
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.read import read_entries
from phantombase.timeline.metadata_table.records.keys import RECORD_INDEX
from phantombase.timeline.option import check_finite, option, path_text, spelled, spelled_class
from phantombase.timeline.planning.options import PLAN_NAMED
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.contract import listed_if_there
from phantombase.timeline.storage.folders import METADATA_FOLDER, join
from phantombase.timeline.table.in_progress import refuse_left_to_hudi
from phantombase.timeline.table.table import Table
from phantombase.timeline.table.traces import remove_left_behind
from phantombase.timeline.view.view import GroupKey, TableView

from ..engine.engine import LocalEngine
from ..files.stored_keys import KEY_FIELD, slice_keys
from ..options import Operation, Write, WriteOptions
from ..write.rows import in_arrow
from ..write.write import write
from .key_list import OF_KEYS, KeyList, Left, Searched, keys_of_rows, left_files, read_keys, search, view_now

CERTIFICATES = f"{AUDIT_LOG}/erasures"
_ROUNDS = 5
_SLOTS = 2
_log = get_logger()


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class EraseOptions:
    """`floor_s`: see `CleanOptions`; files that a query may need which began that long ago stay, and are refused."""

    floor_s: float = option(
        0.0,
        "seconds; files that a query needs which began up to this long ago stay, and are named",
        flag="floor",
        least=0,
    )

    def __post_init__(self) -> None:
        check_finite(self, {"floor_s": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased(Shown):
    """`keys`: how many were asked for; `rows`: how many rows of them were deleted, or would be. `deleted`, `compacted`,
    `cleaned`: the instants. `touched`: file groups that held keys. `checked`: the data files that were read at the end
    and hold none. `left`: what was refused; in a dry run every file that holds keys. `metadata`: what the metadata
    table keeps, and until when; empty: nothing. `certificate`: its path; `salt`, `sha256`: see `KeyList.digest`."""

    keys: int
    rows: int = 0
    deleted: tuple[str, ...] = ()
    compacted: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    metadata: str = ""
    certificate: str | None = None
    salt: str = ""
    sha256: str = ""


@dataclass
class _Done:
    rows: int = 0
    deleted: list[str] = field(default_factory=list)
    compacted: list[str] = field(default_factory=list)
    cleaned: list[str] = field(default_factory=list)
    touched: set[GroupKey] = field(default_factory=set)

    @property
    def steps(self) -> tuple[int, int, int]:
        return len(self.deleted), len(self.compacted), len(self.cleaned)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    """What all steps share. `lock`: of the table, named as `--lock` names it; None: no other process writes."""

    keys: KeyList
    lock: str | None
    held: TableLock
    options: WriteOptions
    erase: EraseOptions
    execute: ExecuteOptions
    attempt: AttemptOptions


def erase_keys(
    table: Table,
    keys: KeyList,
    *,
    lock: str | None,
    options: WriteOptions | None = None,
    erase: EraseOptions | None = None,
    execute: ExecuteOptions | None = None,
    attempt: AttemptOptions | None = None,
    dry_run: bool = False,
) -> Erased:
    """Erases keys, see the module. `lock`: that all writers share; None: no other process writes. `options`: of the
    table's writes, such as its buckets. `dry_run`: changes nothing. UnsupportedError: a table with change data capture
    or consistent-hashing buckets, or that phantombase does not write. Errors of the steps: the next run continues."""
    refuse_left_to_hudi(table, "erasing keys of")
    table.config.check_changeable()
    means = _Means(
        keys=keys,
        lock=lock,
        held=table_lock(table.storage, lock, sole_writer=lock is None),
        options=replace(options or WriteOptions(), lock=lock, clock=table.clock),
        erase=erase or EraseOptions(),
        execute=execute or ExecuteOptions(),
        attempt=attempt or AttemptOptions(),
    )
    if not dry_run:
        _end_dead(table.snapshot(cached=False), means)
    done, seen = _Done(), table.snapshot(cached=False)
    found = _search(seen, keys, {})
    if dry_run:
        held = {one.group for one in found.held}
        rows = sum(batch.num_rows for batch in _living(seen, view_now(seen), held, keys))
        return Erased(
            keys=len(keys),
            rows=rows,
            touched=_names(held),
            checked=tuple(found.free),
            left=left_files(seen, found.held),
        )
    for _ in range(_ROUNDS):
        if not found.held:
            break
        before = done.steps, found.held
        _round(seen, found, means, done)
        seen = seen.snapshot(cached=False)
        found = _search(seen, keys, found.free)
        if (done.steps, found.held) == before:
            break
    remove_left_behind(seen)
    remove_dead_runs(seen)
    remove_abandoned(seen.storage)
    metadata = _clean_metadata(seen, means)
    return _certified(seen, found, means, done, metadata)


def _search(table: Table, keys: KeyList, known: Mapping[str, int]) -> Searched:
    """As `search`. MissingFileError, MalformedError: a file of the newest state is lost or damaged: it may hold a key,
    and come back."""
    for slice_ in view_now(table).slices():
        if keys.of_partition(slice_.partition) is not None:
            slice_.check_whole(table.storage.base_path)
    return search(table, _rules(table), keys, known)


def _delete(means: _Means) -> Write:
    return Write(operation=Operation.DELETE, options=means.options, lock=means.held)


def _end_dead(table: Table, means: _Means) -> None:
    lazy = _delete(means).rolls_back_lazily
    expiry_s = least_expiry_s(table.snapshot(cached=False), means.options.heartbeat_expiry_s)
    roll_back_dead_writers(table, means.held, lazy=lazy, expiry_s=expiry_s)
    settle_dead_clusterings(table.snapshot(cached=False), means.held)
    tidy(table.snapshot(cached=False), means.held)


def _round(table: Table, found: Searched, means: _Means, done: _Done) -> None:
    touched = {one.group for one in found.held}
    done.touched |= touched
    rows = list(_living(table, view_now(table), touched, means.keys))
    if rows:
        made = write(table, LocalEngine(pa.concat_tables(rows), slots=_SLOTS), _delete(means))
        done.rows += sum(batch.num_rows for batch in rows)
        done.deleted.append(made.instant)
    table = table.snapshot(cached=False)
    view = view_now(table)
    _compact(table, [p for key, p in view.facts.pending_plans.items() if key in touched], means, done)
    view = view_now(table := table.snapshot(cached=False))
    paths = {one.path for one in found.held}
    with_logs = {
        slice_.key
        for slice_ in view.slices()
        if slice_.key in touched and slice_.logs
        if done.deleted or any(file.path in paths for file in slice_.files)
    }
    if with_logs:
        planned = schedule_compaction(table, means.held, PLAN_NAMED, only=with_logs)
        _compact(table, [one.instant for one in planned.requested], means, done)
    options = CleanOptions(policy=Policy.VERSIONS, retain=1, floor_s=means.erase.floor_s)
    cleaned = clean_table(table.snapshot(cached=False), options, means.held, only=touched)
    done.cleaned += [one.instant for one in cleaned.finished]
    done.cleaned += [cleaned.instant] if cleaned.instant is not None else []


def _compact(table: Table, instants: Collection[str], means: _Means, done: _Done) -> None:
    for instant in sorted(set(instants)):
        with suppress(BarrierError):  # a live writer began before the plan: it is named at the end
            ran = run_compactions(
                table,
                instant=instant,
                lock=means.lock,
                sole_writer=means.lock is None,
                output=means.options.output,
                execute=means.execute,
                attempt=means.attempt,
                clock=table.clock,
            )
            done.compacted += [one.instant for one in ran.done]


def _rules(table: Table) -> SliceRules:
    seen = table.with_timeline(table.load_timeline())
    return slice_rules(seen, seen.newest_schema())


def _living(table: Table, view: TableView, touched: Collection[GroupKey], keys: KeyList) -> Iterator[pa.Table]:
    """The key and partition columns of the rows of these keys that a snapshot reader finds."""
    rules, config = _rules(table), table.config
    named = (*config.record_key_fields, *config.partition_fields)
    there = frozenset(rules.schema.names)
    columns = tuple(dict.fromkeys(n if n in there else n.partition(".")[0] for n in named))
    for slice_ in view.slices():
        lookup = keys.of_partition(slice_.partition)
        if slice_.key not in touched or lookup is None:
            continue
        for rows in slice_keys(table.storage, slice_, rules, columns):
            asked = np.flatnonzero(lookup.find(flat(rows.column(KEY_FIELD.name))) >= 0)
            if len(asked):
                yield rows.take(pa.array(asked)).select(list(columns))


def _clean_metadata(table: Table, means: _Means) -> str:
    """Compacts and cleans the metadata table as far as its rules allow; what its files still may hold."""
    built = [name for name in table.config.built_metadata_partitions if name.startswith(OF_KEYS)]
    if not built:
        return ""
    serve_metadata(table, MetadataOptions(max_delta_commits=1), means.held)
    table = table.snapshot(cached=False)
    named = 0
    if RECORD_INDEX in built:
        texts = set(means.keys.rows.column("key").to_pylist())
        named = sum(1 for _ in read_entries(table, RECORD_INDEX, texts))
    folders = [f"{METADATA_FOLDER}/{name}" for name in built]
    files = sum(
        not e.is_folder and not e.name.startswith(".hoodie")
        for f in folders
        for e in listed_if_there(table.storage, f) or ()
    )
    return (
        f"{', '.join(built)}: {named} of the keys in its newest state; older slices among its {files} files may hold "
        "keys, and are removed once it has been compacted twice more and three instants have completed "
        "(compactor-daemon metadata, or Hudi's writers)"
    )


def _certified(table: Table, found: Searched, means: _Means, done: _Done, metadata: str) -> Erased:
    """The result, with its certificate in the audit log."""
    salt = secrets.token_hex(16)
    made = Erased(
        keys=len(means.keys),
        rows=done.rows,
        deleted=tuple(done.deleted),
        compacted=tuple(done.compacted),
        cleaned=tuple(done.cleaned),
        touched=_names(done.touched),
        checked=tuple(sorted(found.free)),
        left=left_files(table, found.held),
        metadata=metadata,
        salt=salt,
        sha256=means.keys.digest(salt),
    )
    at_ms = clock_ms()
    path = f"{CERTIFICATES}/{table.times.moment(at_ms)}-{salt[:8]}.json"
    facts: Mapping[str, Any] = {
        **asdict(made),
        "certificate": None,
        "table": table.storage.base_path,
        "name": table.config.name,
        "version": table.config.version,
        "at_ms": at_ms,
        "no_data_file_holds_keys": not made.left,  # what the metadata table may hold is in `metadata`
    }
    table.storage.put_if_absent(path, json.dumps(facts, sort_keys=True).encode())
    _log.info("keys_erased", table=table.storage.base_path, keys=made.keys, rows=made.rows, left=len(made.left))
    return replace(made, certificate=path)


def _names(groups: Collection[GroupKey]) -> tuple[str, ...]:
    return tuple(sorted(join(*group) for group in groups))


@spelled
def erase(
    table: Table | str | os.PathLike[str],
    keys: Any,
    *,
    lock: str | None = None,
    sole_writer: bool = False,
    options: EraseOptions | None = None,
    writes: WriteOptions | None = None,
    execute: ExecuteOptions | None = None,
    output: OutputOptions | None = None,
    attempt: AttemptOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Erased:
    """Erases keys: no base or log file of the table holds them afterwards. `keys`: the path of a file (see
    `compactor-daemon erase --help`), or rows with the key columns that are, or give, an Arrow table. With the partition
    columns a key is erased in its partition only. `lock`: that all writers share; `sole_writer`: no other process
    writes. `writes`: the options of the table's writers, such as its buckets. What is refused is in `left` of the
    result. `storage_options`: see `read`. UsageError: neither lock nor sole_writer, or both (a dry run needs none); or
    no list of keys of this table. After any other error the next call continues."""
    if not dry_run:
        risk = "The rows of a write that is under way may keep the keys."
        check_writers_known(lock, sole_writer, "erase", risk, names="lock= and sole_writer=True")
    own = writes or WriteOptions()
    opened = table if isinstance(table, Table) else Table.open(path_text(table), storage_options).with_clock(own.clock)
    is_path = isinstance(keys, str | os.PathLike)
    rows = None if is_path else in_arrow(keys)
    if not is_path and not isinstance(rows, pa.Table):
        expected = "the path of a file, or rows that are, or give, an Arrow table"
        raise UsageError("not a list of keys", expected=expected, found=type(keys).__name__)
    asked = read_keys(Path(keys), opened) if rows is None else keys_of_rows(rows, opened)
    return erase_keys(
        opened,
        asked,
        lock=lock,
        options=own if output is None else replace(own, output=output),
        erase=options,
        execute=execute,
        attempt=attempt,
        dry_run=dry_run,
    )
