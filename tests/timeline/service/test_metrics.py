"""The service's metrics: names of the daemon, and what only the service knows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from phantombase.compactor_daemon.daemon.metrics import Metrics
from phantombase.timeline.dashboard.metrics import exposition
from phantombase.timeline.dashboard.people_app import PeopleApp
from phantombase.timeline.format.instant import parse_time
from phantombase.timeline.service.app import ServiceApp
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import run_all
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import ServiceClient


def samples(client: ServiceClient, table: Path) -> dict[str, float]:
    """Those of a table, by name."""
    reply = client.ask("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain")
    found = [s for f in text_string_to_metric_families(reply.text) for s in f.samples]
    assert len({(s.name, tuple(sorted(s.labels.items()))) for s in found}) == len(found)
    return {s.name: s.value for s in found if s.labels.get("table") == str(table)}


def test_a_table_and_what_waits_in_it(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    client = ServiceClient.of(path, slo_s=60)
    before = samples(client, path)
    assert before["phantombase_pending"] == 1
    assert before["phantombase_oldest_pending_seconds"] > 1000
    assert (before["phantombase_table_up"], before["phantombase_health"]) == (1, 1)
    assert before["phantombase_backlog_file_groups"] == 0  # all are in the plan
    assert before["phantombase_log_bytes"] > 0
    assert before["phantombase_service_loads_total"] == 1
    assert before["phantombase_service_state_bytes"] > 1000
    assert len(before) <= 16
    run_all(Table.open(str(path)))
    after = samples(ServiceClient.of(path, slo_s=60), path)
    assert (after["phantombase_pending"], after["phantombase_health"]) == (0, 0)
    assert after["phantombase_oldest_pending_seconds"] == 0
    assert after["phantombase_backlog_file_groups"] == 2
    assert 0 < after["phantombase_backlog_log_bytes"] <= before["phantombase_log_bytes"]
    done = max(i.requested_time for i in Table.open(str(path)).load_timeline().completed if i.action == "commit")
    shown = after["phantombase_last_compaction_timestamp_seconds"]
    assert shown == pytest.approx(parse_time(done).astimezone().timestamp(), abs=2)


def test_times_are_since_the_epoch_whatever_the_zone_of_the_table() -> None:
    row = {"path": "t", "health": "ok", "last_write": "20260102030405678", "utc_offset_s": 3600}
    text = exposition([], [row]).decode()
    (found,) = [f for f in text_string_to_metric_families(text) if f.name == "phantombase_last_write_timestamp_seconds"]
    assert found.samples[0].value == datetime(2026, 1, 2, 2, 4, 5, 678_000, tzinfo=UTC).timestamp()


def test_a_table_that_cannot_be_read_is_down(tmp_path: Path) -> None:
    fine, none = unzip_golden("v9_plain", tmp_path), tmp_path / "none"
    client = ServiceClient.of(fine, none)
    assert samples(client, none)["phantombase_table_up"] == 0
    assert samples(client, none)["phantombase_health"] == 3
    assert samples(client, fine)["phantombase_table_up"] == 1


def test_inside_a_daemon_nothing_is_said_twice(tmp_path: Path) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    daemon = Metrics()
    daemon.looked(str(path), pending=7, parked=0, oldest_s=1.0)
    tables = ServedTables([str(path)])
    pages = PeopleApp(tables, registry=daemon.registry)
    client = ServiceClient(ServiceApp(tables, 1 << 20, pages=pages), ServiceClient.of().loop)
    found = samples(client, path)
    assert found["phantombase_pending"] == 7  # the daemon's
    assert found["phantombase_backlog_file_groups"] == 0
    assert client.ask("/metrics").text.count("# TYPE phantombase_build_info ") == 1
