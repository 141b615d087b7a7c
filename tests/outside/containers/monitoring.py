"""`python -m tests.outside.containers.monitoring` makes the PrometheusRule of deploy/alerts.yaml."""

from __future__ import annotations

from tests.support.places import ROOT

KUBERNETES = "1.32"
"""The release whose schemas the manifests are checked against."""
RULE = ROOT / "deploy/kubernetes/monitoring/prometheusrule.yaml"

_HEAD = """# Made of deploy/alerts.yaml by `python -m tests.outside.containers.monitoring`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: phantombase
spec:
"""


def rule() -> str:
    """The manifest."""
    lines = (ROOT / "deploy/alerts.yaml").read_text().splitlines()
    groups = lines[lines.index("groups:") :]
    return _HEAD + "".join(f"  {line}\n" if line else "\n" for line in groups)


if __name__ == "__main__":
    RULE.write_text(rule())
