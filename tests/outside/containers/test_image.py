"""The daemons' image: who runs in it, what its health check sees, how it stops."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from testcontainers.core.container import DockerContainer

from tests.outside.containers.compose import METRICS_PORT, ask, is_healthy, wait_until
from tests.outside.containers.images import IMAGE_USER, LABEL, Images
from tests.support.compaction_steps import check_whole
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT

_SOON_MAX_S = 180.0
_STOP_MAX_S = 90
_SIZE_MAX_BYTES = 1_700_000_000
_OFTEN = {"interval": 10**9, "timeout": 5 * 10**9, "retries": 2, "start_period": 10**6}
"""The image's health check every second instead of every 15; Docker's unit is nanoseconds."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a pending plan that the image's user may write to."""
    path = unzip_golden("v9_pending", tmp_path / "tables")
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", f"{IMAGE_USER}:{IMAGE_USER}", str(tmp_path / "tables")], check=True, timeout=60)
    return path


def daemon(images: Images, table: Path, *options: str) -> DockerContainer:
    """One daemon without ZooKeeper, not started yet."""
    container = DockerContainer(images.daemon).with_volume_mapping(table.parent, "/tables", "rw")
    command = ["run", f"/tables/{table.name}", "--executor", "local", *options]
    user = str(os.getuid() or IMAGE_USER)
    more = {"healthcheck": _OFTEN, "labels": {LABEL: "1"}, "user": user, "network_mode": "none"}
    return container.with_command(command).with_kwargs(**more)


@pytest.fixture
def shell(images: Images) -> Iterator[DockerContainer]:
    """A container of the image that only waits."""
    waiting = DockerContainer(images.daemon).with_command(["900"])
    with waiting.with_kwargs(entrypoint=["sleep"], labels={LABEL: "1"}, network_mode="none") as container:
        yield container


def test_it_runs_as_a_user_without_rights(shell: DockerContainer) -> None:
    """Not root, and nothing of the program can be changed from inside."""
    assert shell.exec(["id", "-u"]).output == b"10001\n"
    assert shell.exec(["touch", "/opt/phantombase/changed"]).exit_code != 0
    assert shell.exec(["touch", "/tables/mine"]).exit_code == 0


def test_it_carries_what_spark_needs(shell: DockerContainer) -> None:
    """Java 17, and all commands; a compaction on Spark gives the rows it should."""
    assert b'"17.' in shell.exec(["java", "-version"]).output
    assert shell.exec(["timeline", "--help"]).exit_code == 0
    done = shell.exec(["compactor-daemon", "demo", "--json"])
    assert done.exit_code == 0, done.output
    assert b'"snapshot_unchanged": true' in done.output


def test_it_is_not_larger_than_said(engine: str, images: Images) -> None:
    """docs/guides/operations.md says 1.5 GB."""
    size = docker.DockerClient(base_url=engine).images.get(images.daemon).attrs["Size"]
    print(f"image: {size / 1e9:.2f} GB")
    assert size < _SIZE_MAX_BYTES


def test_a_daemon_at_work_is_healthy_and_stops_on_request(images: Images, table: Path) -> None:
    """Docker's health check and /readyz say yes, /metrics has what alerts ask for, `docker stop` ends it well."""
    with daemon(images, table, "--metrics-port", str(METRICS_PORT)) as container:
        running = container.get_wrapped_container()
        wait_until("it is healthy", lambda: is_healthy(running), _SOON_MAX_S)
        wait_until("it is ready", lambda: ask(running, "readyz") == "ok\n", _SOON_MAX_S)
        completed = f'phantombase_completed_total{{table="/tables/{table.name}"}} 1.0\n'
        wait_until("it has compacted", lambda: completed in ask(running, "metrics"), _SOON_MAX_S)
        shown = ask(running, "metrics")
        running.stop(timeout=_STOP_MAX_S)
        assert running.wait(timeout=_STOP_MAX_S)["StatusCode"] == 0
    check_whole(table, table.with_name("pending.expected"))
    alerts = (ROOT / "deploy/alerts.yaml").read_text()
    elsewhere = {"phantombase_zookeeper_connected", "phantombase_health"}  # with ZooKeeper; of `timeline serve`
    wanted = set(re.findall(r"phantombase_\w+", alerts)) - elsewhere
    assert [name for name in wanted if name not in shown] == []


def test_a_daemon_that_does_not_answer_is_unhealthy(images: Images, table: Path) -> None:
    """Without --metrics-port nobody answers: the health check can say no."""
    with daemon(images, table) as container:
        running = container.get_wrapped_container()
        wait_until("it is unhealthy", lambda: health(running) == "unhealthy", _SOON_MAX_S)


def health(container: Any) -> str:
    """What the engine's health check says now."""
    container.reload()
    return str(container.attrs["State"]["Health"]["Status"])
