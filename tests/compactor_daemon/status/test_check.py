"""What `check` finds on sick tables, each with a way out, and that it finds nothing on well ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.status import check
from phantombase.compactor_daemon.status.check import CareFacts, CheckOptions, TableVerdict, care_of, check_table
from phantombase.compactor_daemon.status.coexistence import Severity
from phantombase.compactor_daemon.status.pending import PendingCompaction, Work
from phantombase.compactor_daemon.status.status import InProgress, PendingWrite, ServiceRun, TableStatus
from phantombase.timeline.errors import MalformedError, TableChangedError
from phantombase.timeline.view.view import GroupDebt
from tests.support.golden_tables import GOLDEN, unzip_golden
from tests.support.selection import deep

STATUS = TableStatus(
    table="t",
    claims="not asked",
    claims_problem=None,
    slo_s=60.0,
    overdue=0,
    pending=(),
    clusterings=(),
    writes=(),
    in_progress=(),
    services=(),
    recent=(),
    last_success=None,
)
DEBT = GroupDebt(
    partition="p", file_id="f", base_instant="1", base_bytes=9, log_files=3, log_bytes=9, pending_compaction=None
)
WELL = CareFacts(status=STATUS, due=None, due_s=None, unmergeable={}, debts=(DEBT,), completed=40)
LATE = PendingCompaction(action="compaction", instant="7", age_s=99.0, overdue=True, state="waiting")
WRITE = PendingWrite(
    instant="8", state="inflight", age_s=99.0, alive=True, heartbeat_s=1.0, host="h", pid=1, holds=("7",)
)
RUN = ServiceRun(service=Service.CLEAN, ago_s=5.0, by="d", what="no space", failed=True, failing_s=9.0)


def status(**fields: object) -> CareFacts:
    return replace(WELL, status=replace(STATUS, **fields))  # type: ignore[arg-type]


SICK: dict[str, tuple[CareFacts, CareFacts]] = {
    "cannot-be-merged": (replace(WELL, unmergeable={"p/f": "damaged"}), WELL),
    "pending-unknown": (
        status(pending=(replace(LATE, problem=MalformedError("torn")),)),
        status(pending=(replace(LATE, overdue=False),)),
    ),
    "parked": (
        status(clusterings=(replace(LATE, state="parked", overdue=False),)),
        status(clusterings=(replace(LATE, state="backing off", overdue=False),)),
    ),
    "no-process": (status(pending=(LATE,)), status(pending=(replace(LATE, work=Work(source="heartbeat")),))),
    "dead-writer": (status(writes=(replace(WRITE, alive=False),)), status(writes=(WRITE, replace(WRITE, alive=None)))),
    "left-off": (
        status(in_progress=(InProgress(instant="5", action="clean", age_s=61.0, todo="clean TABLE"),)),
        status(in_progress=(InProgress(instant="5", action="clean", age_s=59.0, todo="clean TABLE"),)),
    ),
    "service-failed": (status(services=(RUN,)), status(services=(replace(RUN, failed=False),))),
    "not-scheduled": (replace(WELL, due="6 of 5", due_s=60.0), replace(WELL, due="6 of 5", due_s=59.0)),
    "log-depth": (replace(WELL, debts=(DEBT, replace(DEBT, log_files=9))), replace(WELL, debts=(DEBT,) * 3)),
    "not-archived": (replace(WELL, completed=50), replace(WELL, completed=49)),
}


@pytest.mark.parametrize("name", SICK)
def test_each_sickness(name: str) -> None:
    """It is found with a way out that names the table, and its well twin has no finding."""
    options = CheckOptions(patience_s=60, log_files=9, instants=50)
    sick, well = SICK[name]
    (found,) = care_of(sick, "/lake/t", options)
    assert (found.name, bool(found.found), "TABLE" in found.todo) == (name, True, False)
    assert "/lake/t" in found.todo or name == "dead-writer"
    assert not list(care_of(well, "/lake/t", options))


@pytest.mark.parametrize(
    "name", [n if n in {"v6_plain", "v9_plain", "v6_complex_key", "v9_pending"} else deep(n) for n in GOLDEN]
)
def test_golden_tables(name: str, tmp_path: Path) -> None:
    """Those with a pending plan of long ago need care; the others are well. None is broken, or changed."""
    path = unzip_golden(name, tmp_path)
    before = sorted(path.rglob("*"))
    found = check_table(name, str(path))
    assert {f.name for f in found.findings if f.severity is not Severity.INFO} <= {"no-process"}
    assert found.verdict is (TableVerdict.WELL if name.endswith(("_plain", "_virtual_keys")) else TableVerdict.CARE)
    assert sorted(path.rglob("*")) == before


def test_a_metadata_table_that_hudi_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the files of the last write, or cannot be read. A table that changes all the time is not broken."""
    path, kept = tmp_path / "t", tmp_path / "kept"
    metadata = path / ".hoodie/metadata"
    for ts in (1, 2):
        rows = pa.table({"id": ["a"], "ts": [ts]})
        writer(rows).table("t").key("id").ordering("ts").conf({"hoodie.metadata.enable": "true"}).upsert(str(path))
        assert check_table("t", str(path)).verdict is TableVerdict.WELL
        if ts == 1:
            shutil.copytree(metadata, kept)
    shutil.rmtree(metadata)
    shutil.copytree(kept, metadata)
    (less,) = check_table("t", str(path)).findings
    for log in (metadata / "files").glob(".*.log.*"):
        log.write_bytes(b"x")
    (unreadable,) = check_table("t", str(path)).findings
    assert [one.name for one in (less, unreadable)] == ["metadata-files"] * 2
    assert "1 difference" in less.found
    todo = less.todo.partition("off: `compactor-daemon ")[2].partition("`")[0]
    assert CliRunner().invoke(app, todo.split()).exit_code == 0
    assert check_table("t", str(path)).findings == ()

    def busy(*_: object) -> None:
        raise TableChangedError("the table changed at every try")

    monkeypatch.setattr(check, "_findings", busy)
    assert check_table("t", str(path)).verdict is TableVerdict.CARE


def _damaged_log(path: Path) -> None:
    log = next(path.rglob(".*.log.*"))
    log.write_bytes(b"x" * log.stat().st_size)


def _lost_base(path: Path) -> None:
    next(path.rglob("*.parquet")).unlink()


def _no_settings(path: Path) -> None:
    (path / ".hoodie" / "hoodie.properties").write_bytes(b"hoodie.table.version=99")


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "cannot-be-merged": (_damaged_log, "schedule"),
    "files": (_lost_base, "restore"),
    "unreadable": (_no_settings, ""),
}


def test_a_catalog_with_broken_tables(tmp_path: Path) -> None:
    """The worst table comes first and gives the exit code; each finding is shown once, with its way out."""
    none = CliRunner().invoke(app, ["check", "--root", str(tmp_path)])
    assert (none.exit_code, none.stdout.splitlines()[-1]) == (0, "0 tables")
    for name in ("well", *BROKEN):
        for ts in (1, 2):
            rows = pa.table({"id": ["a", "b"], "ts": [ts, ts]})
            writer(rows).table(name).key("id").ordering("ts").upsert(str(tmp_path / name))
        if name in BROKEN:
            BROKEN[name][0](tmp_path / name)
    shown = CliRunner().invoke(app, ["check", "--root", str(tmp_path)])
    assert (shown.exit_code, shown.stdout.count("danger:")) == (2, 3), shown.output
    assert shown.stdout.splitlines()[-1] == "4 tables: 3 broken, 1 well"
    rows = json.loads(CliRunner().invoke(app, ["check", "--root", str(tmp_path), "--json"]).stdout)["tables"]
    assert [row["verdict"] for row in rows] == ["broken"] * 3 + ["well"]
    for row in rows[:3]:
        (finding,) = row["findings"]
        assert finding["name"] == row["name"]
        assert BROKEN[row["name"]][1] in finding["todo"]
    well = CliRunner().invoke(app, ["check", str(tmp_path / "well")])
    assert (well.exit_code, well.stdout) == (0, "1 table: 1 well\n")
