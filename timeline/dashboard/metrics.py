"""Metrics for Prometheus: what the reports of tables say; version, memory and processor time of the process."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..service.served_tables import ServedTable
from ..terminal.text_table import Row, moment
from .verdict import Health, is_silenced


def add_process(registry: CollectorRegistry) -> None:
    """Adds `phantombase_build_info` and `process_...`."""
    info = Gauge("phantombase_build_info", "1; the labels say which build", ["version", "python"], registry=registry)
    info.labels(version("phantombase"), platform.python_version()).set(1)
    ProcessCollector(registry=registry)


_GAUGES = {
    "pending": ("pending_compactions", "compactions that are requested and not completed yet"),
    "oldest_pending_seconds": ("oldest_pending_s", "age of the oldest pending compaction, 0 without one"),
    "backlog_log_bytes": ("log_bytes_waiting", "bytes of log files that no plan holds yet"),
    "backlog_log_files": ("log_files_waiting", "log files that no plan holds yet"),
    "backlog_file_groups": ("file_groups_waiting", "file groups with log files that no plan holds yet"),
    "log_bytes": ("log_bytes", "bytes of log files that readers merge"),
    "base_bytes": ("base_bytes", "bytes of the base files that readers merge them with"),
    "log_files_max": ("log_files_max", "log files of the file group that has most"),
    "left_out_file_groups": ("file_groups_left_out", "file groups that no compaction can read"),
    "delta_commits_since_request": ("delta_commits_since_request", "delta commits since a compaction was requested"),
}
_TIMES = {
    "last_compaction_timestamp_seconds": ("last_compaction", "when the last completed compaction was requested"),
    "last_write_timestamp_seconds": ("last_write", "when the last completed write was requested"),
}
SILENCED_TEXT = "1 while a person has said that the table is known to be bad: alerts leave it out"
LAG_TEXT = "age of the oldest row in no base file, 0 without one"
_CODES = {one.value: float(one.code) for one in Health}


def exposition(tables: Sequence[ServedTable], rows: Iterable[Row], daemon: CollectorRegistry | None = None) -> bytes:
    """All metrics as text. `daemon`: those of the daemon in this process; none is given twice."""
    registry = CollectorRegistry()
    by_daemon = [] if daemon is None else list(daemon.collect())
    named = {metric.name for metric in by_daemon}
    found = [metric for metric in _families(tables, list(rows)) if metric.name not in named]
    registry.register(_Found([*by_daemon, *found]))
    if daemon is None:
        add_process(registry)
    return generate_latest(registry)


class _Found(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def _families(tables: Sequence[ServedTable], rows: list[Row]) -> Iterator[Metric]:
    up = ((row, float(row.get("log_files") is not None)) for row in rows)
    yield _family("table_up", "1 if the last read of the table succeeded", _by_path(up))
    yield from table_families(rows)
    yield _family("service_state_bytes", "memory of a table's state, about", ((t.path, t.bytes) for t in tables))
    loads, took = ((t.path, t.loads) for t in tables), ((t.path, t.load_s) for t in tables)
    yield _family("service_loads", "states that were loaded", loads, CounterMetricFamily)
    yield _family("service_load_seconds", "time that loads took", took, CounterMetricFamily)


def table_families(rows: Sequence[Row]) -> Iterator[Metric]:
    """What the reports of tables say. `rows`: their JSON."""
    health = ((row, _CODES[row["health"]]) for row in rows)
    yield _family("health", "0 well, 1 needs care, 2 broken: the exit code of check", _by_path(health))
    silenced = ((row, float(is_silenced(row))) for row in rows)
    yield _family("silenced", SILENCED_TEXT, _by_path(silenced))
    lags = ((row, lag) for row in rows if (lag := row.get("read_optimized_lag_s")) is not None)
    yield _family("read_optimized_lag_seconds", LAG_TEXT, _by_path(lags))
    goals = ((row, goal) for row in rows if (goal := row.get("slo_s")) is not None)
    yield _family("slo_seconds", "the age of a pending compaction from which on it is late", _by_path(goals))
    for name, (key, text) in _GAUGES.items():
        yield _family(name, text, _by_path((row, max(0.0, row[key] or 0.0)) for row in rows if key in row))
    for name, (key, text) in _TIMES.items():
        known = [row for row in rows if row.get(key) and row.get("utc_offset_s") is not None]
        times = ((row, at) for row in known if (at := moment(row[key])) is not None)
        seconds = ((row, at.replace(tzinfo=UTC).timestamp() - row["utc_offset_s"]) for row, at in times)
        yield _family(name, text, _by_path(seconds))


def _by_path(values: Iterable[tuple[Row, float]]) -> Iterator[tuple[str, float]]:
    return ((row["path"], value) for row, value in values)


def _family(
    name: str,
    text: str,
    values: Iterable[tuple[str, float]],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> Metric:
    family = kind(f"phantombase_{name}", text, labels=["table"])
    for path, value in values:
        family.add_metric([path.encode("utf-8", "backslashreplace").decode()], value)  # a label is UTF-8
    return family
