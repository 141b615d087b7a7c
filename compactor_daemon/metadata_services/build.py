"""Builds the metadata table of a table that has none, adds partitions to it, or builds it again if it is damaged.

    stage    outside the lock, in a folder that neither Hudi nor readers look at: log files that lead from the empty
             state to the newest one; then what completed meanwhile, by the difference of states; base files of all
    switch   in the lock: the last difference; base files get their names, in one delta commit under an artificial time
             as those of Hudi; the property `hoodie.table.metadata.partitions` names the partitions: so they count

Until that property is saved no reader or writer regards what the switch has put: a new metadata table is made from an
empty folder, and a new partition likewise. So after a death nothing has to be mended; what was staged is continued by
the next run (`runs`). To build a partition again, it is first taken out of the property: from then on readers and
writers list the storage. The staging folder records which partitions were taken out, for the run after a death.

The switch waits for pending actions of other programs: a Hudi writer that began with the metadata table off would
complete without an entry here. Writers of phantombase read the property under the lock in which they complete."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from phantombase.timeline.clocks import Stopwatch, clock_ms
from phantombase.timeline.codec.avro_schema import with_meta_columns
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.triggers import GATE_S_MAX
from phantombase.timeline.locks.heartbeat import put_wanted, read_heartbeat, remove_wanted
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.metadata_table.commit import completion_above, forget, newest_schema
from phantombase.timeline.metadata_table.create import (
    drop_metadata_table,
    fill_time,
    fills_of,
    make_file_groups,
    put_metadata_table,
    save_built,
    take_out,
)
from phantombase.timeline.metadata_table.expression_index import Expression
from phantombase.timeline.metadata_table.index_definitions import (
    INDEX_DEFINITIONS,
    known_definitions,
    put_definitions,
    take_out_definitions,
)
from phantombase.timeline.metadata_table.index_logs import IndexLog
from phantombase.timeline.metadata_table.measure import Measure
from phantombase.timeline.metadata_table.records.entries import new_schema
from phantombase.timeline.metadata_table.records.keys import (
    COLUMN_STATS,
    EXPRESSION_INDEX,
    FILES,
    OF_ROWS,
    new_file_ids,
    refuse_unordered,
)
from phantombase.timeline.metadata_table.valid_instants import ARTIFICIAL
from phantombase.timeline.shown import Shown
from phantombase.timeline.storage.folders import METADATA_FOLDER
from phantombase.timeline.storage.snapshot import without_snapshot
from phantombase.timeline.table.history import WorkFacts
from phantombase.timeline.table.in_progress import READ_INSIDE, exclusive, is_pending_service, refuse_change_capture
from phantombase.timeline.table.table import Snapshot, Table, from_one_snapshot, open_metadata_table

from ..unit_of_work import unit_of_work
from .chosen import BuildOptions, Chosen, approximate_bytes, choose, measured_schema
from .content import Filling, Progress
from .runs import ListedState, StagedBuild, remove_dead, running, state_of, taken_out_by_runs

_log = get_logger()
_ROUNDS = 3
_POLL_S = 0.5
_OF_BUILDS = re.compile(r"metadata|index\.defs|checksum")
"""Settings of a table that builds change."""
_SAVING = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBuilt(Shown):
    """The `built` partitions; of a dry run those that would be, with their approximate bytes. `dropped`: those that
    were taken out and are left to Hudi. `files`: of the table. `rounds`: how often what completed meanwhile was added.
    `why`: why nothing was built."""

    built: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    partitions: int = 0
    files: int = 0
    bytes: int = 0
    rounds: int = 0
    seconds: float = 0.0
    why: str = ""


def _silent(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def _said(done: MetadataBuilt) -> WorkFacts | None:
    if not (done.built or done.dropped):
        return None
    dropped = f"; taken out: {', '.join(done.dropped)}" if done.dropped else ""
    return WorkFacts(why=f"built: {', '.join(done.built)}{dropped}", bytes_written=done.bytes, files_before=done.files)


@unit_of_work("metadata", _said)
def build_metadata(
    table: Table,
    options: BuildOptions,
    lock: TableLock,
    *,
    again: bool = False,
    dry_run: bool = False,
    progress: Progress = _silent,
) -> MetadataBuilt:
    """Builds the partitions that the table lacks; `again`: also those that it has. `dry_run`: nothing is changed.
    UnsupportedError: an index, or a table, for which that cannot be done. ConflictError: another process built one
    meanwhile, or pending actions did not end in time; LockError: the lock was lost. After an error, run again."""
    watch, seen, also = Stopwatch(), table.snapshot(cached=False), tuple[str, ...]()
    refuse_change_capture(seen, "building the metadata table of")
    there = seen.config.metadata_partitions
    if not taken_out_by_runs(seen, dead=True).isdisjoint(there):
        again, also = True, there if options.names else ()
    chosen = choose(seen, options, taken_out_by_runs(seen), known_definitions(seen.storage), again=again, also=also)
    if not chosen.names:
        if not dry_run:
            remove_dead(table)
        return MetadataBuilt(why="the table has these partitions already")
    if chosen.indexes and seen.timeline.completed_writes:
        seen.newest_schema()  # refused before anything is taken out or staged
    if dry_run or chosen.again:
        refuse_unordered(seen.partitions(), seen.storage.base_path)
    if dry_run:
        state = from_one_snapshot(lambda: state_of(table.snapshot(cached=False)))
        return replace(_report(chosen, state), bytes=approximate_bytes(seen, chosen.names, state))
    kind = _kind(seen, chosen, options)
    with running(table, chosen.names, kind) as (folder, staged), ExitStack() as stack:
        if chosen.again:
            _take_out(table, lock, chosen)
        if staged is not None:
            _log.info("metadata_build_continues", table=table.storage.base_path, files=staged.state.count)
        build = _Build(
            table=table,
            lock=lock,
            chosen=chosen,
            folder=folder,
            options=options,
            progress=progress,
            stack=stack,
            expressions={_expressions(_measure(seen, chosen))},
            staged=staged or StagedBuild(kind=kind, file_ids={name: _file_ids(name, options) for name in chosen.names}),
        )
        return replace(build.execute(), seconds=round(watch.seconds(), 3))


def _file_ids(name: str, options: BuildOptions) -> tuple[str, ...]:
    return new_file_ids(name, options.record_index_groups if name.startswith(OF_ROWS) else None)


def _kind(seen: Snapshot, chosen: Chosen, options: BuildOptions) -> dict[str, Any]:
    """What two runs have in common of which one continues where the other ended, as JSON."""
    measure, layout = _measure(seen, chosen), seen.layout
    return {
        "release": 1,  # of what is staged
        "schema": with_meta_columns(new_schema(layout)) if chosen.is_new else newest_schema(open_metadata_table(seen)),
        "table_version": seen.config.version,
        "names": list(chosen.names),
        "groups": options.record_index_groups,
        "indexes": [repr(one) for one in chosen.indexes],
        "measured": None if measure is None else [list(map(repr, measure.columns)), measure.version.name],
        # Those of the metadata table change by builds; any other, such as the order of rows, may change an entry.
        "settings": sorted(f"{k}={v}" for k, v in seen.config.properties.items() if not _OF_BUILDS.search(k)),
        "rows": seen.newest_schema().file_text if chosen.indexes and seen.timeline.completed_writes else "",
    }


def _take_out(table: Table, lock: TableLock, chosen: Chosen) -> None:
    if chosen.is_new:
        if left := [name for name in chosen.dropped if name.startswith(EXPRESSION_INDEX)]:
            with exclusive(table, lock, "take out expression indexes that only Hudi builds", READ_INSIDE) as held:
                take_out_definitions(held.storage, left)  # Hudi's queries fail where one is defined and not there
        drop_metadata_table(table, lock)
        return
    with exclusive(table, lock, "take partitions out of the metadata table", READ_INSIDE) as held:
        if set(chosen.again) & set(held.config.metadata_partitions):
            take_out(held, chosen.again)


@dataclass(kw_only=True)
class _Build:
    """One run. `staged`: so far; `whole`: how often that was all of the table; `bases`: base files of the first
    `merged` rounds; `expressions`: those of each round, one set if they never changed."""

    table: Table
    lock: TableLock
    chosen: Chosen
    folder: str
    options: BuildOptions
    progress: Progress
    stack: ExitStack
    staged: StagedBuild
    first: int = 0
    whole: int = 0
    merged: int = 0
    bases: dict[tuple[str, str], IndexLog] = field(default_factory=dict)
    filling: Filling | None = None
    saved: Stopwatch | None = None
    save_s: float = 0.0
    expressions: set[frozenset[Expression]]

    def execute(self) -> MetadataBuilt:
        seen = self.table.snapshot(cached=False)
        if not self.chosen.is_new:
            self.first = fills_of(seen.config, open_metadata_table(seen).load_timeline(archived=True))
        self.filling = Filling(
            file_ids=self.staged.file_ids,
            schema_text=self.staged.kind["schema"],
            folder=self.folder,
            memory_limit=self.options.memory_limit,
            indexes=self.chosen.indexes,
            keys=self.staged.keys,
            stack=self.stack,
        )
        for _ in range(_ROUNDS):
            if not self._go_on():
                break
        self._merged(self.table)
        watch = Stopwatch()
        while True:
            with exclusive(self.table, self.lock, "make the metadata table visible") as held:
                others = self._waits_for(held)
                if not others:
                    return self._switch(held)
            if watch.seconds() >= self.options.pending_wait_s:
                raise ConflictError(
                    "actions of other programs are pending, and may not know the metadata table",
                    path=self.table.storage.base_path,
                    instant=others[0].requested_time,
                    expected=f"all of them ended within {self.options.pending_wait_s:g} s",
                    found=", ".join(f"{i.action} {i.requested_time}" for i in others[:3]),
                    todo="Nothing is visible. Run again when they have completed or were rolled back, or with a larger "
                    "--pending-wait.",
                )
            self.progress("waiting for pending actions of other programs", 0, len(others))
            time.sleep(_POLL_S)
            self._go_on()
            self._merged(self.table)

    def _waits_for(self, held: Snapshot) -> tuple[Instant, ...]:
        """The pending actions that the switch waits for. A write of phantombase that began without the index of
        rows does not know its keys, and would take it out."""
        others = others_at_work(held)
        writers = held.timeline.inflight_writers if self.chosen.indexes else ()
        if not writers:
            return others
        put_wanted(held.storage, min(GATE_S_MAX, max(1.0, self.options.pending_wait_s)), clock_ms())
        return tuple(sorted({*others, *writers}, key=lambda i: i.requested_time))

    def _go_on(self) -> bool:
        return from_one_snapshot(lambda: self._catch_up(self.table.snapshot(cached=False)))

    def _merged(self, table: Table) -> dict[tuple[str, str], IndexLog]:
        """The staged base files: of all rounds."""
        assert self.filling is not None
        if self.merged < len(self.staged.rounds):
            logs = chain.from_iterable(self.staged.rounds)
            self.bases = self.filling.stage_base_files(table, logs)
            self.merged = len(self.staged.rounds)
        return self.bases

    def _catch_up(self, seen: Snapshot) -> bool:
        """Stages what the staged log files lack; whether that was anything."""
        assert self.filling is not None
        before, newest = self.staged.state, state_of(seen, indexed=bool(self.chosen.indexes))
        if self.whole and newest == before:
            return False
        instant = fill_time(seen.config, self.first)
        measure = _measure(seen, self.chosen)
        self.expressions.add(_expressions(measure))
        # Once a state was whole, a key that comes must not be in what was there.
        for state in (newest,) if self.whole else before.steps(newest):
            states, is_whole = (self.staged.state, state), state is newest
            logs = self.filling.stage(seen, instant, states, measure, self.progress, is_whole=is_whole)
            self.staged.rounds.append(logs)
            self.staged.state = state
            self._save(at_once=is_whole)
        self.whole += 1
        return True

    def _save(self, *, at_once: bool) -> None:
        """For the run after a death. Of the time a twentieth is for that."""
        if at_once or self.saved is None or self.saved.seconds() > _SAVING * self.save_s:
            watch = Stopwatch()
            self.staged.save(without_snapshot(self.table.storage), self.folder)
            self.saved, self.save_s = Stopwatch(), watch.seconds()

    def _switch(self, held: Snapshot) -> MetadataBuilt:
        assert self.filling is not None
        config, names = held.config, self.chosen.names
        self._check_still(held)
        self._catch_up(held)
        storage = held.storage
        take_out_definitions(storage, names)
        if self.chosen.is_new:
            storage.delete_folder(METADATA_FOLDER)
            put_metadata_table(storage, config)
        for name in () if self.chosen.is_new else names:
            storage.delete_folder(f"{METADATA_FOLDER}/{name}")
        metadata = open_metadata_table(held)
        for dead in metadata.timeline.pending("deltacommit"):
            if dead.requested_time.startswith(ARTIFICIAL):
                forget(held, dead.requested_time)
        completion = completion_above(held, metadata)
        filled = fill_time(config, self.first)
        make_file_groups(storage, config, filled, self.staged.file_ids, self._merged(held), completion)
        config = config.with_metadata_partitions(names)
        if held.layout.has_completion_times and (COLUMN_STATS in names or self.chosen.indexes):
            measure = _measure(held, self.chosen) if COLUMN_STATS in names else None
            columns, version = (None, "") if measure is None else (measure.names, measure.version.name)
            put_definitions(storage, columns, version, [one for one in self.chosen.indexes if not one.column])
            config = config.with_index_definitions(INDEX_DEFINITIONS)
        save_built(held, config, self.chosen.indexes, self.chosen.expressions)
        if self.chosen.indexes:
            remove_wanted(storage)
        _log.info("metadata_built", table=storage.base_path, partitions=names, files=self.staged.state.count)
        return replace(
            _report(self.chosen, self.staged.state),
            bytes=sum(base.size for base in self.bases.values()),
            rounds=self.whole - 1,
        )

    def _check_still(self, held: Snapshot) -> None:
        """ConflictError: the metadata table is not as it was when the run began, or expressions have other bounds."""
        built, config = set(held.config.metadata_partitions), held.config
        if self.chosen.is_new:
            others = built
        else:
            others = built & set(self.chosen.names) if FILES in built else {FILES}
            if not others:
                fills = fills_of(config, open_metadata_table(held).load_timeline(archived=True))
                others = set() if fills == self.first else built
        if others or not self.expressions <= {_expressions(_measure(held, self.chosen))}:
            raise ConflictError(
                "another process changed the metadata table meanwhile, or a column of an expression index",
                path=held.storage.base_path,
                found=", ".join(sorted(built)) or "none",
                todo="Nothing was changed. Run again for what is missing.",
            )


def _measure(seen: Snapshot, chosen: Chosen) -> Measure | None:
    """The columns to measure, by the newest schema."""
    schema = measured_schema(seen, chosen.names)
    if schema is None:
        return None
    only = set(seen.config.metadata_partitions) - set(chosen.names)
    config = seen.config.with_metadata_partitions(chosen.names).without_metadata_partitions(only)
    return Measure.of(replace(seen, config=config), schema, known_definitions(seen.storage))


def _expressions(measure: Measure | None) -> frozenset[Expression]:
    return frozenset(() if measure is None else measure.expressions)


def _report(chosen: Chosen, state: ListedState) -> MetadataBuilt:
    return MetadataBuilt(built=chosen.names, dropped=chosen.dropped, partitions=len(state.files), files=state.count)


def others_at_work(table: Snapshot) -> tuple[Instant, ...]:
    """The pending actions that a process of another program may complete, earliest first: all but plans that no
    process has begun, rollbacks (their targets have no entry), savepoints (they add no file), and instants with a
    heartbeat of phantombase. MalformedError: a plan is torn."""
    pending = (i for i in table.timeline.instants if not i.completed and i.action not in ("rollback", "savepoint"))
    return tuple(i for i in pending if not _is_plan(table, i) and not _is_ours(table, i))


def _is_plan(table: Snapshot, instant: Instant) -> bool:
    if instant.state is not State.REQUESTED:
        return False
    return not instant.is_write or is_pending_service(table, instant)


def _is_ours(table: Snapshot, instant: Instant) -> bool:
    beat = read_heartbeat(table.storage, instant.requested_time)
    return beat is not None and beat.ours
