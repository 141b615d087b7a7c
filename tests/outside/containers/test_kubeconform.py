"""What `kubectl apply -k` would send is made by kustomize, and is what the schemas of Kubernetes, KEDA and the
Prometheus operator allow, as kubeconform says.

Kubernetes' schemas are those of `kubernetes-validate`; the other two are made of the models of packages on PyPI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from filelock import FileLock

from tests.outside.containers.monitoring import KUBERNETES
from tests.support.places import ROOT
from tests.support.servers.debian import NotInstalledError, cache
from tests.support.servers.go_programs import built

DEPLOY = ROOT / "deploy"
MODELS = ("cloudcoil-models-keda==2.16.1.0", "cloudcoil-models-prometheus-operator==0.80.1.0")
SCHEMAS = """
import json, pathlib, sys
from cloudcoil.models import keda, prometheus_operator
from cloudcoil.models.keda import v1alpha1
from cloudcoil.models.prometheus_operator import v1
for name, model in {
    "scaledobject-keda-v1alpha1": v1alpha1.ScaledObject,
    "podmonitor-monitoring-v1": v1.PodMonitor,
    "prometheusrule-monitoring-v1": v1.PrometheusRule,
}.items():
    made = model.model_json_schema()
    for one in (made, *made["$defs"].values()):
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    pathlib.Path(sys.argv[1], f"{name}.json").write_text(json.dumps(made))
"""
"""Fields that no model knows are refused."""
FOLDERS = {
    "kubernetes": {
        *("ConfigMap phantombase", "Deployment phantombase", "Deployment timeline-service"),
        *("PersistentVolumeClaim tables", "PodDisruptionBudget phantombase", "Service timeline-service"),
    },
    "kubernetes-object-store": {"ConfigMap phantombase", "Deployment phantombase", "PodDisruptionBudget phantombase"},
    "kubernetes/monitoring": {"PodMonitor phantombase", "PrometheusRule phantombase"},
    "scaled": {
        *("ConfigMap phantombase", "Deployment phantombase", "PodDisruptionBudget phantombase"),
        "ScaledObject phantombase",
    },
}
"""By folder, what is made of it; `scaled` uses the component for KEDA."""


@pytest.fixture(scope="module")
def programs() -> tuple[Path, Path]:
    """kustomize and kubeconform."""
    try:
        return (
            built("sigs.k8s.io/kustomize/kustomize/v5", "v5.7.1"),
            built("github.com/yannh/kubeconform/cmd/kubeconform", "v0.7.0"),
        )
    except NotInstalledError as error:
        pytest.skip(f"NO KUSTOMIZE OR KUBECONFORM HERE: {error}")


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, models = tmp_path_factory.mktemp("schemas"), cache() / "kubernetes-models"
    shipped = Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{KUBERNETES}.0-local-strict"
    for one in shipped.glob("*.json"):
        # Its identity is a place in the net, by which others would be looked for there.
        schema = json.loads(one.read_text().replace('"/api/_definitions.json#', '"_definitions.json#'))
        schema.pop("$id", None)
        (folder / one.name).write_text(json.dumps(schema))
    models.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{models}.lock"):
        if not (models / "cloudcoil").exists():
            install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(models), *MODELS]
            subprocess.run(install, check=True, timeout=600)
    made = [sys.executable, "-c", SCHEMAS, str(folder)]
    subprocess.run(made, check=True, timeout=300, env={"PYTHONPATH": str(models)})
    return folder


def rendered(kustomize: Path, folder: Path) -> str:
    done = subprocess.run([str(kustomize), "build", str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def said(kubeconform: Path, schemas: Path, manifests: str) -> dict[str, Any]:
    """What it says of manifests."""
    location = f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(kubeconform), "-strict", "-verbose", "-output", "json", "-schema-location", location]
    done = subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_applied_is_what_the_schemas_allow(
    name: str, programs: tuple[Path, Path], schemas: Path, tmp_path: Path
) -> None:
    """A fleet over a bucket has no volume for tables, and names its credentials; with KEDA its number is not set."""
    kustomize, kubeconform = programs
    folder = DEPLOY / name
    if name == "scaled":
        (folder := tmp_path / "mine").mkdir()
        (tmp_path / "deploy").symlink_to(DEPLOY)
        text = "resources: [../deploy/kubernetes-object-store]\ncomponents: [../deploy/kubernetes/keda]\n"
        (folder / "kustomization.yaml").write_text(text)
    manifests = rendered(kustomize, folder)
    found = said(kubeconform, schemas, manifests)["resources"]
    assert [one for one in found if one["status"] != "statusValid"] == []
    assert {f"{one['kind']} {one['name']}" for one in found} == FOLDERS[name]
    documents = {f"{one['kind']} {one['metadata']['name']}": one for one in yaml.safe_load_all(manifests)}
    if "ScaledObject phantombase" in documents:
        assert "replicas" not in documents["Deployment phantombase"]["spec"]
    if name == "kubernetes-object-store":
        pod = documents["Deployment phantombase"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert "--root=s3://lake/warehouse" in container["args"]
        assert "tables" not in {v["name"] for v in pod["volumes"]} | {m["name"] for m in container["volumeMounts"]}
        assert container["envFrom"] == [{"secretRef": {"name": "phantombase-object-store", "optional": True}}]


@pytest.mark.parametrize(
    ("file", "field", "wrong"),
    [
        ("kubernetes/daemon.yaml", "replicas:", "replicaz:"),
        ("kubernetes/keda/scaledobject.yaml", "pollingInterval: 30", "pollingInterval: often"),
        ("kubernetes/monitoring/podmonitor.yaml", "podMetricsEndpoints:", "endpoints:"),
        ("kubernetes/monitoring/prometheusrule.yaml", "alert:", "alarm:"),
    ],
)
def test_a_wrong_field_is_refused(
    file: str, field: str, wrong: str, programs: tuple[Path, Path], schemas: Path
) -> None:
    text = (DEPLOY / file).read_text()
    assert field in text
    found = said(programs[1], schemas, text.replace(field, wrong))["resources"]
    assert any(one["status"] == "statusInvalid" for one in found), found
