"""Real processes of the command: killed and stopped at random moments, started at the same time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_or_resume import pending_instants
from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD, attempts
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import check_whole, open_table, visible_files
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT, SEED
from tests.support.selection import deep
from tests.support.servers.zookeeper_server import wait_until

CHAOS = int(os.environ.get("PHANTOMBASE_CHAOS", "6"))
RUN_S = 1.3
"""About what a whole slow run takes from `ready` on; a signal may also come after its end."""


def cases(salt: int) -> list[object]:
    """Seeded random cases, of which a usual run takes one: a table, and moments of a run in seconds."""
    found: list[object] = []
    for number in range(CHAOS):
        pick = random.Random(SEED + salt + number)
        name = ("v6_pending", "v9_pending")[number % 2]
        moments = [round(pick.uniform(0, RUN_S), 3) for _ in range(2)]
        marks = [pytest.mark.deep] if number else []
        found.append(pytest.param(name, moments, id=f"{name}-{SEED + salt + number}", marks=marks))
    return found


@contextmanager
def started(path: Path, *options: str, locks: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A compactor process that is ready to begin; it does not outlive the context."""
    environment = os.environ | {"NO_LOCKS": "0" if locks else "1"}
    command = [
        sys.executable,
        "-m",
        "tests.support.slow_compactor",
        "compact",
        str(path),
        "--executor",
        "local",
        *options,
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(process: subprocess.Popen[str]) -> None:
    """Lets it run."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> list[str]:
    """Waits for its end: the error lines. Whatever happened, there is no traceback."""
    _, said = process.communicate(timeout=300)
    assert "Traceback" not in said
    assert "internal error" not in said
    return [line for line in said.splitlines() if line.startswith("error:")]


def finish(path: Path) -> None:
    """Another process's run, undisturbed and fast: this one's."""
    run_compactions(
        str(path), output=OutputOptions(), execute=ExecuteOptions(executor=Executor.LOCAL), attempt=AttemptOptions()
    )


@pytest.mark.parametrize(("name", "moments"), cases(0))
def test_a_killed_process_is_finished_by_the_next(name: str, moments: list[float], tmp_path: Path) -> None:
    """Killed twice at random moments; readers see the same rows, the next run finishes, nothing is left over."""
    path = unzip_golden(name, tmp_path)
    expected = path.with_name("pending.expected")
    for moment in moments:
        with started(path) as process:
            begin(process)
            time.sleep(moment)
            process.kill()
        assert_same_rows(
            read_table(open_table(path)).drop_columns(["_hoodie_file_name"]),
            pq.read_table(expected / "snapshot.parquet").drop_columns(["_hoodie_file_name"]),
        )
    finish(path)
    check_whole(path, expected)


@pytest.mark.parametrize(("name", "moments"), cases(1000))
def test_a_stopped_process_can_publish_nothing_once_it_is_taken_over(
    name: str, moments: list[float], tmp_path: Path
) -> None:
    """A stopped process keeps its file locks: they are put aside, as on storage where they mean nothing."""
    path = unzip_golden(name, tmp_path)
    with started(path) as process:
        begin(process)
        time.sleep(moments[0])
        process.send_signal(signal.SIGSTOP)
        (path / RECORDS / "claim.lock").unlink(missing_ok=True)
        (path / RECORDS / "table.lock").unlink(missing_ok=True)
        finish(path)
        after = visible_files(path)
        process.send_signal(signal.SIGCONT)
        errors = ended(process)
        code = process.returncode
    assert visible_files(path) == after
    storage = LocalStorage(str(path))
    (instant,) = [e.name for e in storage.list(RECORDS) if e.name.isdigit()]
    outcomes = [read_outcome(storage, instant, number) for number in attempts(storage, instant)]
    assert len(outcomes) in (1, 2)
    assert outcomes[-1] is not None
    assert outcomes[-1].decision is not None
    if len(outcomes) == 2:
        assert outcomes[0] is not None
        assert outcomes[0].kind == DEAD
        assert code == 1
    assert len(errors) == (code == 1)
    finish(path)
    check_whole(path, path.with_name("pending.expected"))


@pytest.mark.parametrize("wait", [True, deep(False)], ids=["waits", "leaves"])
def test_a_second_process_waits_or_leaves(wait: bool, tmp_path: Path) -> None:
    """The claim saves work: with `--wait` both end well, without it the second says who is there."""
    path = unzip_golden("v9_pending", tmp_path)
    options = ["--wait", "300"] if wait else []
    with started(path, *options) as first, started(path, *options) as second:
        begin(first)
        if not wait:  # it stands still in the middle: the second finds it there, however slow it is
            wait_until(lambda: bool(list((path / RECORDS).glob("*/1/open"))))
            first.send_signal(signal.SIGSTOP)
        begin(second)
        errors = ended(second)
        first.send_signal(signal.SIGCONT)
        errors += ended(first)
    assert (first.returncode, second.returncode) == (0, 0 if wait else 1)
    assert [e.startswith("error: another compactor is at work on this table") for e in errors] == [True] * (not wait)
    check_whole(path, path.with_name("pending.expected"))


@pytest.mark.parametrize(("name", "moments"), cases(2000)[: CHAOS // 2])
def test_processes_race_without_any_lock(name: str, moments: list[float], tmp_path: Path) -> None:
    """One decision at most; who loses says so in one line; the next run finds a whole table or makes it whole."""
    path = unzip_golden(name, tmp_path)
    (instant,) = pending_instants(open_table(path))
    with started(path, locks=False) as first, started(path, locks=False) as second:
        begin(first)
        time.sleep(moments[0] / 2)
        begin(second)
        for process in (first, second):
            assert len(ended(process)) == process.returncode
            assert process.returncode in (0, 1)
    storage = LocalStorage(str(path))
    outcomes = [read_outcome(storage, instant, number) for number in attempts(storage, instant)]
    assert [outcome.kind for outcome in outcomes if outcome is not None].count(COMMITTED) <= 1
    finish(path)
    check_whole(path, path.with_name("pending.expected"))
