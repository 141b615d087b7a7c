"""A history in which operators take part: real Hudi restores, rolls back, cleans, archives, replaces and clusters, and
phantombase cleans, archives, clusters, restores, rolls back, makes savepoints and serves the metadata table.

They do so also between two steps of a compaction of ours, whose process sleeps meanwhile or dies there. A model in
plain Python says what all must read then: services change no row, a restore and a rollback bring the rows of before
back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.attempt.pending_clusterings import PendingClustering, pending_clusterings
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cancel import cancel_pending_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Copy
from phantombase.compactor_daemon.metadata_services import retention
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import is_service, roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import ClockError, PhantombaseError, UnsupportedError
from phantombase.timeline.format.instant import parse_time
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.valid_instants import compacted_after
from phantombase.timeline.metadata_table.validate import Difference, validate
from phantombase.timeline.table.table import Table
from tests.hudi.cases.asleep import Moment, compact_and_die, compact_asleep
from tests.hudi.cases.indexed_table import IndexedTable, placed_by_us
from tests.hudi.cases.random_history import History
from tests.hudi.cases.rows import same, without_files
from tests.hudi.cases.shared_table import end_pending
from tests.hudi.judge.client import METADATA_TABLE, Judge
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at

__all__ = ["STOCK", "OperatedHistory"]

LOCK = ProcessLock("operators")
FEW = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
STOCK: dict[str, object] = {
    **METADATA_TABLE,
    "hoodie.clean.automatic": "true",
    "hoodie.archive.automatic": "true",
    "hoodie.cleaner.commits.retained": "2",
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
}
"""What Hudi does by default, but sooner: metadata table, cleaning and archiving behind each write."""
MERGING = frozenset(
    (
        *("hudi_compacts", "we_compact", "cluster", "we_compact_asleep", "we_compact_and_die", "end_all"),
        *("restore", "roll_back_newest", "we_restore", "we_roll_back_newest"),
    )
)
SERVICES = MERGING | frozenset(
    (
        *("clean", "clean_by_versions", "archive", "savepoint", "delete_savepoint", "hudi_schedules"),
        *("we_schedule", "we_forget_the_zone", "we_savepoint", "we_clean", "we_archive", "we_serve_metadata"),
        *("we_cluster", "we_cluster_and_die"),
    )
)
"""Steps that change no row, but for those that take the model back first; `MERGING`: that may merge."""
_TELLING = 4
"""So many writes show the zone of those who wrote them."""
_MEANWHILE = 2
"""Steps at most that others take while a compaction of ours sleeps."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What the table held, and keys whose ordering values a snapshot does not show."""

    rows: pa.Table
    deleted: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Model:
    """By instant: what the table held at a savepoint, and before a write."""

    savepoints: dict[str, _Known] = field(default_factory=dict)
    before: dict[str, _Known] = field(default_factory=dict)


class OperatedHistory(History):
    """`stock`: with Hudi's default services, else operators call them. `clock`: the zone of Hudi's writers, where this
    process is in another one."""

    def __init__(
        self, judge: Judge, version: int, seed: int, path: Path, *, stock: bool, clock: ClockOptions | None = None
    ) -> None:
        super().__init__(judge, version, seed, path, indexes=STOCK if stock else None, conditions=0, clock=clock)
        self.zones = clock is not None
        self.halves(True)
        self.model = _Model()
        self.written = set(self.table.open().load_timeline().completed_writes)
        self.asleep = False
        self.restored_by_us = False

    def steps(self) -> dict[Callable[[], bool], int]:
        """See `History`; what only compactors of ours need time for is rarer here."""
        # Dead writers are made by hand, in this process's zone.
        there = {self.our_writer_dies: 0, self.hudis_writer_dies: 0, self.we_forget_the_zone: 6} if self.zones else {}
        return super().steps() | {
            self.savepoint: 3,
            self.restore: 3,
            self.delete_savepoint: 1,
            self.upsert_and_roll_back: 0,
            self.roll_back_newest: 3,
            self.clean_by_versions: 1,
            self.clean: 2,
            self.archive: 2,
            self.we_savepoint: 2,
            self.we_restore: 3,
            self.we_roll_back_newest: 3,
            self.we_clean: 4,
            self.we_archive: 4,
            self.we_serve_metadata: 2 if self.indexed else 0,
            self.we_cluster: 3,
            self.we_cluster_and_die: 2,
            self.insert_overwrite: 2,
            self.cluster: 2,
            self.we_compact_asleep: 0 if self.asleep else 6,
            self.we_compact_and_die: 3,
            self.end_all: 1,
            **there,
        }

    # What operators do.

    def savepoint(self) -> bool:
        """And remember what the table holds."""
        if max(self.table.open().load_timeline().completed_writes) in self.model.savepoints:
            return False  # Hudi 0.15 does not see that it is there
        instant = self.table.judge.savepoint(self.table.path)
        if instant is not None:
            self.model.savepoints[instant] = self.known()
        return instant is not None

    def delete_savepoint(self) -> bool:
        """The oldest."""
        if not self.model.savepoints:
            return False
        instant = min(self.model.savepoints)
        self.table.judge.delete_savepoint(self.table.path, instant)
        del self.model.savepoints[instant]
        return True

    def restore(self) -> bool:
        """To the newest savepoint; with a metadata table that is younger, as after a restore of ours, Hudi refuses."""
        if not self.model.savepoints or (self.indexed and self.restored_by_us):
            return False
        instant = max(self.model.savepoints)
        self.table.judge.restore(self.table.path, instant)
        self.expect(self.model.savepoints[instant])
        return True

    def roll_back_newest(self) -> bool:
        """Whatever wrote it, where the model knows the rows of before. A clustering would be pending then."""
        table = self.table.open()
        newest = max(writes := table.load_timeline().completed_writes)
        if newest not in self.model.before or newest in self.model.savepoints or is_service(table, writes[newest]):
            return False
        if self.indexed and compacted_after(self.table.open(), newest):  # then Hudi refuses
            return False
        self.table.judge.rollback(self.table.path, newest)
        self.expect(self.model.before.pop(newest))
        return True

    def clean_by_versions(self) -> bool:
        """Replaced file groups go at once."""
        self.table.judge.clean_by_versions(self.table.path)
        return True

    # The same by phantombase. What it refuses changes nothing.

    def we_savepoint(self) -> bool:
        """See `savepoint`."""
        newest = max(self.table.open().load_timeline().completed_writes)
        if newest in self.model.savepoints or not self.we_do(
            lambda: create_savepoint(self.table.open(), LOCK, newest, user="", comment="")
        ):
            return False
        self.model.savepoints[newest] = self.known()
        return True

    def we_restore(self) -> bool:
        """To the newest savepoint."""
        if not self.model.savepoints:
            return False
        instant = max(self.model.savepoints)
        if not self.we_do(lambda: restore_table(self.table.open(), LOCK, instant)):
            return False
        self.restored_by_us = True
        self.expect(self.model.savepoints[instant])
        return True

    def we_roll_back_newest(self) -> bool:
        """See `roll_back_newest`."""
        newest = max(self.table.open().load_timeline().completed_writes)
        if newest not in self.model.before or newest in self.model.savepoints:
            return False
        if not self.we_do(lambda: roll_back_newest(self.table.open(), LOCK, newest)):
            return False
        self.expect(self.model.before.pop(newest))
        return True

    def we_clean(self) -> bool:
        """By any policy, without a floor in time."""
        policy = self.random.choice([Policy.COMMITS, Policy.VERSIONS])
        options = CleanOptions(policy=policy, retain=self.random.randint(1, 2), floor_s=0)
        return self.we_do(lambda: clean_table(self.table.open(), options, LOCK))

    def we_archive(self) -> bool:
        """As early as Hudi does here."""
        return self.we_do(lambda: archive_table(self.table.open(), FEW, LOCK))

    def we_serve_metadata(self) -> bool:
        """Its compaction, clean and archiving, early."""
        with patch.object(retention, "OPTIONS", FEW):
            return self.we_do(lambda: serve_metadata(self.table.open(), MetadataOptions(max_delta_commits=2), LOCK))

    def we_cluster(self) -> bool:
        """Two files are enough."""
        return self.we_do(lambda: self.cluster_ours())

    def we_cluster_and_die(self) -> bool:
        """At any call; then Hudi executes the plan, or the next run of ours finishes it, or takes it back."""
        table = self.table.open()
        if self.pending_clusterings():
            return False
        storage = HookedStorage(table.storage, die_at(number := self.random.randrange(150)))
        try:
            if not self.we_do(lambda: self.cluster_ours(replace(table, storage=storage))):
                return False
        except ProcessDied:
            self.said.append(f"died at call {number}")
        if not self.pending_clusterings():
            return True
        end = self.random.choice([self.hudi_executes, self.cluster_ours, self.take_back])
        self.said.append(end.__name__)
        for pending in self.pending_clusterings():
            table.storage.delete(heartbeat_path(pending.time))  # its process is this one
        end()
        return True

    def pending_clusterings(self) -> tuple[PendingClustering, ...]:
        """Those of phantombase."""
        return pending_clusterings(self.table.open().snapshot())

    def hudi_executes(self) -> None:
        """All pending clusterings."""
        self.table.judge.execute_clustering(self.table.path, self.table.options)

    def take_back(self) -> None:
        """What is pending."""
        cancel_pending_clusterings(self.table.open(), LOCK)

    def cluster_ours(self, table: Table | None = None) -> None:
        """See `we_cluster`."""
        options = ClusterOptions(min_files=2, wait_s=0, full=self.random.random() < 0.5)
        output = OutputOptions(codec=Codec.GZIP if self.table.version == 6 else Codec.ZSTD)
        opened = table or self.table.open()
        if self.random.random() < 0.5:
            with suppress(UnsupportedError):  # files of two writers, say
                cluster_table(opened, replace(options, copy=Copy.FORCE), LOCK, output=output)
                return
        cluster_table(opened, options, LOCK, output=output)

    def we_do(self, do: Callable[[], object]) -> bool:
        """Whether it was done; why not is in the history."""
        try:
            do()
        except PhantombaseError as error:
            self.said.append(f"{type(error).__name__}: {str(error)[:120]}")
            return False
        return True

    # What our compactors do.

    def hudi_compacts(self) -> bool:
        """Where no input was rolled back."""
        return not self.stuck() and super().hudi_compacts()

    def we_compact(self) -> bool:
        """Where no input was rolled back."""
        return not self.stuck() and super().we_compact()

    def we_compact_asleep(self) -> bool:
        """Others take steps while it sleeps; then it refuses, or it changes no row."""
        pending = self.table.pending()
        if not pending:
            return False
        instant, moment = self.random.choice(pending), self.random.choice(list(Moment))
        self.said.append(f"{instant} asleep {moment.name} (")
        self.asleep = True
        try:
            compact_asleep(self.table, instant, moment, self.meanwhile)
        except PhantombaseError as error:
            self.said.append(f"{type(error).__name__}: {str(error)[:120]}")
        finally:
            self.asleep = False
            self.said.append(")")
        return True

    def meanwhile(self) -> None:
        """Steps of others."""
        for _ in range(self.random.randint(1, _MEANWHILE)):
            self.step()

    def we_compact_and_die(self) -> bool:
        """The next run of ours takes up what is left."""
        pending = self.table.pending()
        if not pending:
            return False
        instant, moment = self.random.choice(pending), self.random.choice(list(Moment))
        self.said.append(f"{instant} dies {moment.name}")
        try:
            compact_and_die(self.table, instant, moment)
        except PhantombaseError as error:
            self.said.append(f"{type(error).__name__}: {str(error)[:120]}")
        return True

    def we_forget_the_zone(self) -> bool:
        """Neither a plan nor a write of ours is begun then, where the table shows its writers' zone."""
        writes = sorted(parse_time(time) for time in self.table.open().load_timeline().completed_writes)
        if len(writes) < _TELLING or writes[-1] - writes[0] < timedelta(seconds=5):
            return False
        here = replace(self.table, clock=ClockOptions())
        before = here.open().load_timeline()
        try:
            instant = here.we_may_schedule()
        except ClockError:
            instant = None
        assert instant is None
        if self.we_write:
            with pytest.raises(ClockError):
                here.writer(self.rows(self.some(), self.times())).upsert(str(here.path))
        assert here.open().load_timeline() == before
        return True

    def end_all(self) -> bool:
        """Every pending compaction is executed, or taken back."""
        end_pending(self.table)
        return True

    def ends(self) -> None:
        """See `History`."""
        self.end_all()
        self.halves(False)
        self.look("end_all")

    def halves(self, yes: bool) -> None:
        """Whether files may lie there that no metadata table lists yet."""
        if isinstance(self.table, IndexedTable):
            self.table = replace(self.table, halves=yes)

    def is_half(self, found: Difference) -> bool:
        """Whether such a file is all that differs."""
        placed = found.metadata_bytes is None and found.name is not None and placed_by_us(found.name)
        return placed and isinstance(self.table, IndexedTable) and self.table.halves

    def stuck(self) -> bool:
        """Whether a pending plan names a file that is gone."""
        table = self.table.open()
        return any(
            table.storage.find(f"{operation.partition_path}/{name}".lstrip("/")) is None
            for instant in self.table.pending()
            for operation in table.compaction_plan(instant).operations
            for name in (*operation.delta_file_paths, *filter(None, [operation.data_file_path]))
        )

    # The model.

    def known(self) -> _Known:
        """What the table holds now."""
        return _Known(rows=self.snapshot, deleted=frozenset(self.deleted))

    def expect(self, known: _Known) -> None:
        """All must read this now."""
        self.snapshot, self.deleted = known.rows, set(known.deleted)

    def look(self, step: str) -> None:
        """See `History`; services change no row, and the metadata table says what is there."""
        before = self.known()
        super().look(step)
        if step in SERVICES and (step not in MERGING or self.exact()):
            same(without_files(self.snapshot), without_files(before.rows))
        done = self.table.open().load_timeline().completed_writes
        if (newest := max(done)) not in self.written:
            self.model.before[newest] = before
        self.written |= done.keys()
        if self.indexed and self.table.open().config.metadata_partitions:  # a restore of phantombase drops it
            found = [d for d in validate(self.table.open()).differences if not self.is_half(d)]
            assert not found, found

    def exact(self) -> bool:
        """Under event time a late update after a delete in a plan takes effect only with the compaction."""
        return self.commit_time or not self.late
