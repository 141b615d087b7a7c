"""Units of work: each leaves one row in the history of its table, and none fails or waits for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.feather
import pyarrow.parquet
import pytest
from prometheus_client.metrics_core import Metric
from typer.testing import CliRunner

import phantombase
from phantombase import PriceOptions
from phantombase.compactor_daemon.attempt.compact_or_resume import compact_instant
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.metrics import Metrics
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.unit_of_work import note_work, unit_of_work
from phantombase.timeline.errors import StoppedError, StorageError, UsageError
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.history import ROWS, WorkDone, WorkFacts, read_history
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import archive, clean, cluster, compact, old_table, one_row, small_files, upsert
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, Hook, HookedStorage, ProcessDied
from tests.support.golden_tables import LOCK
from tests.support.places import capture_logs
from tests.support.written_tables import read_rows


def rows_of(path: Path) -> list[WorkDone]:
    return [*read_history(LocalStorage(str(path))).work]


def kinds(path: Path) -> list[str]:
    return [one.kind for one in rows_of(path)]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with two compactions."""
    path = tmp_path_factory.mktemp("old") / "trips"
    old_table(path, 9)
    return path


def test_a_compaction_says_why_it_ran_and_what_it_took(old: Path) -> None:
    done = rows_of(old)
    assert [(one.kind, one.outcome, one.why) for one in done] == [("compaction", "done", "asked for")] * 2
    last = done[-1]
    assert (last.rows_read, last.rows_written, last.files_before, last.files_after) == (2, 1, 2, 1)
    assert min(last.planned_bytes or 0, last.bytes_read or 0, last.bytes_written or 0, last.peak_memory or 0) > 0
    assert last.core_seconds > 0
    assert last.started_ms <= last.ended_ms
    host, _, pid = last.who.rpartition(":")
    assert (bool(host), int(pid) > 0) == (True, True)


def test_services_leave_a_row_where_they_did_something(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    old_table(path, 9)
    for _ in range(2):  # the second time there is nothing to do
        clean(path)
        archive(path)
    clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK, dry_run=True)
    assert kinds(path)[2:] == ["clean", "archive"]
    removed, archived = rows_of(path)[2:]
    assert removed.instant is not None
    assert min(removed.bytes_removed or 0, removed.files_before or 0, archived.files_before or 0) > 0
    assert archived.files_after == 1
    upsert(path, one_row("k0", 200))
    newest = open_table(path).load_timeline().instants[-1].requested_time
    roll_back_newest(open_table(path), LOCK, newest)
    assert [(one.kind, one.instant) for one in rows_of(path)[4:]] == [("rollback", newest)]
    upsert(path, one_row("k0", 201))
    newest, failing = open_table(path).load_timeline().instants[-1].requested_time, [False]

    def fail(call: Call) -> Any:
        if failing[0] and call.name.startswith("delete"):
            raise StorageError("storage failed", path=call.path)
        failing[0] = failing[0] or ".rollback" in call.path
        return call.do()

    with pytest.raises(StorageError):  # after its plan was put
        roll_back_newest(open_table(path, HookedStorage(LocalStorage(str(path)), fail)), LOCK, newest)
    assert [(one.kind, one.outcome) for one in rows_of(path)[5:]] == [("rollback", "failed")]


def test_a_clustering_leaves_one_row_for_all_its_steps(tmp_path: Path) -> None:
    small_files(tmp_path / "trips", 9)
    cluster(tmp_path / "trips")
    cluster(tmp_path / "trips")
    (one,) = rows_of(tmp_path / "trips")
    assert (one.kind, one.files_before, one.rows_written) == ("clustering", 4, 4)
    assert one.planned_bytes == one.bytes_read


def test_each_service_is_a_unit_of_work() -> None:
    """A new service that is none would cost nothing in the history."""
    names = {
        "metadata": "serve_metadata",
        "cluster": "cluster_table",
        "clean": "clean_table",
        "orphans": "remove_orphans",
        "sync": "sync_table",
        "archive": "archive_table",
    }
    assert names.keys() == {one.value for one in Service}
    for one in Service:
        assert hasattr(one.run.__globals__[names[one.value]], "__wrapped__"), one  # type: ignore[attr-defined]
    assert hasattr(compact_instant, "__wrapped__")


def requested(path: Path) -> None:
    small = path / "trips"
    phantombase.writer(one_row("k0", 0)).table("trips").key("id").partition("day").ordering("ts").upsert(str(small))
    upsert(small, one_row("k0", 1))
    schedule_compaction(open_table(small), LOCK, PLAN_NOW)


def on_history(do: Any) -> Hook:
    """Something else than a put of a row."""
    return lambda call: do(call) if call.path.startswith(ROWS) else call.do()


def test_a_row_that_cannot_be_put_fails_no_work_and_is_said(tmp_path: Path) -> None:
    requested(tmp_path)

    def fail(call: Call) -> None:
        raise StorageError("storage failed", path=call.path)

    path = tmp_path / "trips"
    with capture_logs() as logs:
        run_all(open_table(path, HookedStorage(LocalStorage(str(path)), on_history(fail))))
    assert (rows_of(path), open_table(path).load_timeline().pending_compactions) == ([], ())
    assert len([log for log in logs if log["event"] == "history_not_written"]) == 1


def test_a_death_before_the_row_does_no_damage(tmp_path: Path) -> None:
    requested(tmp_path)
    path, rows = tmp_path / "trips", read_rows(tmp_path / "trips")

    def die(call: Call) -> None:
        raise ProcessDied

    with pytest.raises(ProcessDied):
        run_all(open_table(path, HookedStorage(LocalStorage(str(path)), on_history(die))))
    run_all(open_table(path))
    assert (rows_of(path), read_rows(path)) == ([], rows)
    upsert(path, one_row("k0", 2))
    compact(path)
    assert kinds(path) == ["compaction"]


class Given:
    """As much of a table as a unit of work needs."""

    def __init__(self, path: Path) -> None:
        self.storage = LocalStorage(str(path))
        self.storage.overwrite(PROPERTIES, b"")


def unit(path: Path, do: Any, said: Any = lambda _: None, **options: Any) -> None:
    @unit_of_work("clean", said)
    def run(table: Any, dry_run: bool = False) -> Any:
        return do()

    run(Given(path), **options)


def raising(error: BaseException) -> Any:
    def do() -> None:
        note_work(bytes_read=3)
        raise error

    return do


def test_what_failed_or_was_stopped_is_a_row_and_what_was_refused_is_none(tmp_path: Path) -> None:
    for error in (StorageError("disk full", path="x"), StoppedError("stopped here"), UsageError("no"), ValueError("b")):
        with pytest.raises(type(error)):
            unit(tmp_path, raising(error))
    with pytest.raises(ProcessDied):
        unit(tmp_path, raising(ProcessDied()))
    found = sorted((one.outcome, one.error.partition(";")[0], one.bytes_read) for one in rows_of(tmp_path))
    assert found == [("failed", "b", 3), ("failed", "disk full", 3), ("stopped", "stopped here", 3)]


def test_a_dropped_table_gets_no_folder_again(tmp_path: Path) -> None:
    def drop() -> None:
        note_work(instant="1")
        shutil.rmtree(tmp_path / "t")
        raise StorageError("no such file")

    with pytest.raises(StorageError):
        unit(tmp_path / "t", drop)
    assert not (tmp_path / "t").exists()


def test_facts_are_added_up_and_inner_work_is_the_outer_ones(tmp_path: Path) -> None:
    def do() -> None:
        note_work(rows_written=2, why="one")
        unit(tmp_path, lambda: note_work(rows_written=3, why="two"))

    unit(tmp_path, lambda: note_work(rows_written=1), dry_run=True)
    unit(tmp_path, lambda: None)
    assert rows_of(tmp_path) == []
    unit(tmp_path, do, lambda _: WorkFacts(instant="7"))
    (one,) = rows_of(tmp_path)
    assert (one.rows_written, one.why, one.instant, one.kind) == (5, "two", "7", "clean")
    note_work(rows_written=9)  # outside: of nothing


def history(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["history", *words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_shows_sums_and_costs(old: Path) -> None:
    data = history(str(old), "--price-core-hour", "3600", "--kind", "compaction")
    assert [(one["kind"], one["units"]) for one in data["sums"]] == [("compaction", 2)]
    assert data["sums"][0]["cost"] == pytest.approx(sum(row["core_seconds"] for row in data["rows"]))
    assert data["rows"][0]["estimated_bytes"] is None
    assert data["rows"][-1]["estimated_bytes"] > 0
    assert history(str(old), "--since", "1h")["sums"][0]["units"] == 2
    assert history(str(old), "--kind", "clean")["rows"] == []
    text = CliRunner().invoke(app, ["history", str(old)]).output
    assert "2 units of work" in text
    assert "in all" in text
    assert isinstance(CliRunner().invoke(app, ["history", str(old), "--kind", "cluster"]).exception, UsageError)
    assert "no work is recorded" in CliRunner().invoke(app, ["history", str(old), "--kind", "sync"]).output


def test_a_file_has_the_form_that_its_ending_says(old: Path, tmp_path: Path) -> None:
    for ending in ("parquet", "arrow", "csv", "json"):
        history(str(old), "--output", str(tmp_path / f"h.{ending}"))
    table = pyarrow.parquet.read_table(tmp_path / "h.parquet")
    assert table.num_rows == 2
    assert pyarrow.feather.read_table(tmp_path / "h.arrow").equals(table)
    assert len((tmp_path / "h.csv").read_text().splitlines()) == 3
    lines = (tmp_path / "h.json").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["compaction"] * 2
    for wrong in ("h.xls", "h.csv"):  # another form; it exists
        done = CliRunner().invoke(app, ["history", str(old), "--output", str(tmp_path / wrong)])
        assert isinstance(done.exception, UsageError)
    (tmp_path / "h.csv").write_text("mine")
    (empty := tmp_path / "empty").mkdir()  # no table is found, whose rows would be written
    done = CliRunner().invoke(app, ["history", "--root", str(empty), "--output", str(tmp_path / "h.csv")])
    assert (isinstance(done.exception, UsageError), (tmp_path / "h.csv").read_text()) == (True, "mine")
    empty.rmdir()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["h.arrow", "h.csv", "h.json", "h.parquet"]


def test_python_has_the_same_rows(old: Path) -> None:
    table = phantombase.history(old, prices=PriceOptions(price_gb=1e9))
    assert table.column("cost").to_pylist() == [one.bytes for one in rows_of(old)]
    assert table.equals(phantombase.history(Table.open(str(old)), prices=PriceOptions(price_gb=1e9)))
    rows = phantombase.read(f"phantombase:history:{old}", ["kind", "instant"], filter="files_before = 2", limit=1)
    assert rows.schema.names == ["kind", "instant"]
    assert rows.to_arrow().to_pylist() == [{"kind": "compaction", "instant": rows_of(old)[0].instant}]
    assert (rows.count(), len([*rows])) == (1, 1)
    for wrong in ({"as_of": "1"}, {"columns": ["nope"]}, {"filter": "nope = 1"}):
        with pytest.raises(UsageError):
            phantombase.read(f"phantombase:history:{old}", **wrong).to_arrow()
    with pytest.raises(UsageError, match="phantombase:history:PATH"):
        phantombase.read("phantombase:history")


def test_a_daemon_exports_what_its_work_took(tmp_path: Path) -> None:
    unit(tmp_path, lambda: note_work(bytes_read=5, bytes_written=2))
    metrics = Metrics(prices=PriceOptions(price_gb=1e9))
    metrics.serves(str(tmp_path))

    def found() -> dict[str, float]:
        families: list[Metric] = [one for one in metrics.collect() if one.name.startswith("phantombase_work_")]
        of = {f.name: s.value for f in families for s in f.samples if s.labels["table"] == str(tmp_path)}
        return {name.removeprefix("phantombase_work_"): value for name, value in of.items()}

    assert {name: found()[name] for name in ("units", "bytes", "cost")} == {"units": 1, "bytes": 7, "cost": 7}
    metrics.forget(str(tmp_path))
    assert found() == {}
