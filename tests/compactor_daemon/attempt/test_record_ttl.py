"""Rows past their time: which ones a compaction leaves out, what its ledger and commit say, and where it is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import OutputOptions, cluster, compact, maintain, schedule, writer
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant, pending_instants
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.options import output_from_json, output_to_json
from phantombase.timeline.audit.audit import Verdict, audit
from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.format.ledger import Expiry, decode_ledgers
from phantombase.timeline.format.table_config import save_table_config
from phantombase.timeline.instants.reserved_times import attempts
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.merge.rule import expired
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.table.table import Table
from tests.support.change_feeds import feed, moments_of, request
from tests.support.compaction_steps import OPTIONS, decided, open_table, staged
from tests.support.golden_tables import one_of
from tests.support.places import capture_logs

NOW = datetime.now(UTC)
OLD, NEW = NOW - timedelta(days=100), NOW - timedelta(days=1)
KEPT = OutputOptions(record_ttl="created=90d")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("created", pa.timestamp("us", "UTC")),
        ("n", pa.int64()),
        ("info", pa.struct([("d", pa.date32())])),
    ]
)


def rows(**created: datetime | None) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": key, "created": at, "n": n, "info": {"d": OLD.date()}} for n, (key, at) in enumerate(created.items())],
        SCHEMA,
    )


def upsert(path: Path, version: int = 9, buckets: int | None = 1, **created: datetime | None) -> None:
    made = writer(rows(**created)).table("t", version=version).key("id")
    (made.buckets(buckets) if buckets else made).upsert(str(path))


def table_of(path: Path, version: int = 9) -> Path:
    """All kinds of rows in one bucket, and a pending compaction."""
    upsert(path, version, stays=NEW, old=OLD, none=None, renewed=OLD, aged=NEW, dropped=OLD)
    upsert(path, version, renewed=NEW, aged=OLD, late=OLD, fresh=NEW)
    writer(rows(dropped=OLD).select(["id"])).buckets(1).delete(str(path))
    schedule(str(path), sole_writer=True)
    return path


def keys(path: Path) -> set[str]:
    return set(read_table(open_table(path)).column("id").to_pylist())


LEFT = {"stays", "none", "renewed", "fresh"}


def commit_of(path: Path) -> tuple[Table, str, Any]:
    table = open_table(path)
    (done,) = [i for i in table.load_timeline().completed if i.action == "commit"]
    return table, done.requested_time, table.commit_metadata(done)


@one_of("version", 9, 6, 8)
def test_merged_rows_past_their_time_are_left_out_and_counted(version: int, tmp_path: Path) -> None:
    """Only the merged row counts: a renewed one stays, one whose update is old goes. Null stays."""
    path = table_of(tmp_path / "t", version)
    states = moments_of(open_table(path))
    with capture_logs() as logs:
        assert compact(str(path), output=KEPT).done[0].rows == len(LEFT)
    assert [one["rows"] for one in logs if one["event"] == "rows_left_out"] == [3]
    assert keys(path) == LEFT
    table, instant, commit = commit_of(path)
    (stat,) = commit.partition_to_write_stats[""]
    assert (stat.num_writes, stat.num_deletes, stat.num_inserts) == (4, 4, 2)
    (group,) = decode_ledgers(commit.extra_metadata["phantombase.ledger"], "")
    assert (group.ledger.expired, group.ledger.deleted) == (3, 1)
    assert [one.verdict for one in audit(table, instant).groups] == [Verdict.PROVED]
    upsert(path, version, old=OLD, stays=NEW)  # a row that comes back is a new one
    assert keys(path) == LEFT | {"old"}
    found = feed(open_table(path), states[-1])
    assert [(c["op"], (c["after"] or c["before"])["id"]) for c in found] == [("u", "stays"), ("i", "old")]
    net = feed(open_table(path), states[-1], net=True)
    assert {c["before"]["id"] for c in net if c["op"] == "d"} == {"aged", "late"}


def test_every_attempt_leaves_out_what_was_old_when_it_was_planned(tmp_path: Path) -> None:
    """A process with another age makes its own file; a lost file is made again as it was decided."""
    path = table_of(tmp_path / "t")
    table = open_table(path)
    (instant,) = pending_instants(table)
    _, (first,), _ = staged(table, instant, KEPT)
    _, (same,), _ = staged(table, instant, KEPT)
    assert same.staged == first.staged
    _, (other,), _ = staged(table, instant)
    assert (first.ledger.expired, other.ledger.expired) == (3, 0)
    decision = decided(table, instant, KEPT)
    assert decision.placements[0].output == KEPT == output_from_json(output_to_json(KEPT))
    (path / decision.placements[0].staged).unlink()
    run = {"lock": ProcessLock("t"), "runner": LocalRunner(1), "progress": lambda done, total: None, "options": OPTIONS}
    compact_instant(table, instant, output=OutputOptions(), **run)  # type: ignore[arg-type]
    assert keys(path) == LEFT


def test_a_log_compaction_keeps_rows_past_their_time(tmp_path: Path) -> None:
    """Without the row in the log, an older one in the base file would be seen again."""
    path = table_of(tmp_path / "t")
    compact(str(path))
    for _ in range(2):
        upsert(path, renewed=OLD)
    request(open_table(path))
    before = keys(path)
    compact(str(path), output=KEPT)
    assert keys(path) == before


def test_a_date_or_a_time_without_a_zone_is_over_in_all_zones() -> None:
    """Null never is; a bound that no value can reach leaves out nothing."""
    bound = datetime(2026, 3, 10, 6, tzinfo=UTC)
    before_ms = int(bound.timestamp() * 1000)

    def first_kept(kind: pa.DataType, *values: Any) -> int:
        flags = expired(pa.table({"c": pa.array([None, *values], kind)}), Expiry(column="c", before_ms=before_ms))
        found = flags.to_pylist()[1:]
        assert not flags[0].as_py()
        return int(found.index(False))

    days = [date(2026, 3, 7), date(2026, 3, 8), date(2026, 3, 9)]
    assert first_kept(pa.date32(), *days) == 2  # the 8th ends at 12:00 UTC on the 9th in the last zone
    for unit, tick in (("s", timedelta(seconds=1)), ("ms", timedelta(milliseconds=1)), ("us", timedelta.resolution)):
        for zone, at in (("UTC", bound), (None, bound.replace(tzinfo=None) - timedelta(hours=12))):
            assert first_kept(pa.timestamp(unit, zone), at - tick, at) == 1
    never = Expiry(column="c", before_ms=-(10**18))
    assert not expired(pa.table({"c": pa.array([0], pa.timestamp("ns"))}), never)[0].as_py()


def refused(path: Path, ttl: str = "created=90d") -> PhantombaseError:
    """By `compact --schedule`, before anything is planned; by `compact` of a plan that is there."""
    before = open_table(path).load_timeline().instants
    words = ["compact", str(path), "--schedule", "--sole-writer", "--executor", "local", "--record-ttl", ttl]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, PhantombaseError), error
    assert open_table(path).load_timeline().instants == before
    schedule(str(path), sole_writer=True)
    with pytest.raises(type(error)) as again:
        compact(str(path), output=OutputOptions(record_ttl=ttl))
    assert str(again.value) == str(error)
    assert not attempts(open_table(path).storage, pending_instants(open_table(path))[0])
    return error


def test_a_column_without_dates_is_refused_by_name(tmp_path: Path) -> None:
    for _ in range(2):
        upsert(tmp_path / "t", a=OLD)
    for column in ("n", "info.d", "gone", "_hoodie_commit_time"):
        error = refused(tmp_path / "t", f"{column}=1d")
        assert isinstance(error, UsageError)
        assert (error.expected, str(error.found).split(",")[0]) == ("created", column)


def test_tables_whose_keys_are_looked_up_are_refused(tmp_path: Path) -> None:
    for name, buckets in (("keys", None), ("indexed", 1)):
        for _ in range(2):
            upsert(tmp_path / name, buckets=buckets, a=OLD)
    assert "bucket index" in str(refused(tmp_path / "keys"))
    table = open_table(tmp_path / "indexed")
    indexed = {"hoodie.table.metadata.partitions": "files,record_index", "hoodie.metadata.enable": "true"}
    save_table_config(table.storage, replace(table.config, properties={**table.config.properties, **indexed}))
    assert "record_index" in str(refused(tmp_path / "indexed"))


def test_what_is_no_column_and_age_is_refused() -> None:
    for text in ("created", "=90d", "created=90", "created=0d", "created=90w"):
        with pytest.raises(UsageError, match="record-ttl"):
            OutputOptions(record_ttl=text)


def test_a_table_keeps_the_option_for_maintenance_and_a_clustering_refuses_it(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t")
    kept = CliRunner().invoke(app, ["config", "set", str(path), "record-ttl=created=90d", "--sole-writer"])
    assert kept.exit_code == 0, kept.output
    wrong = CliRunner().invoke(app, ["config", "set", str(path), "record-ttl=n=90d", "--sole-writer"])
    assert "record-ttl needs a column of the table with a date or a timestamp" in str(wrong.exception)
    with pytest.raises(UsageError, match="a clustering keeps all rows"):
        cluster(str(path), output=KEPT, sole_writer=True)
    steps = maintain(str(path), services="clean", sole_writer=True)
    assert not [step for step in steps if step.failed]
    assert keys(path) == LEFT


def test_a_writer_that_does_not_compact_refuses_it(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    made = writer(rows(old=OLD)).table("t", version=9).key("id").buckets(1).option(output=KEPT)
    for wrong in (made, made.schedule(max_delta_commits=1)):
        with pytest.raises(UsageError, match=r"record-ttl has no effect.*compact_inline"):
            wrong.upsert(path)
    assert not (tmp_path / "t").exists()
    for _ in range(2):
        made.compact_inline(max_delta_commits=2).upsert(path)
    assert keys(tmp_path / "t") == set()
