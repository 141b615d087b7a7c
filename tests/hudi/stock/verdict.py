"""Walks a stock table through what its users do: Hudi and we read it, we compact it, Hudi goes on, both read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

import pyarrow as pa
from typer.testing import CliRunner

from phantombase import PhantombaseError, UnsupportedError, read
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.cli.main import app
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table
from tests.hudi.cases.rows import same
from tests.hudi.judge.client import Judge, JudgeError
from tests.hudi.judge.table_files import names
from tests.hudi.stock.cases import Stock
from tests.support.places import ROOT

RESULTS = ROOT / "tests/hudi/stock/results.json"


class Outcome(Enum):
    """What became of a table."""

    SERVED = "served"
    READ = "read only"
    REFUSED = "refused"
    DIFFERS = "differs"
    NOT_MADE = "not made"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was seen. `why`: the refusal, the first difference, or Hudi's error. `groups`: file groups we compacted."""

    outcome: Outcome
    why: str = ""
    groups: int = 0


def judged(stock: Stock, judge: Judge, path: Path, version: int) -> Verdict:
    """Hudi makes the table at `path`, and reads it; then the walk."""
    try:
        stock.make(judge, path, version)
        judge.read(path, options=stock.reading())
    except JudgeError as error:
        return Verdict(outcome=Outcome.NOT_MADE, why=str(error).splitlines()[0][:200])
    try:
        return _walk(stock, judge, path, version)
    except UnsupportedError as error:
        return _refused(path, error)
    except (AssertionError, PhantombaseError, JudgeError) as error:
        return Verdict(outcome=Outcome.DIFFERS, why=f"{type(error).__name__}: {error}"[:600])


def _walk(stock: Stock, judge: Judge, path: Path, version: int) -> Verdict:
    before = agree(stock, judge, path)
    agree(stock, judge, path, "read_optimized")
    if not Table.open(str(path), reading=True).config.has_logs:
        return Verdict(outcome=Outcome.READ)
    requested = schedule_compaction(Table.open(str(path)), ProcessLock(str(path))).requested
    run_compactions(
        str(path),
        output=OutputOptions(codec=Codec.GZIP if version == 6 else Codec.ZSTD),
        execute=ExecuteOptions(executor=Executor.LOCAL, threads=2),
        attempt=AttemptOptions(),
    )
    after = agree(stock, judge, path)
    agree(stock, judge, path, "read_optimized")
    if version > 6:  # on version 6 any compaction may change rows: log entries and base rows are compared otherwise
        same(_without_files(after), _without_files(before))
    _valid(path)
    stock.on_top(judge, path, version)
    agree(stock, judge, path)
    _valid(path)
    return Verdict(outcome=Outcome.SERVED, groups=sum(len(one.plan.operations) for one in requested))


def agree(stock: Stock, judge: Judge, path: Path, query: str = "snapshot") -> pa.Table:
    """Both read the same; what Hudi reads."""
    hudis = judge.read(path, query=query, options=stock.reading())
    same(read(str(path), query=query.replace("_", "-")).to_arrow(), hudis)
    return hudis


def _without_files(rows: pa.Table) -> pa.Table:
    return rows.select([name for name in rows.schema.names if name != "_hoodie_file_name"])


def _valid(path: Path) -> None:
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert done.exit_code == 0, f"validate: {done.output}"


def _refused(path: Path, error: UnsupportedError) -> Verdict:
    """Nothing of ours may be in the table after a refusal."""
    left = [name for name in names(path, ".hoodie") if name == ".phantombase"]
    assert not left, f"left in a refused table: {left}"
    return Verdict(outcome=Outcome.REFUSED, why=error.what)


Results = dict[str, dict[str, Verdict]]
"""By `v6`, `v8`, `v9` and case."""


def load_results() -> Results:
    """What was recorded."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {
        version: {name: Verdict(**{**one, "outcome": Outcome(one["outcome"])}) for name, one in cases.items()}
        for version, cases in found.items()
    }


def save_results(results: Mapping[str, Mapping[str, Verdict]]) -> None:
    """Keeps it."""
    data = {
        version: {name: {**asdict(one), "outcome": one.outcome.value} for name, one in sorted(cases.items())}
        for version, cases in sorted(results.items())
    }
    RESULTS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
