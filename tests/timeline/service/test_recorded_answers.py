"""Answers of real Hudi servers (0.15.0 and 1.2.0) about the golden tables, replayed against the service.

`tests/golden/served/<archive>@<server>.jsonl.gz`: a header, then one request and its answer a line, as Hudi's own
remote view sent it. Compared as sets: lists to which Hudi gives no order."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import phantombase
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions, Policy
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import Writer
from tests.support.compaction_steps import run_all
from tests.support.faults import leave_dead_write
from tests.support.golden_tables import LOCK, unzip_golden
from tests.support.places import GOLDEN_FOLDER, SEED
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server
from tests.support.service_client import ServiceClient, difference
from tests.support.watched_service import FollowedTable

CORPORA = sorted(path.name.removesuffix(".jsonl.gz") for path in (GOLDEN_FOLDER / "served").glob("*.jsonl.gz"))
SAMPLE = {
    "v6_compacted_cleaned@0.15.0",
    "v6_replaced@0.15.0",
    "v6_two_pending@1.2.0",
    "v9_clustered@1.2.0",
    "v9_complex_key@1.2.0",
}


@pytest.mark.parametrize("corpus", [c if c in SAMPLE else deep(c) for c in CORPORA])
def test_the_answers_of_real_hudi_servers(corpus: str, tmp_path: Path) -> None:
    archive, _, server = corpus.partition("@")
    base = str(unzip_golden(archive, tmp_path))
    old, version_6 = server.startswith("0."), archive.startswith("v6_")
    check(corpus, ServiceClient.of(base), base, old=old, version_6=version_6)


@pytest.mark.parametrize("corpus", ["v9_complex_key@1.2.0", *map(deep, ["v6_two_pending@1.2.0", "v9_clustered@1.2.0"])])
def test_tables_of_an_object_store_get_the_same_answers(corpus: str, s3: S3Server, tmp_path: Path) -> None:
    """Hudi's clients spell the base path `s3a://`; every path of an answer is spelled like it."""
    archive, _, _ = corpus.partition("@")
    url = s3.upload(unzip_golden(archive, tmp_path), s3.new_bucket(), "lake/t")
    client, spelled = ServiceClient.of(url), url.replace("s3://", "s3a://")
    check(corpus, client, spelled, old=False, version_6=archive.startswith("v6_"))
    for page in ("/", "/t/t", "/t/t/groups", "/fleet"):
        assert client.ask(page).status == 200
    found = client.ask("/api/tables/t").json()
    assert (found["health"] != "broken", found["path"]) == (True, url), found["reason"]


def check(corpus: str, client: ServiceClient, base: str, *, old: bool, version_6: bool) -> None:
    """Replays a corpus. What was recorded of a local table names it by `file:`."""
    lines = gzip.decompress((GOLDEN_FOLDER / "served" / f"{corpus}.jsonl.gz").read_bytes()).decode().splitlines()
    wrong: Counter[str] = Counter()
    first = ""
    for line in lines[1:]:
        request = json.loads(line)
        query = {k: v.replace("{base}", base) for k, v in request["query"].items()}
        reply = client.ask(request["path"], request["method"], **query)
        if found := difference(request, reply, base, old=old, version_6=version_6):
            wrong[request["path"]] += 1
            first = first or f"{request['path']} {query}\n   {found}"
    assert not wrong, f"{dict(wrong)}\n{first}"


# States that are loaded from the one before are those that are loaded anew, whatever happened to the table.


PARTITIONS = [f"p{n}" for n in range(8)]
STEPS = 30
SEEDS = int(os.environ.get("PHANTOMBASE_SERVED", "1"))


class History:
    """What happens to a table; a step that is refused changes nothing."""

    def __init__(self, path: Path, version: int, seed: int) -> None:
        self.path, self.chance = path, random.Random(seed)
        self.next = self.done = 0
        self.told: list[str] = []
        rows = self.rows([(n, PARTITIONS[n % len(PARTITIONS)]) for n in range(40)])
        made = phantombase.writer(rows).table("t", version=version).key("id").partition("p").ordering("ts")
        made.upsert(str(path))

    def rows(self, keys: list[tuple[int, str]]) -> pa.Table:
        self.next += 1
        columns = {"id": [str(k) for k, _ in keys], "p": [p for _, p in keys], "ts": [self.next] * len(keys)}
        return pa.table(columns)

    def some(self) -> list[tuple[int, str]]:
        """Keys of one or two partitions, old ones and new ones; now and then of a new partition."""
        partitions = self.chance.sample(PARTITIONS, self.chance.randint(1, 2))
        if self.chance.random() < 0.1:
            partitions = [f"q{self.next}"]
        return [(self.chance.randrange(60) * 8 + int(p[1:]) % 8, p) for p in partitions for _ in range(3)]

    @property
    def table(self) -> Table:
        return Table.open(str(self.path))

    def writer(self) -> Writer:
        keys = dict(self.some())
        return phantombase.writer(self.rows(list(keys.items())))

    def upsert(self) -> None:
        self.writer().upsert(str(self.path))

    def insert(self) -> None:
        self.writer().bulk_insert(str(self.path))

    def overwrite(self) -> None:
        self.writer().insert_overwrite(str(self.path))

    def delete_partition(self) -> None:
        self.writer().delete_partition(str(self.path), [self.chance.choice(PARTITIONS)])

    def schedule(self) -> None:
        schedule_compaction(self.table, LOCK)

    def compact(self) -> None:
        run_all(self.table)

    def die(self) -> None:
        leave_dead_write(self.path)

    def stray(self) -> None:
        """A file of a completed write that no commit names, in a folder that the write did not touch."""
        source = self.chance.choice(sorted(self.path.glob("*/*.parquet")))
        if source.exists():
            shutil.copy(source, source.with_name(f"stray{self.next}-0_0-0-0_{source.name.rpartition('_')[2]}"))

    def clean(self) -> None:
        policy = self.chance.choice([Policy.COMMITS, Policy.VERSIONS])
        clean_table(self.table, CleanOptions(policy=policy, retain=self.chance.randint(1, 2), floor_s=0), LOCK)

    def archive(self) -> None:
        few = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)
        archive_table(self.table, few, LOCK)

    def savepoint(self) -> None:
        create_savepoint(self.table, LOCK, None, user="", comment="")

    def restore(self) -> None:
        done = sorted(self.table.load_timeline().completed_writes)
        restore_table(self.table, LOCK, self.chance.choice(done[-4:] or [None]))

    def roll_back(self) -> None:
        if done := self.table.load_timeline().completed_writes:
            roll_back_newest(self.table, LOCK, max(done))

    def cluster(self) -> None:
        cluster_table(self.table, ClusterOptions(), LOCK, output=OutputOptions())

    def step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.upsert: 10, self.insert: 3, self.overwrite: 1, self.delete_partition: 1, self.schedule: 3,
            self.compact: 3, self.die: 1, self.clean: 2, self.archive: 2, self.savepoint: 1,
            self.restore: 1, self.roll_back: 1, self.cluster: 1,
        }  # fmt: skip
        (step,) = self.chance.choices(list(steps), list(steps.values()))
        self.told.append(step.__name__)
        with suppress(PhantombaseError):
            step()
            self.done += 1


def test_what_is_archived_later_is_read_from_the_archive_again(tmp_path: Path) -> None:
    """Its logs stay on their slice when another one is open."""
    history = History(tmp_path / "t", 9, 1)
    followed = FollowedTable(history.path)

    def upsert(partition: str) -> None:
        phantombase.writer(history.rows([(int(partition[1:]), partition)])).upsert(str(history.path))

    def then(*steps: Callable[[], None]) -> None:
        for step in steps:
            step()
            followed.look()

    to_0, to_1 = partial(upsert, "p0"), partial(upsert, "p1")
    then(to_0, to_0, to_0, to_0, to_0, to_0, history.archive, to_0, history.schedule, history.compact)
    then(to_1, to_1, to_1, to_1, history.archive, to_0)


@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
@pytest.mark.parametrize("version", [6, 8, 9])
def test_a_state_from_the_one_before_is_the_state_loaded_anew(version: int, seed: int, tmp_path: Path) -> None:
    history = History(tmp_path / "t", version, seed)
    followed = FollowedTable(history.path)
    try:
        for _ in range(STEPS):
            followed.look()
            history.step()
        followed.look()
    except Exception as error:
        error.add_note(f"PHANTOMBASE_SEED={seed}: {'; '.join(history.told)}")
        raise
    assert history.done > STEPS / 2
    assert followed.kept > STEPS  # most partitions are not listed again
