"""What stands in `deploy/` is what Compose, Kubernetes, Prometheus and systemd understand; no engine needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.metrics import Metrics
from phantombase.compactor_daemon.services.options import Service
from phantombase.compactor_daemon.services.serve import ServiceDone
from phantombase.compactor_daemon.unit_of_work import add_spent
from phantombase.timeline.cli.main import app as timeline_app
from phantombase.timeline.dashboard.people_app import exposition
from phantombase.timeline.service.served_tables import ServedTable
from phantombase.timeline.table.history import PriceOptions, WorkDone
from tests.outside.containers.compose import compose_command
from tests.outside.containers.engine import NoContainersError
from tests.outside.containers.monitoring import KUBERNETES, RULE
from tests.outside.containers.monitoring import rule as prometheus_rule
from tests.support.places import ROOT

DEPLOY = ROOT / "deploy"
OBJECT_STORE = DEPLOY / "kubernetes-object-store"
TABLE = "/data/orders"
WIDE = {"COLUMNS": "250"}


def metrics() -> set[str]:
    """The names that a daemon and a timeline service give, and `up`, which is Prometheus' own."""
    daemon = Metrics(prices=PriceOptions(price_gb=1.0))
    add_spent(TABLE, WorkDone(id="1", kind="clean", outcome="done", who="a:1", started_ms=0, ended_ms=1))
    daemon.snapshot_taken(TABLE, pending=0, parked=0, oldest_s=None)
    daemon.finished(TABLE, None)
    daemon.trouble(TABLE, None)
    daemon.served(TABLE, ServiceDone(service=Service.CLEAN, what=""))
    daemon.zookeeper(True)
    daemon.listed(None)
    table = ServedTable(TABLE)
    row = {"path": TABLE, "health": "well", "slo_s": 60.0}
    texts = [generate_latest(daemon.registry), exposition([table], [row])]
    families = [f for text in texts for f in text_string_to_metric_families(text.decode())]
    named = {s.name for f in families for s in f.samples} | {f.name for f in families}
    return named | {"up"}


MANIFESTS = sorted(p for p in (DEPLOY / "kubernetes").glob("*.yaml") if p.name != "kustomization.yaml")


def load(path: Path) -> Any:
    """A YAML document."""
    return yaml.safe_load(path.read_text())


def manifest(name: str) -> Any:
    """One of the Kubernetes manifests."""
    return load(DEPLOY / f"kubernetes/{name}.yaml")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_knows_every_field(path: Path) -> None:
    """Strictly against Kubernetes' own schema."""
    kubernetes_validate.validate(load(path), KUBERNETES, strict=True)


def test_the_kustomization_names_every_manifest() -> None:
    """Nothing is left behind by `kubectl apply -k`."""
    assert sorted(manifest("kustomization")["resources"]) == [p.name for p in MANIFESTS]


def test_what_the_pods_refer_to_is_there() -> None:
    """Volumes, config map, claim, ports of the probes, and the labels by which pods are found."""
    spec = manifest("daemon")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    claim = next(v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v)
    assert claim == manifest("tables")["metadata"]["name"]
    assert manifest("tables")["spec"]["accessModes"] == ["ReadWriteMany"]
    for reference in (variable["valueFrom"]["configMapKeyRef"] for variable in container["env"]):
        assert reference["name"] == manifest("configmap")["metadata"]["name"]
        assert reference["key"] in manifest("configmap")["data"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == manifest("disruption")["spec"]["selector"]["matchLabels"] == labels
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in paths.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {probe["port"] for probe in paths.values()} == {port["name"] for port in container["ports"]}


def commands() -> list[object]:
    """The command lines of daemons in compose.yaml, the unit and the manifest, defaults filled in."""
    compose = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", load(DEPLOY / "compose.yaml")["services"]["daemon"]["command"])
    unit = next(x for x in (DEPLOY / "phantombase.service").read_text().splitlines() if x.startswith("ExecStart="))
    (container,) = manifest("daemon")["spec"]["template"]["spec"]["containers"]
    return [
        pytest.param(compose.split(), id="compose"),
        pytest.param(unit.split()[1:], id="systemd"),
        pytest.param(container["args"], id="kubernetes"),
        pytest.param(
            load(OBJECT_STORE / "daemon.yaml")["spec"]["template"]["spec"]["containers"][0]["args"], id="object-store"
        ),
    ]


def test_the_manifests_for_the_prometheus_operator_are_those_of_the_pods_and_alerts() -> None:
    assert RULE.read_text() == prometheus_rule(), "python -m tests.outside.containers.monitoring"
    assert load(RULE)["spec"]["groups"] == load(DEPLOY / "alerts.yaml")["groups"]
    monitor = load(DEPLOY / "kubernetes/monitoring/podmonitor.yaml")["spec"]
    pod = manifest("daemon")["spec"]["template"]
    assert monitor["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "phantombase"}]
    assert sorted(load(DEPLOY / "kubernetes/monitoring/kustomization.yaml")["resources"]) == [
        "podmonitor.yaml",
        "prometheusrule.yaml",
    ]


SCALED = {
    *("scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"),
    *("fallback", "advanced", "triggers"),
}
"""Fields of KEDA's ScaledObject (keda.sh/v1alpha1)."""


def test_keda_scales_the_daemons_by_metrics_that_they_have() -> None:
    """Its behavior is that of Kubernetes' autoscaler, whose schema is asked. Pods end one by one, in the time that
    their work needs, and hand it over."""
    one = load(DEPLOY / "kubernetes/keda/scaledobject.yaml")
    daemon, spec = manifest("daemon"), one["spec"]
    assert (one["apiVersion"], one["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert spec.keys() <= SCALED
    assert spec["scaleTargetRef"] == {"name": daemon["metadata"]["name"]}
    assert 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold"}
    promql_parser.parse(trigger["metadata"]["query"])
    assert set(re.findall(r"phantombase_\w+", trigger["metadata"]["query"])) <= metrics()
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    target = {"apiVersion": daemon["apiVersion"], "kind": daemon["kind"], **spec["scaleTargetRef"]}
    scaler = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 10, "behavior": behavior}
    made = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"}}
    kubernetes_validate.validate({**made, "spec": scaler}, KUBERNETES, strict=True)
    (down,) = behavior["scaleDown"]["policies"]
    pod = daemon["spec"]["template"]["spec"]
    assert down["value"] == 1
    assert down["periodSeconds"] >= pod["terminationGracePeriodSeconds"]
    assert "--on-term=hand-over" in pod["containers"][0]["args"]
    component = load(DEPLOY / "kubernetes/keda/kustomization.yaml")
    assert (component["kind"], component["resources"]) == ("Component", ["scaledobject.yaml"])
    (patch,) = component["patches"]
    assert patch["target"] == {"kind": daemon["kind"], "name": daemon["metadata"]["name"]}
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    assert "replicas" in daemon["spec"]


def test_what_an_object_store_changes_has_its_counterpart() -> None:
    """What is taken away or replaced is there, by the names that a merge goes by."""
    (changed,) = load(OBJECT_STORE / "daemon.yaml")["spec"]["template"]["spec"]["containers"]
    pod = manifest("daemon")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert changed["name"] == container["name"]
    for gone in load(OBJECT_STORE / "daemon.yaml")["spec"]["template"]["spec"]["volumes"]:
        assert gone["name"] in {v["name"] for v in pod["volumes"]}
    for gone in changed["volumeMounts"]:
        assert gone["mountPath"] in {m["mountPath"] for m in container["volumeMounts"]}
    kept = {a for a in changed["args"] if a in container["args"]}
    assert {"--zookeeper=$(ZOOKEEPER)", "--metrics-port=9464"} <= kept
    target = load(OBJECT_STORE / "kustomization.yaml")["patches"][0]["target"]
    assert target == {"kind": manifest("tables")["kind"], "name": manifest("tables")["metadata"]["name"]}


@pytest.mark.parametrize("command", commands())
def test_daemons_are_started_with_options_that_exist(command: list[str]) -> None:
    """And with the port that the image's health check and the probes ask."""
    known = set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "250"}).output))
    given = {argument.partition("=")[0] for argument in command if argument.startswith("--")}
    assert command[0] == "run"
    assert given <= known
    assert "--metrics-port 9464" in " ".join(command).replace("--metrics-port=", "--metrics-port ")


def test_the_timeline_service_is_started_with_options_that_exist() -> None:
    """In Kubernetes: with a token, the port of its address and probes, and a volume that it cannot write to."""
    known = set(re.findall(r"--[a-z-]+", CliRunner().invoke(timeline_app, ["serve", "--help"], env=WIDE).output))
    pod = manifest("timeline-service")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = {argument.partition("=")[0] for argument in container["args"] if argument.startswith("--")}
    assert container["args"][0] == "serve"
    assert {"--token-file", "--hudi-clients", "--host"} <= given <= known
    address = manifest("timeline-service-address")["spec"]
    assert address["selector"] == pod["metadata"]["labels"]
    port = container["ports"][0]
    assert (address["ports"][0]["targetPort"], f"--port={port['containerPort']}") == (
        port["name"],
        container["args"][3],
    )
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    assert all(m["readOnly"] for m in container["volumeMounts"])


def test_alerts_ask_for_metrics_that_exist_and_have_their_section() -> None:
    """Every expression parses, names known metrics only, and its runbook is a heading of docs/guides/operations.md."""
    headings = {
        h.lower() for h in re.findall(r"^### (\w+)$", (ROOT / "docs/guides/operations.md").read_text(), re.MULTILINE)
    }
    rules = [rule for group in load(DEPLOY / "alerts.yaml")["groups"] for rule in group["rules"]]
    for rule in rules:
        promql_parser.parse(rule["expr"])
        names = set(re.findall(r"phantombase_\w+|\bup\b", rule["expr"].replace('job="phantombase"', "")))
        assert names, rule["alert"]
        assert names <= metrics(), rule["alert"]
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (page, anchor) == ("{{ $externalLabels.docs }}/guides/operations.md", rule["alert"].lower())
        assert anchor in headings
    assert len(rules) == len(headings)


def test_the_grafana_dashboard_asks_for_metrics_that_exist() -> None:
    """Every expression parses, with its variables filled in; panels do not overlap."""
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    known, places = metrics(), set[tuple[int, int]]()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$table", ".*")
            promql_parser.parse(expression)
            names = set(re.findall(r"phantombase_\w+|process_\w+", expression.replace('job="phantombase"', "")))
            assert names, panel["title"]
            assert names <= known, panel["title"]
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & places, panel["title"]
        assert at["x"] + at["w"] <= 24
        places |= cells


SERVICES = {"zoo1", "zoo2", "zoo3", "spark-master", "spark-worker", "writer", "daemon"}


def test_the_services_of_the_fleet() -> None:
    assert yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].keys() >= SERVICES


@pytest.mark.deep
def test_compose_reads_its_file() -> None:
    """`docker compose config`, or that of the older command, with its defaults."""
    try:
        command = compose_command()
    except NoContainersError as error:
        pytest.skip(f"no Compose here: {error}")
    done = run([*command, "-f", str(DEPLOY / "compose.yaml"), "config"])
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["services"].keys() >= SERVICES


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("name", ["phantombase.service", "timeline-service.service"])
def test_systemd_understands_the_unit(name: str, tmp_path: Path) -> None:
    """No unknown setting; the program it starts need not be installed for that."""
    unit = tmp_path / name
    unit.write_text(re.sub(r"/opt/phantombase/bin/[a-z-]+", "/bin/true", (DEPLOY / name).read_text()))
    done = run(["systemd-analyze", "verify", "--man=no", str(unit)])
    assert (done.returncode, done.stderr) == (0, "")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command and what it says."""
    return subprocess.run(command, capture_output=True, text=True, timeout=300)
