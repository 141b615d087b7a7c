"""`compactor-daemon run --serve`: the timeline service inside a daemon."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.golden_tables import unzip_golden

TOKEN = "a token of twenty-seven bytes"


def get(url: str, **headers: str) -> str:
    with urlopen(Request(url, headers=headers), timeout=30) as reply:
        return str(reply.read().decode())


def test_pages_show_the_daemon_and_its_work(tmp_path: Path) -> None:
    """It compacts as ever; the pages know it, and its metrics are there too. It ends by SIGTERM."""
    table = unzip_golden("v9_pending", tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", str(table), "--executor", "local"]
    command += ["--serve", "0", "--serve-token-file", str(tmp_path / "token"), "--poll-interval", "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        read: list[str] = []
        try:
            address = address_in(process.stderr, read)
            bearer = {"authorization": f"Bearer {TOKEN}"}

            def row() -> Any:
                return json.loads(get(f"{address}/api/tables/pending", **bearer))

            deadline = time.monotonic() + 60
            while (found := row())["pending_compactions"] and time.monotonic() < deadline:
                time.sleep(0.2)
            assert (found["health"], found["pending_compactions"]) == ("ok", 0)
            assert [c["balanced"] for c in found["compactions"]] == [True]
            assert found["crew"]["pending"] == []
            assert found["crew"]["last_success"] is not None
            fleet = json.loads(get(f"{address}/api/fleet", **bearer))
            assert (fleet["known"], fleet["zookeeper"], fleet["daemons"][0]["tables"]) == (True, None, 1)
            metrics = get(f"{address}/metrics", **bearer)
            assert f'phantombase_completed_total{{table="{table}"}} 1.0' in metrics
            assert "phantombase_backlog_log_bytes{" in metrics
            assert "</html>" in get(f"{address}/t/pending", **bearer)
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, "".join(read) + errors


def address_in(lines: Iterable[str], read: list[str]) -> str:
    """The address that a daemon logs; what was read before it is kept in `read`."""
    for line in lines:
        read.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError("".join(read))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--serve-host", "0.0.0.0"], "needs a token"), (["--serve-token-file", "none"], "cannot be read")],
)
def test_what_is_not_safe_is_refused(arguments: list[str], reason: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    command = [sys.executable, "-m", "phantombase.compactor_daemon.cli.main", "run", str(table), "--executor", "local"]
    done = subprocess.run([*command, "--serve", "0", *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
