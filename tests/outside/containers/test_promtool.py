"""What Prometheus' own tool says of alerts, of the dashboard's queries and of the metrics, and when alerts fire."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from phantombase.compactor_daemon.daemon.metrics import DaemonHealth, Metrics, serve
from phantombase.timeline.dashboard.people_app import exposition
from phantombase.timeline.service.served_tables import ServedTables
from tests.support.daemons import metrics_of_a_lake
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT
from tests.support.servers.debian import NotInstalledError, unpacked
from tests.support.servers.zookeeper_server import free_ports
from tests.support.service_client import ServiceClient

ALERTS = ROOT / "deploy/alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]

DOCS = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())["global"]["external_labels"]["docs"]
T = 'table="/t"'
UP = 'up{job="phantombase",instance="a"}'
FIRING: dict[str, tuple[dict[str, str], str, dict[str, str], str]] = {
    "PhantombaseNoDaemon": ({}, "3m", {}, "no compactor daemon answers"),
    "PhantombaseDaemonDown": (
        {UP: "0x60", 'up{job="phantombase",instance="b"}': "1x60"}, "6m", {"job": "phantombase", "instance": "a"},
        "the daemon at a does not answer"),
    "PhantombaseZooKeeperLost": (
        {'phantombase_zookeeper_connected{instance="a"}': "0x60"}, "3m", {"instance": "a"},
        "the daemon at a has no ZooKeeper and claims nothing"),
    "PhantombaseParked": (
        {f"phantombase_parked{{{T}}}": "2x60"}, "2m", {"table": "/t"},
        "/t: 2 compactions are parked and wait for an operator"),
    "PhantombaseTableInTrouble": (
        {f"phantombase_table_up{{{T}}}": "0x60"}, "16m", {"table": "/t"}, "/t: no daemon can serve the table"),
    "PhantombaseFailing": (
        {f"phantombase_failed_total{{{T}}}": "0+1x60"}, "31m", {"table": "/t"}, "/t: compactions fail repeatedly"),
    "PhantombaseServiceFails": (
        {f'phantombase_service_failed_total{{{T},service="clean"}}': "0+1x60"}, "31m",
        {"table": "/t", "service": "clean"}, "/t: the service clean fails repeatedly"),
    "PhantombaseNobodyWorks": (
        {f"phantombase_pending{{{T}}}": "1x60", f"phantombase_parked{{{T}}}": "0x60",
         f"phantombase_running{{{T}}}": "0x60", f"phantombase_completed_total{{{T}}}": "5x60"},
        "31m", {"table": "/t"}, "/t: compactions are pending and no daemon works on them"),
    "PhantombaseOverdue": (
        {f"phantombase_oldest_pending_seconds{{{T}}}": "1800x60", f"phantombase_slo_seconds{{{T}}}": "1200x60",
         'phantombase_oldest_pending_seconds{table="/u"}': "1800x60"}, "6m", {"table": "/t"},
        "/t: the oldest compaction has been pending for 30m 0s"),
    "PhantombaseStale": (
        {f"phantombase_read_optimized_lag_seconds{{{T}}}": "720x60",
         f"phantombase_freshness_goal_seconds{{{T}}}": "600x60"}, "6m", {"table": "/t"},
        "/t: a row has been in no base file for 12m 0s, over the goal"),
    "PhantombaseFallsBehind": (
        {f"phantombase_pending{{{T}}}": "12x60"}, "31m", {"table": "/t"},
        "/t: never less than 12 compactions pending in half an hour"),
    "PhantombaseSlowClaims": (
        {'phantombase_claim_latency_seconds_bucket{le="300"}': "0x90",
         'phantombase_claim_latency_seconds_bucket{le="900"}': "0+2x90",
         'phantombase_claim_latency_seconds_bucket{le="+Inf"}': "0+2x90"},
        "62m", {}, "requested compactions wait for 14m 29s until a daemon takes them"),
    "PhantombaseTableBroken": (
        {f"phantombase_health{{{T}}}": "2x60"}, "11m", {"table": "/t"},
        "/t: the table, a file or a plan cannot be read"),
    "PhantombaseTableNeedsCare": (
        {f"phantombase_health{{{T}}}": "1x90"}, "62m", {"table": "/t"}, "/t: the table needs care"),
    "PhantombaseTablesNotListed": (
        {'phantombase_tables_listed{instance="a"}': "0x60"}, "16m", {"instance": "a"},
        "the daemon at a cannot list its tables, and finds no new ones"),
    "PhantombaseNoSuccess": (
        {f"phantombase_last_success_timestamp_seconds{{{T}}}": "1x500",
         f"phantombase_oldest_pending_seconds{{{T}}}": "25200x500"},
        "400m", {"table": "/t"},
        "/t: compactions are pending for 7h 0m 0s, and none has completed in six hours"),
}  # fmt: skip
"""By alert: series with a value a minute, when they are looked at, the labels, and the summary."""

QUIET = {
    UP: "1x60",
    'phantombase_zookeeper_connected{instance="a"}': "1x60",
    f"phantombase_pending{{{T}}}": "1x60",
    f"phantombase_parked{{{T}}}": "0x60",
    f"phantombase_running{{{T}}}": "1x60",
    f"phantombase_table_up{{{T}}}": "1x60",
    f"phantombase_failed_total{{{T}}}": "0x29 1x30",
    f'phantombase_service_failed_total{{{T},service="clean"}}': "0x29 1x30",
    f"phantombase_completed_total{{{T}}}": "0+1x60",
    f"phantombase_oldest_pending_seconds{{{T}}}": "100x60",
    f"phantombase_slo_seconds{{{T}}}": "200x60",
    f"phantombase_health{{{T}}}": "0x29 1x30",
    'phantombase_health{table="/cow"}': "0x60",
    'phantombase_health{table="/paused"}': "2x60",
    'phantombase_paused{table="/paused"}': "1x60",
    'phantombase_oldest_pending_seconds{table="/paused"}': "90000x60",
    'phantombase_tables_listed{instance="a"}': "1x60",
    f"phantombase_last_success_timestamp_seconds{{{T}}}": "0+60x60",
}
"""A fleet at work: one try has failed, one table is late."""


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return unpacked("prometheus", "usr/bin/promtool")
    except NotInstalledError as error:
        pytest.skip(f"NO PROMTOOL HERE: {error}")


def said(*command: object, given: bytes | None = None) -> tuple[int, str]:
    done = subprocess.run([str(c) for c in command], input=given, capture_output=True, timeout=120)
    return done.returncode, (done.stdout + done.stderr).decode()


def test_it_takes_the_alerts_and_the_configuration(promtool: Path) -> None:
    for command in (("check", "rules", ALERTS), ("check", "config", ROOT / "deploy/prometheus.yaml")):
        code, text = said(promtool, *command)
        assert (code, f"SUCCESS: {len(RULES)} rules found" in text) == (0, True), text


def test_it_takes_the_queries_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    panels = json.loads((ROOT / "deploy/grafana.json").read_text())["panels"]
    queries = [target["expr"].replace("$table", ".*") for panel in panels for target in panel["targets"]]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(queries)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    code, text = said(promtool, "check", "rules", file)
    assert (code, f"{len(queries)} rules found" in text) == (0, True), text


def test_it_takes_the_metrics(promtool: Path, tmp_path: Path) -> None:
    """Those of a service, and of a daemon with one inside; names are as Prometheus wants them."""
    path = unzip_golden("v9_pending", tmp_path)
    tables = ServedTables([str(path)])
    rows = ServiceClient.of_tables(tables).ask("/api/tables").json()["tables"]
    daemon = Metrics()
    daemon.serves(str(path))
    for registry in (None, daemon.registry):
        code, text = said(promtool, "check", "metrics", given=exposition(list(tables.by_name.values()), rows, registry))
        assert (code, text) == (0, ""), text


def runbook(rule: Any) -> str:
    return str(rule["annotations"]["runbook_url"].replace("{{ $externalLabels.docs }}", DOCS))


def case(series: dict[str, str], at: str, expected: dict[str, Any]) -> dict[str, Any]:
    """One test of promtool. `expected`: by alert, its labels and annotations."""
    asked = [{"eval_time": at, "alertname": name, "exp_alerts": alerts} for name, alerts in expected.items()]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "external_labels": {"docs": DOCS}, "input_series": inputs, "alert_rule_test": asked}


def test_alerts_fire_when_they_should_and_not_before(promtool: Path, tmp_path: Path) -> None:
    assert FIRING.keys() == {rule["alert"] for rule in RULES}
    cases = [case(QUIET, "60m", {rule["alert"]: [] for rule in RULES})]
    for rule in RULES:
        series, at, labels, summary = FIRING[rule["alert"]]
        annotations = {"summary": summary, "runbook_url": runbook(rule)}
        alert = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": annotations}
        cases.append(case(series, at, {rule["alert"]: [alert]}))
        if "table" in labels and "health" not in rule["expr"]:  # which is that of a well one then
            known = {**series, f"phantombase_silenced{{{T}}}": "1x500"}
            cases.append(case(known, at, {rule["alert"]: []}))
        cases.append(case(series, "0m", {rule["alert"]: []}) if "for" in rule else case({}, at, {}))
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases}))
    code, text = said(promtool, "test", "rules", file)
    assert code == 0, text


@contextmanager
def prometheus(folder: Path, daemon: int) -> Iterator[str]:
    """Prometheus with the shipped alerts, which asks a daemon on this machine; its address."""
    binary, (port,) = unpacked("prometheus", "usr/bin/prometheus"), free_ports(1)
    config = yaml.safe_load((ROOT / "deploy/prometheus.yaml").read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    (job,) = config["scrape_configs"]
    del job["dns_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{daemon}"]}]
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [str(binary), f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.deep
@pytest.mark.usefixtures("promtool")
def test_prometheus_has_data_for_each_panel_and_evaluates_each_alert(tmp_path: Path) -> None:
    """A daemon that has served a small lake is all that it asks."""
    panels = json.loads((ROOT / "deploy/grafana.json").read_text())["panels"]
    queries = [target["expr"].replace("$table", ".*") for panel in panels for target in panel["targets"]]
    metrics, well = metrics_of_a_lake(tmp_path / "lake"), DaemonHealth(silent_s=0.0, trouble=None)
    with serve(0, metrics, lambda: well, host="127.0.0.1") as port, prometheus(tmp_path, port) as address:

        def asked(path: str, **query: str) -> Any:
            with urlopen(f"{address}/api/v1/{path}?{urlencode(query)}", timeout=60) as reply:
                return json.load(reply)["data"]

        def without_data() -> list[str]:
            try:
                return [query for query in queries if not asked("query", query=query)["result"]]
            except OSError:  # it does not listen yet
                return queries

        deadline = time.monotonic() + 120
        while left := without_data():
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
        rules = [rule for group in asked("rules")["groups"] for rule in group["rules"]]
        while any(rule["health"] == "unknown" for rule in rules):
            assert time.monotonic() < deadline, rules
            rules = [rule for group in asked("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["alert"]: "ok" for rule in RULES}
