"""`timeline serve` as a process."""

from __future__ import annotations

import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from phantombase.timeline.errors import UsageError
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.service.run import listening
from tests.support.golden_tables import unzip_golden
from tests.support.service_process import serving


def get(url: str) -> tuple[int, bytes]:
    try:
        with urlopen(url, timeout=20) as reply:
            return reply.status, reply.read()
    except HTTPError as error:
        return error.code, error.read()


def test_the_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    table = unzip_golden("v9_pending", tmp_path)
    with serving(table, tmp_path / "none") as address:
        assert get(f"{address}/healthz") == (200, b"ok")
        query = urlencode({"basepath": table, "partition": "north", "refreshoff": "true"})
        status, body = get(f"{address}{PREFIX}slices/partition/latest/?{query}")
        assert (status, b"logFiles" in body) == (200, True)
        assert get(f"{address}{PREFIX}slices/all?{query}&x={'y' * (60 << 10)}")[0] == 200
        assert get(f"{address}{PREFIX}slices/all?{query}&x={'y' * (70 << 10)}")[0] == 414


@pytest.mark.parametrize(("arguments", "reason"), [(["t", "t/"], "given twice"), (["t", "--max-memory", "x"], "size")])
def test_wrong_arguments(arguments: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "phantombase.timeline.cli.main", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr


def test_a_port_that_is_taken_is_refused() -> None:
    with listening(0) as other, pytest.raises(UsageError, match="the port cannot be used"):
        listening(other.getsockname()[1])


def test_answers_on_one_connection_do_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    """With Nagle's algorithm each would take 40 ms."""
    with serving(tmp_path / "none") as address:
        connection = HTTPConnection(address.removeprefix("http://"))
        took = []
        for _ in range(10):
            began = time.perf_counter()
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok"
            took.append(time.perf_counter() - began)
        assert sorted(took)[5] < 0.03, took
