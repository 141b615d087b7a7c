"""Partitions past their time are deleted; never by default, and none that was just written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import PartitionTtl, PartitionTtlOptions, partition_ttl, read, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.services.hudi_conf import command_conf, conf_fields
from phantombase.timeline.errors import ConflictError, UsageError
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.storage.contract import OwnLock
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.erase.partition_ttl import _Expiry
from phantombase.writer_hooks.write.write import write
from tests.support.compaction_steps import run_all
from tests.support.golden_tables import one_of, unzip_golden

DAY = PartitionTtlOptions(days_retain=1)
"""The golden tables are older, what is written now is younger."""
CREATED = PartitionTtlOptions(days_retain=1, strategy=PartitionTtl.KEEP_BY_CREATION_TIME)


def partitions(path: Path) -> set[str]:
    return set(read(str(path)).to_arrow()["p"].to_pylist())


def touch(path: Path, *names: str) -> None:
    """The first row of each partition is written again; of a new one under another key."""
    rows = read(str(path)).to_arrow()
    rows = rows.select([name for name in rows.schema.names if not name.startswith("_hoodie_")])
    old = rows.to_pylist()
    made = [
        next((r for r in old if r["p"] == name), None) or {**old[0], "p": name, "id": f"{name}-x"} for name in names
    ]
    writer(pa.Table.from_pylist(made, rows.schema)).upsert(str(path))


def test_a_sole_writer_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on HDFS, which has none that Hudi's writers share."""
    path = unzip_golden("v9_plain", tmp_path)
    monkeypatch.setattr(LocalStorage, "own_lock", OwnLock.PRIVATE)
    assert set(partition_ttl(str(path), DAY, sole_writer=True).partitions) == {"north", "south"}


@one_of("version", 9, 6)
def test_what_is_past_its_time_is_deleted(version: int, tmp_path: Path) -> None:
    """By the last write, log files included; or by the first one. A run without anything to delete writes nothing."""
    path = unzip_golden(f"v{version}_plain", tmp_path)
    touch(path, "south", "west")
    seen = partition_ttl(str(path), DAY, dry_run=True)
    assert (set(seen.partitions), seen.instant, partitions(path)) == ({"north"}, None, {"north", "south", "west"})
    done = partition_ttl(str(path), DAY, sole_writer=True)
    assert (done.partitions, done.left, partitions(path)) == (seen.partitions, (), {"south", "west"})
    assert Table.open(str(path)).load_timeline().completed[-1].requested_time == done.instant
    assert partition_ttl(str(path), DAY, sole_writer=True).instant is None
    assert partition_ttl(str(path), PartitionTtlOptions(days_retain=10**20), dry_run=True).partitions == {}
    gone = partition_ttl(str(path), CREATED, sole_writer=True)
    assert (set(gone.partitions), partitions(path)) == ({"south"}, {"west"})
    assert set(read(str(path), as_of=max(seen.partitions.values())).to_arrow()["p"].to_pylist()) == {"north", "south"}


def test_what_is_left(tmp_path: Path) -> None:
    """What a pending plan holds, more than one run deletes, other partitions than those named, and unknown times."""
    path = unzip_golden("v9_pending", tmp_path)
    left = {one.partition: one.why for one in partition_ttl(str(path), DAY, sole_writer=True).left}
    assert set(left) == {"north", "south"}
    assert left["north"].startswith("in the pending compaction 2")
    run_all(Table.open(str(path)))  # the time of a base file is that of its plan, as in Hudi
    only = PartitionTtlOptions(days_retain=1, max_partitions=1)
    first = partition_ttl(str(path), only, dry_run=True)
    assert (list(first.partitions), [(o.partition, o.why) for o in first.left]) == (
        ["north"],
        [("south", "one run deletes at most 1")],
    )
    named = PartitionTtlOptions(days_retain=1, partitions=("south",))
    assert list(partition_ttl(str(path), named, dry_run=True).partitions) == ["south"]
    unknown = partition_ttl(str(path), PartitionTtlOptions(days_retain=1, partitions=("p=south",)), dry_run=True)
    assert [one.partition for one in unknown.left] == ["p=south"]
    assert partition_ttl(str(path), PartitionTtlOptions(days_retain=10**30), dry_run=True).partitions == {}
    for text, why in ((b"depth=1\n", "its time is unknown: none is recorded"), (b"commitTime=000\n", "unknown: 000")):
        (path / "north/.hoodie_partition_metadata").write_bytes(text)
        (kept,) = partition_ttl(str(path), CREATED, dry_run=True).left
        assert (kept.partition, why in kept.why) == ("north", True)


def test_a_partition_that_is_written_since_it_was_chosen_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the deletion begins: it is asked again. Until it completes: a conflict, and nothing is deleted."""
    path = unzip_golden("v9_plain", tmp_path)
    real, clock = write, ClockOptions(clock_skew_s=77)

    def late(*given: Any) -> Any:
        touch(path, "south")
        assert given[2].options.clock == clock
        return real(*given)

    monkeypatch.setattr("phantombase.writer_hooks.erase.partition_ttl.write", late)
    done = partition_ttl(Table.open(str(path)).with_clock(clock), DAY, sole_writer=True)
    assert (set(done.partitions), partitions(path)) == ({"north"}, {"south"})
    monkeypatch.undo()
    path, asked = unzip_golden("v9_plain", tmp_path / "other"), _Expiry.is_past

    def later(self: Any, *given: Any) -> bool:
        found = asked(self, *given)
        touch(path, "south")
        return found

    monkeypatch.setattr(_Expiry, "is_past", later)
    with pytest.raises(ConflictError, match="another write"):
        partition_ttl(str(path), DAY, sole_writer=True)
    assert partitions(path) == {"north", "south"}


def test_nothing_is_deleted_by_default(tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    with pytest.raises(UsageError, match="--days-retain"):
        partition_ttl(str(path), PartitionTtlOptions(), sole_writer=True)
    with pytest.raises(UsageError, match="sole_writer=True"):
        partition_ttl(str(path), DAY)
    flat = unzip_golden("v9_bucket_nonpart", tmp_path)
    with pytest.raises(UsageError, match="no partitions"):
        partition_ttl(str(flat), DAY, sole_writer=True)
    with pytest.raises(UsageError):
        PartitionTtlOptions(days_retain=0)
    assert partitions(path) == {"north", "south"}


def test_the_command_and_hudi_s_names(tmp_path: Path) -> None:
    path = unzip_golden("v9_plain", tmp_path)
    pairs = [
        "hoodie.partition.ttl.management.strategy.type=KEEP_BY_CREATION_TIME",
        "hoodie.partition.ttl.strategy.days.retain=7",
        "hoodie.partition.ttl.strategy.partition.selected=north, west",
        "hoodie.partition.ttl.strategy.max.delete.partitions=5",
        "hoodie.partition.ttl.inline=true",
    ]
    found = command_conf({PartitionTtlOptions}, pairs, [], locks=False).pairs[PartitionTtlOptions]
    assert PartitionTtlOptions(**conf_fields(PartitionTtlOptions, found, {})) == PartitionTtlOptions(
        strategy=PartitionTtl.KEEP_BY_CREATION_TIME, days_retain=7, partitions=("north", "west"), max_partitions=5
    )
    command = ["partition-ttl", str(path), *(word for pair in pairs for word in ("--conf", pair))]
    dry = CliRunner().invoke(app, [*command, "--dry-run", "--json"])
    assert list(json.loads(dry.stdout)["partitions"]) == ["north"]
    done = CliRunner().invoke(app, [*command, "--sole-writer"])
    assert (done.exit_code, "deleted: 1 partition" in done.stdout, partitions(path)) == (0, True, {"south"})
    none = CliRunner().invoke(app, [*command, "--sole-writer"])
    assert "nothing to delete: no partition is past its time" in none.stdout
    assert "west" in none.stdout
