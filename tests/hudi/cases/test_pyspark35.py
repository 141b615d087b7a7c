"""phantombase on PySpark 3.5, which most users of Hudi have: in one session with Hudi's own bundle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantombase.timeline.table.table import Table
from tests.hudi.judge import environment
from tests.support.places import ROOT

pytestmark = [pytest.mark.interop, pytest.mark.spark]


@pytest.fixture
def with_35(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds the judge's PySpark before its own."""
    (packages,) = environment.python().parent.parent.glob("lib/python3*/site-packages")
    for name in ("pyspark", "py4j"):
        (tmp_path / "spark35").mkdir(exist_ok=True)
        (tmp_path / "spark35" / name).symlink_to(packages / name)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}/spark35:{ROOT}"}


def test_hudi_and_phantombase_in_one_session(tmp_path: Path, with_35: dict[str, str]) -> None:
    """Hudi writes, we write and compact, Hudi reads and goes on; then a compaction on a Spark of our own."""
    theirs, ours = str(tmp_path / "t"), str(tmp_path / "u")
    jars = environment.jars("1.2.0")
    job = subprocess.run(
        [sys.executable, "-m", "tests.hudi.cases.spark35_child", theirs, jars, ours],
        cwd=ROOT, env=with_35, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[-3000:]
    found = json.loads(job.stdout.splitlines()[-1])
    assert found.pop("version").startswith("3.5.")
    assert found == {
        "after our write": [30.0, 55.0, 860.0],
        "compacted": True,
        "after our compaction": [30.0, 57.0, 881.0],
        "after Hudi's next write": [30.0, 60.0, 881.0],
        "our reader": 30,
        "our Spark reader": 30,
        "compactions in SQL": 1,
    }
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "compact", ours, "--executor", "spark"]
    compacted = subprocess.run(
        [*command, "--master", "local[2]", "--json"],
        cwd=ROOT, env=with_35, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert compacted.returncode == 0, compacted.stderr[-3000:]
    assert not Table.open(ours).load_timeline().pending_compactions
