"""Options that a table keeps: they count below what is given, and are checked as those of commands are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import CleanOptions, clean, compact, restore, schedule, writer
from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.compactor_daemon.fleet.claims import TableClaims
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.services.options import PATH, change_policies, read_policies
from phantombase.compactor_daemon.unit_of_work import Limit
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import ConflictError, LockError, MalformedError, UsageError
from phantombase.timeline.locks.heartbeat import heartbeat_path
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import one_row
from tests.support.compaction_steps import open_table
from tests.support.daemons import ROWS, daemon_on, pending_table
from tests.support.faults import Faults, make_old, pending_write
from tests.support.golden_tables import LOCK


def invoke(*words: object) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in (*words, "--json")])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(done.stdout)


def error_of(*words: object) -> UsageError:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, UsageError), done.output + repr(done.exception)
    return done.exception


def config(path: Path, *pairs: str) -> Any:
    return invoke("config", "set", path, *pairs, "--sole-writer")["policies"]


def shown(path: Path, *names: str, file: Path | None = None) -> list[tuple[Any, str]]:
    more = ["--config", file] if file is not None else []
    rows = {row["name"]: row for row in invoke("config", "show", path, *more)["settings"]}
    return [(rows[name]["value"], rows[name]["from"]) for name in names]


def test_an_option_of_the_table_counts_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, file = pending_table(tmp_path / "rides"), tmp_path / "fleet.toml"
    file.write_text('codec = "gzip"\n')
    assert config(path, "codec=snappy", "phantombase.max_plans=3", "freshness=10m", "clean-retain=7") == {
        "codec": "snappy",
        "max-plans": "3",
        "freshness": "10m",
        "clean-retain": "7",
    }
    assert (path / PATH).read_text().splitlines()[0] == "phantombase.clean-retain=7"
    names = ("codec", "max-plans", "freshness", "batch-rows")
    assert shown(path, *names)[:3] == [("snappy", "table"), ("3", "table"), ("10m", "table")]
    monkeypatch.chdir(tmp_path)
    assert shown(Path("rides"), *names) == shown(path, *names)
    assert shown(path, "codec", file=file) == [("gzip", f"{file}")]
    assert "clean removes    nothing: the newest 7 commits" in CliRunner().invoke(app, ["status", str(path)]).stdout
    assert clean(path, dry_run=True).why == "the newest 7 commits are retained"
    assert clean(path, CleanOptions(retain=9), dry_run=True).why == "the newest 9 commits are retained"
    monkeypatch.setenv("PHANTOMBASE_CODEC", "zstd")
    assert shown(path, "codec", file=file) == [("zstd", "PHANTOMBASE_CODEC")]
    monkeypatch.delenv("PHANTOMBASE_CODEC")
    for words, codec in (((), "SNAPPY"), (("--codec", "gzip"), "GZIP")):
        done = invoke("compact", path, "--schedule", "--sole-writer", *words)["compacted"]
        (made,) = path.rglob(f"*_{done[-1]['instant']}.parquet")
        assert pq.read_metadata(made).row_group(0).column(0).compression == codec
        writer(ROWS.slice(0, 5)).buckets(1).upsert(str(path))
    assert invoke("config", "unset", path, "codec", "freshness", "--sole-writer")["policies"].keys() == {
        "max-plans",
        "clean-retain",
    }


def test_names_and_values_are_checked_and_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = pending_table(tmp_path / "rides")
    for pairs, text in (
        (["freshnes=10m"], "Did you mean freshness?"),
        (["codec=fast"], "not a value of codec"),
        (["max-plans=0"], "max-plans must be at least 1"),
        (["services=clean,tidy"], "not a service"),
        (["freshness=10m", "picking=universal"], "freshness needs compactions"),
        (["codec"], "NAME=VALUE"),
        (["sync-to=hive:host:99999"], "not a Hive Metastore"),
    ):
        assert text in str(error_of("config", "set", path, *pairs, "--sole-writer"))
    assert "no such option of a table" in str(error_of("config", "unset", path, "freshnes", "--sole-writer"))
    assert not (path / PATH).exists()
    config(path, "max-plans=2")
    (path / PATH).write_text("phantombase.max-plans=none\nphantombase.of-a-later-release=1\n")
    done = CliRunner().invoke(app, ["compact", str(path)])
    assert isinstance(done.exception, MalformedError)
    assert "config unset" in str(done.exception)
    with daemon_on(path, zookeeper=None) as daemon:
        summary = daemon.run()
    assert (list(summary.done), list(summary.problems)) == ([], [str(path)])
    assert invoke("config", "unset", path, "max-plans", "--sole-writer")["policies"] == {"of-a-later-release": "1"}
    assert len(invoke("compact", path)["compacted"]) == 1


def test_daemons_and_maintain_take_them_and_a_process_with_another_safe_option_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    for number in range(2):
        writer(one_row("k0", number)).table("trips").key("id").ordering("ts").buckets(1).upsert(str(path))
    with daemon_on(path, zookeeper=None, schedule=ScheduleOptions(), sole_writer=True) as daemon:
        assert list(daemon.run().done) == []  # five delta commits are due
    config(path, "max-delta-commits=1", "foreign-grace=60", "services=clean")
    assert [s["step"] for s in invoke("maintain", path, "--dry-run")["tables"][0]["steps"]] == [
        "schedule",
        "compact",
        "clean",
    ]
    with daemon_on(path, zookeeper=None, schedule=ScheduleOptions(), sole_writer=True) as daemon:
        assert len(daemon.run().done) == 1
    config(path, "freshness=1h")
    for why, *words in (["no row"], ["0 of 1 delta", "--trigger", "num-commits"], ["no file", "--trigger", "always"]):
        assert why in invoke("maintain", path, "--dry-run", *words)["tables"][0]["steps"][0]["what"]
    with pytest.raises(UsageError, match="foreign-grace must be the same"):
        compact(path, attempt=AttemptOptions(foreign_grace_s=5))
    assert schedule(path, dry_run=True).why == "no file group has log files that are not already in a plan"
    error = error_of("compact", path, "--foreign-grace", "5")
    assert "foreign-grace must be the same for all processes" in str(error)
    assert (error.expected, error.found) == ("60, as the table has", "5")
    assert invoke("compact", path, "--foreign-grace", "60")["compacted"] == []


def test_a_writer_that_lives_by_the_expiry_of_the_table_is_rolled_back_by_no_process(tmp_path: Path) -> None:
    """Of Hudi, whose heartbeats come at long intervals."""
    path = tmp_path / "trips"
    for number in range(2):
        writer(one_row("k0", number)).table("trips").key("id").upsert(str(path))
    seen = open_table(path).snapshot()
    first, time = min(seen.timeline.completed_writes), seen.next_time()
    inflight, beat = pending_write(path, 9, time), path / heartbeat_path(time)
    beat.parent.mkdir(exist_ok=True)
    beat.touch()
    make_old({beat, inflight, inflight.with_suffix(".requested")}, 200)
    config(path, "heartbeat-expiry=600")
    writer(one_row("k0", 3)).upsert(str(path))
    with pytest.raises(ConflictError, match="a deltacommit is pending"):
        restore(path, first, sole_writer=True)
    done = CliRunner().invoke(app, ["restore", str(path), "--to", first, "--sole-writer"])
    assert isinstance(done.exception, ConflictError)
    assert inflight.exists()
    invoke("config", "unset", path, "heartbeat-expiry", "--sole-writer")
    writer(one_row("k0", 4)).upsert(str(path))
    assert not inflight.exists()


def test_all_processes_of_a_table_take_its_lock_and_another_one_is_refused(tmp_path: Path) -> None:
    """Commands, daemons and writers."""
    path = pending_table(tmp_path / "rides")
    lock, other = f"file:{tmp_path}/{{name}}.lock", f"file:{tmp_path}/other.lock"
    config(path, f"lock={lock}")
    one = writer(ROWS.slice(0, 5)).buckets(1)
    with pytest.raises(UsageError) as refused:
        one.option(lock=other).upsert(str(path))
    for error in (
        error_of("compact", path, "--lock", other),
        error_of("unschedule", path, "20200101000000000", "--lock", other),
        refused.value,
    ):
        assert "the lock must be the same for all processes" in str(error)
        assert (error.expected, error.found) == (f"{lock}, as the table has", other)
    one.upsert(str(path))
    assert (tmp_path / "rides.lock").exists()
    invoke("clean", path)  # it needs no --lock: the table has one
    assert len(invoke("compact", path, "--lock", f"file:{tmp_path}/rides.lock")["compacted"]) == 1
    assert invoke("config", "set", path, f"lock={other}")["policies"] == {"lock": other}
    with daemon_on(path, zookeeper=None, sole_writer=True) as daemon:
        assert daemon.run().problems == {}


def test_work_that_has_begun_under_another_lock_than_the_table_has_now_is_refused(tmp_path: Path) -> None:
    """Until then both would exclude nobody. A daemon goes on under the new one."""
    path = pending_table(tmp_path / "rides")
    table, made = open_table(path), tmp_path / "new"
    old, new = table_lock(table.storage, None), f"file:{made}/lock"
    choose = partial(table_lock, given=None)
    settings = DaemonSettings(
        who="d", output=OutputOptions(), attempt=AttemptOptions(), retry=RetryOptions(), order=DaemonOrder.EARLIEST
    )
    served = TableOnStorage(str(path), TableClaims(table, "d"), old, LocalRunner(1), settings, choose)
    for unusable in (new, "zookeeper:127.0.0.1:1/a/b"):
        cannot = (
            CliRunner().invoke(app, ["config", "set", str(path), f"lock={unusable}", "--lock", "storage"]).exception
        )
        assert isinstance(cannot, LockError)
    assert "connection refused" in str(cannot)
    assert read_policies(table.storage).values == {}
    made.mkdir()
    invoke("config", "set", path, f"lock={new}", "--lock", "storage")
    with pytest.raises(LockError, match=r"the table has got another lock .* Run again"):
        schedule_compaction(table, old)
    (instant,) = pending_instants(table)
    held = served.claims.take(instant)
    assert held is not None
    assert served.execute(instant, held, Limit()) is not None
    held.release()
    rmtree(made)
    assert config(path, "lock=storage") == {"lock": "storage"}
    assert invoke("config", "unset", path, "lock")["policies"] == {}


def test_a_process_that_dies_while_it_sets_them_leaves_the_old_ones_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    writer(one_row("k0", 0)).table("trips").key("id").ordering("ts").buckets(1).upsert(str(path))
    change_policies(open_table(path), LOCK, {"max-plans": "2"})

    def change(storage: Any) -> None:
        change_policies(Table.on(storage), LOCK, {"max-plans": None, "codec": "gzip"})

    deaths = 0
    for _, copy in Faults.of(path, change).deaths():
        assert read_policies(LocalStorage(str(copy))).values in ({"max-plans": "2"}, {"codec": "gzip"})
        change(LocalStorage(str(copy)))
        assert read_policies(LocalStorage(str(copy))).values == {"codec": "gzip"}
        deaths += 1
    assert deaths > 0
