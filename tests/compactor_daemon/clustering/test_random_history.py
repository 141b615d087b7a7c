"""Random histories of a table with a record index: after each step the rows are a model's, and the index has them.

Writers, compactors, cleaners and archivers take turns with clusterings, whose plans are of phantombase's format or of
Hudi's, which die, are rolled back, and beside which others write.

`PHANTOMBASE_CLUSTER_HISTORIES=50` tries 50 seeds a table version, `-k "seed7 and v6"` one of them again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from phantombase import writer
from phantombase.compactor_daemon.attempt.pending_clusterings import every_pending
from phantombase.compactor_daemon.clustering.cancel import cancel_pending_clusterings
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.compactor_daemon.clustering.result import ClusterResult
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.table_read import read_table
from tests.support.archived_tables import archive, clean, compact, forget_heartbeats, of_clustering, opens_attempt
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, Hook, HookedStorage, ProcessDied, die_at
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.record_indexes import check_index
from tests.support.record_indexes import rows as index_rows
from tests.support.selection import ALL, deep

SEEDS = int(os.environ.get("PHANTOMBASE_CLUSTER_HISTORIES", "20" if ALL else "1"))
STEPS = 12
KEYS = 60
HOW = (
    ClusterOptions(min_files=2, wait_s=0),
    ClusterOptions(grouping=Grouping.SIZE, target_size=200_000, sort_by=("ts", "id"), wait_s=0),
    ClusterOptions(rewrite=("codec",), wait_s=0),
)


class History:
    """`rows`: the ordering value of each key that is there. `said`: what has happened."""

    def __init__(self, version: int, seed: int, into: Path) -> None:
        self.pick = random.Random(seed * 41 + version)
        self.path = unzip_golden(f"more/v{version}_record_index", into)
        self.rows, self.now, self.fresh, self.said = self.found(), 1000, KEYS, list[str]()
        self.moved = 0

    def found(self) -> dict[str, int]:
        read = read_table(open_table(self.path))
        return dict(zip(read["id"].to_pylist(), read["ts"].to_pylist(), strict=True))

    def some(self) -> list[int]:
        return sorted(self.pick.sample(range(KEYS), self.pick.randint(1, 20)))

    # Writes.

    def write(self, numbers: Iterable[int], *, deletes: bool = False) -> None:
        self.now += 1
        batch = index_rows(numbers, self.now)
        made = writer(batch).option(small_file_bytes=self.pick.choice((0, 100 << 20)), clustering_wait_s=0)
        (made.delete if deletes else made.upsert)(str(self.path))
        for key in batch["id"].to_pylist():
            if deletes:
                self.rows.pop(key, None)
            else:
                self.rows[key] = self.now

    def update(self) -> None:
        self.write(self.some())

    def delete(self) -> None:
        self.write(self.some(), deletes=True)

    def insert(self) -> None:
        self.fresh += 5
        self.write(range(self.fresh, self.fresh + self.pick.randint(1, 5)))

    # Services.

    def schedule(self) -> None:
        schedule_compaction(open_table(self.path), LOCK, PLAN_NOW)

    def compact(self) -> None:
        compact(self.path)

    def compact_what_is_planned(self) -> None:
        run_all(open_table(self.path))

    def clean(self) -> None:
        clean(self.path)

    def archive(self) -> None:
        archive(self.path)

    def serve_metadata(self) -> None:
        serve_metadata(open_table(self.path), MetadataOptions(max_delta_commits=1), LOCK)

    # Clusterings.

    def clustered(self, hook: Hook = lambda call: call.do()) -> ClusterResult:
        how, codec = self.pick.choice(HOW), self.pick.choice((Codec.GZIP, Codec.SNAPPY))
        self.said.append(f"{how.grouping.value} {how.rewrite} {codec.value}")
        table = open_table(self.path, HookedStorage(open_table(self.path).storage, hook))
        done = cluster_table(table, how, LOCK, output=OutputOptions(codec=codec, memory_limit=32 << 20))
        self.moved += len(done.finished) + (done.done is not None)
        return done

    def cluster(self) -> None:
        done = self.clustered().done
        if done is not None and self.pick.random() < 0.3:
            self.said.append("rolled back")
            roll_back_newest(open_table(self.path), LOCK, done.instant)

    def cluster_meanwhile(self) -> None:
        """Others write while its files are staged."""
        wrote = list[str]()

        def hook(call: Call) -> object:
            if call.name == "open_output" and of_clustering(call.path) and not wrote:
                step = self.pick.choice((self.update, self.delete, self.insert))
                wrote.append(step.__name__)
                step()
            return call.do()

        self.clustered(hook)
        self.said.append(f"meanwhile {wrote}")

    def dies(self, hook: Hook) -> None:
        try:
            self.clustered(hook)
        except ProcessDied as died:
            self.said.append(f"dies at {died}")
        forget_heartbeats(self.path)

    def cluster_and_die(self) -> None:
        """At any call. Then a write, or the next run, ends it, or a person does."""
        self.dies(die_at(self.pick.randrange(250)))
        self.pick.choice((self.update, self.clustered, self.cancel))()

    def cancel(self) -> None:
        cancel_pending_clusterings(open_table(self.path), LOCK)

    def execute_a_plan_of_hudi(self) -> None:
        """Of its format: without the names that phantombase gives to new file groups."""

        dead = list[str]()

        def before_the_attempt(call: Call) -> object:
            if dead or opens_attempt(call):
                dead.append(call.path)
                raise ProcessDied(call.path)
            return call.do()

        self.dies(before_the_attempt)
        table = open_table(self.path)
        for one in every_pending(table.snapshot()):
            plan = self.path / table.instant_path(one.requested)
            plan.write_bytes(plan.read_bytes().replace(b"phantombase.file_id", b"the.file_id.of.hudi"))
            table = open_table(self.path)
            (pending,) = every_pending(table.snapshot())
            assert not pending.plan.is_own
            assert [done.instant for done in self.clustered().finished] == [one.time]

    def steps(self) -> dict[Callable[[], None], int]:
        return {
            self.update: 6,
            self.delete: 3,
            self.insert: 4,
            self.schedule: 2,
            self.compact: 3,
            self.compact_what_is_planned: 1,
            self.clean: 3,
            self.archive: 2,
            self.serve_metadata: 1,
            self.cluster: 6,
            self.cluster_meanwhile: 5,
            self.cluster_and_die: 4,
            self.execute_a_plan_of_hudi: 3,
        }

    def step(self) -> None:
        steps = self.steps()
        (step,) = self.pick.choices(list(steps), list(steps.values()))
        self.said.append(step.__name__)
        step()
        assert self.found() == self.rows
        assert check_index(self.path).keys() == self.rows.keys()


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
@pytest.mark.parametrize("version", [9, deep(8), deep(6)], ids="v{}".format)
def test_rows_and_index_stay(version: int, seed: int, tmp_path: Path) -> None:
    history = History(version, seed, tmp_path)
    try:
        for _ in range(STEPS):
            history.step()
        history.compact_what_is_planned()
        history.cluster()
        assert history.found() == history.rows
        assert validate(open_table(history.path)).differences == ()
    except BaseException as error:
        error.add_note(f"seed {seed}: " + "; ".join(history.said))
        raise
    assert history.moved
