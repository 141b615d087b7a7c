"""The reports of tables as metrics for Prometheus; the label is the table's path.

phantombase_pending, _oldest_pending_seconds, _table_up         as of the daemon
phantombase_health                                              0 ok, 1 late, 2 stuck, 3 broken
phantombase_backlog_log_bytes, _log_files, _file_groups         logs in no plan yet, and their file groups
phantombase_log_bytes, _base_bytes, _log_files_max              what readers merge
phantombase_delta_commits_since_request                         of a compaction
phantombase_last_compaction_timestamp_seconds, _last_write_...  when they were requested
phantombase_service_state_bytes, _service_loads_total, _service_load_seconds_total    of the service itself
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..report.health import Word
from ..service.metrics import add_process
from ..service.served_tables import ServedTable
from ..terminal.text_table import Row, moment

_GAUGES = {
    "pending": ("pending_compactions", "compactions that are requested and not completed yet"),
    "oldest_pending_seconds": ("oldest_pending_s", "age of the oldest pending compaction, 0 without one"),
    "backlog_log_bytes": ("log_bytes_waiting", "bytes of log files that no plan holds yet"),
    "backlog_log_files": ("log_files_waiting", "log files that no plan holds yet"),
    "backlog_file_groups": ("file_groups_waiting", "file groups with log files that no plan holds yet"),
    "log_bytes": ("log_bytes", "bytes of log files that readers merge"),
    "base_bytes": ("base_bytes", "bytes of the base files that readers merge them with"),
    "log_files_max": ("log_files_max", "log files of the file group that has most"),
    "delta_commits_since_request": ("delta_commits_since_request", "delta commits since a compaction was requested"),
}
_TIMES = {
    "last_compaction_timestamp_seconds": ("last_compaction", "when the last completed compaction was requested"),
    "last_write_timestamp_seconds": ("last_write", "when the last completed write was requested"),
}
_WORDS = {word.value: float(number) for number, word in enumerate(reversed(Word))}


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
    up = GaugeMetricFamily("phantombase_table_up", "1 if the last read of the table succeeded", labels=["table"])
    health = GaugeMetricFamily("phantombase_health", "0 ok, 1 late, 2 stuck, 3 broken", labels=["table"])
    for row in rows:
        up.add_metric([row["path"]], float(row["health"] != Word.BROKEN.value))
        health.add_metric([row["path"]], _WORDS[row["health"]])
    yield from (up, health)
    for name, (key, text) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"phantombase_{name}", text, labels=["table"])
        for row in rows:
            if key in row:
                gauge.add_metric([row["path"]], max(0.0, row[key] or 0.0))
        yield gauge
    for name, (key, text) in _TIMES.items():
        gauge = GaugeMetricFamily(f"phantombase_{name}", text, labels=["table"])
        for row in rows:
            if row.get(key) and row.get("utc_offset_s") is not None and (at := moment(row[key])) is not None:
                gauge.add_metric([row["path"]], at.replace(tzinfo=UTC).timestamp() - row["utc_offset_s"])
        yield gauge
    yield from _of_service(tables)


def _of_service(tables: Sequence[ServedTable]) -> Iterator[Metric]:
    size = GaugeMetricFamily("phantombase_service_state_bytes", "memory of a table's state, about", labels=["table"])
    loads = CounterMetricFamily("phantombase_service_loads", "states that were loaded", labels=["table"])
    took = CounterMetricFamily("phantombase_service_load_seconds", "time that loads took", labels=["table"])
    for table in tables:
        size.add_metric([table.path], table.bytes)
        loads.add_metric([table.path], table.loads)
        took.add_metric([table.path], table.load_s)
    yield from (size, loads, took)
