"""Metrics of the processes of the service and the daemons: version, memory, processor time, open files."""

from __future__ import annotations

import platform
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector


def add_process(registry: CollectorRegistry) -> None:
    """Adds `phantombase_build_info` and `process_...`."""
    info = Gauge("phantombase_build_info", "1; the labels say which build", ["version", "python"], registry=registry)
    info.labels(version("phantombase"), platform.python_version()).set(1)
    ProcessCollector(registry=registry)
