"""Real Hudi on `s3a://` (hadoop-aws) and we, in turns on one table of one bucket."""

from __future__ import annotations

import pytest

from phantombase.timeline.metadata_table.validate import validate
from tests.hudi.cases.rows import Rows, same
from tests.hudi.cases.shared_table import BUCKET, EVENT_TIME, HUDI, check_rows
from tests.hudi.judge.client import METADATA_TABLE, Options
from tests.hudi.judge.fixtures import Judges
from tests.support.s3_table import S3Table
from tests.support.selection import deep
from tests.support.servers.s3_server import S3Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

LONE = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}
"""With a metadata table Hudi wants a lock even when it is alone, and on s3a the one it takes by itself is refused."""

CASES: dict[str, Options] = {
    "plain": EVENT_TIME,
    "metadata table": {**EVENT_TIME, **METADATA_TABLE, **LONE},
    "buckets": EVENT_TIME | BUCKET,
}


def table_of(judges: Judges, s3: S3Server, version: int, options: Options) -> S3Table:
    """A table that is not there yet."""
    url = f"s3a://{s3.new_bucket()}/lake/t"
    return S3Table(judge=judges(HUDI[version]), url=url, version=version, options=options, lock="storage")


def good(table: S3Table) -> None:
    """Our proofs of it: each ledger, and what the metadata table says of its files."""
    table.audited()
    if opened := table.open().config.metadata_partitions:
        assert validate(table.open()).differences == (), opened


@pytest.mark.parametrize("case", [deep(case, id=case) for case in CASES])
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_hudi_goes_on_where_we_compacted(s3_judges: Judges, s3: S3Server, version: int, case: str) -> None:
    """Hudi writes, we compact, Hudi reads, upserts, compacts, cleans and archives, and we compact again."""
    rows = Rows(seed=version)
    table = table_of(s3_judges, s3, version, CASES[case])
    table.create(rows(range(60), 1))
    table.upsert(rows(range(0, 70, 3), (1, 2, 3)))
    deleted = range(1, 60, 11)
    table.delete(rows(deleted, 3))
    table.hudi_schedules()
    # A key that is deleted under a plan and written again doubles in Hudi itself.
    table.upsert(rows(set(range(0, 80, 5)) - set(deleted), 4))
    table.compact_beside_hudi()
    good(table)

    latest = rows(set(range(0, 90, 4)) - set(deleted), 5)
    table.upsert(latest)
    check_rows(table.agree(), latest)
    pending = table.we_schedule()
    mine = rows(range(0, 100, 7), 6)
    table.writer(mine).upsert(table.url)
    check_rows(table.agree(), mine)
    table.hudi_compacts(pending)
    good(table)

    table.delete(rows(range(0, 100, 9), 7))
    table.judge.clean(table.url, options=table.options)
    table.judge.archive(table.url, options=table.options)
    kept = table.agree()
    check_rows(kept, rows([], 0), absent=range(0, 100, 9))
    assert table.we_schedule() in table.we_compact()
    same(table.agree(), kept)
    same(table.agree_on_base_files(), kept)
    good(table)


@pytest.mark.parametrize("case", [deep(case, id=case) for case in CASES])
@pytest.mark.parametrize("version", [6, 8, 9], ids="v{}".format)
def test_hudi_goes_on_with_a_table_of_ours(s3_judges: Judges, s3: S3Server, version: int, case: str) -> None:
    """We make it and write, Hudi reads, upserts, compacts, cleans and archives; then we read, write and compact."""
    rows = Rows(seed=10 + version)
    table = table_of(s3_judges, s3, version, CASES[case])
    first = rows(range(50), 1)
    table.creator(first).upsert(table.url)
    table.writer(rows(range(0, 60, 3), 2)).upsert(table.url)
    check_rows(table.agree(), rows([], 0))
    table.upsert(rows(range(0, 70, 4), 3))
    table.agree()
    table.hudi_schedules()
    mine = rows(range(0, 80, 5), 4)
    table.writer(mine).upsert(table.url)
    table.hudi_compacts()
    check_rows(table.agree(), mine)

    latest = rows(range(0, 90, 6), 5)
    table.upsert(latest)
    table.judge.clean(table.url, options=table.options)
    table.judge.archive(table.url, options=table.options)
    check_rows(table.agree(), latest)
    table.we_schedule()
    table.writer(rows(range(0, 100, 7), 6)).upsert(table.url)
    before = table.agree()
    table.compact_beside_hudi()
    same(table.agree(), before)
    last = rows(range(0, 110, 8), 7)
    table.upsert(last)
    check_rows(table.agree(), last)
    good(table)
