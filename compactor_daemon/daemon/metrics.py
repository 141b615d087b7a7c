"""A daemon's metrics for Prometheus. Each `Metrics` has a registry of its own; the label `table` is the table's path.

phantombase_pending, _running, _parked, _oldest_pending_seconds     gauges, as of the last snapshot
phantombase_completed_total, _failed_total                          instants
phantombase_bytes_in_total, _bytes_out_total, _rows_in_total, _rows_out_total    of completed compactions
phantombase_last_success_timestamp_seconds                          when this daemon last completed a compaction
phantombase_claim_latency_seconds, phantombase_compaction_seconds   histograms of the daemon, not by table
phantombase_service_instants_total, _service_failed_total           by service: cleans, archived instants; failures
phantombase_cleaned_files_total, _cleaned_bytes_total               of cleans
phantombase_table_up                                                1; 0 after a look at the table that failed
phantombase_pool_running, _pool_occupancy, _pool_bytes              by pool: slots, part of the slots, bytes of an hour
phantombase_zookeeper_connected                                     1 or 0; absent without ZooKeeper
phantombase_build_info, process_...                                 version and Python; memory, processor time, files
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from phantombase.timeline.service.metrics import add_process

from ..attempt.compact_instant import Compacted
from ..catalog.usage import PoolUsage
from ..services.done import ServiceDone
from ..services.options import Service
from .observer import Observer

_LATENCY_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_COMPACTION_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0)


class Metrics(Observer):
    """See the module. The methods are those of `Observer`; they may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._pending = self._gauge("pending", "compactions that are requested and not completed yet")
        self._running = self._gauge("running", "compactions at work in this daemon, without those that wait for writes")
        self._parked = self._gauge("parked", "pending compactions that are parked until an operator releases them")
        self._oldest = self._gauge("oldest_pending_seconds", "age of the oldest pending compaction, 0 without one")
        self._completed = self._counter("completed", "compactions that this daemon completed")
        self._failed = self._counter("failed", "tries of compactions by this daemon that failed")
        self._bytes_in = self._counter("bytes_in", "bytes of base and log files merged")
        self._bytes_out = self._counter("bytes_out", "bytes of base files written")
        self._rows_in = self._counter("rows_in", "rows of base files and entries of logs merged")
        self._rows_out = self._counter("rows_out", "rows of base files written")
        self._success = self._gauge("last_success_timestamp_seconds", "when this daemon last completed a compaction")
        self._latency = self._histogram("claim_latency_seconds", "from the request of a plan to its claim", _LATENCY_S)
        self._seconds = self._histogram("compaction_seconds", "from the claim to the end", _COMPACTION_S)
        self._connected: Gauge | None = None
        self._instants = self._counter("service_instants", "instants of services: cleans, archived ones", "service")
        self._service_failed = self._counter("service_failed", "services that failed", "service")
        self._cleaned_files = self._counter("cleaned_files", "files that cleans removed")
        self._cleaned_bytes = self._counter("cleaned_bytes", "bytes that cleans removed")
        self._up = self._gauge("table_up", "1 if the last look at the table succeeded")
        self._pools = [
            Gauge(f"phantombase_pool_{name}", text, ["pool"], registry=self.registry)
            for name, text in (
                ("running", "compactions at work in this daemon, by pool"),
                ("occupancy", "part of this daemon's slots that a pool has had, over some minutes"),
                ("bytes", "bytes that compactions of a pool have read in this daemon in an hour"),
            )
        ]
        self._by_table = [v for v in vars(self).values() if isinstance(v, Gauge | Counter)]
        add_process(self.registry)

    def serves(self, table: str) -> None:
        """Creates a table's series at the start: a counter that appears with its first event would hide that event."""
        gauges = (self._pending, self._running, self._parked, self._oldest)
        counters = (self._completed, self._failed, self._bytes_in, self._bytes_out, self._rows_in, self._rows_out)
        for family in (*gauges, *counters):
            family.labels(table)

    def looked(self, table: str, pending: int, parked: int, oldest_s: float | None) -> None:
        """See `Observer`."""
        self.serves(table)
        self._pending.labels(table).set(pending)
        self._parked.labels(table).set(parked)
        self._oldest.labels(table).set(max(0.0, oldest_s or 0.0))

    def started(self, table: str, latency_s: float | None) -> None:
        """See `Observer`."""
        self._running.labels(table).inc()
        if latency_s is not None:
            self._latency.observe(max(0.0, latency_s))

    def put_aside(self, table: str) -> None:
        """See `Observer`."""
        self._running.labels(table).dec()

    def resumed(self, table: str) -> None:
        """See `Observer`."""
        self._running.labels(table).inc()

    def finished(self, table: str, compacted: Compacted | None) -> None:
        """See `Observer`."""
        self._running.labels(table).dec()
        if compacted is None:
            return
        self._completed.labels(table).inc()
        self._seconds.observe(compacted.seconds)
        self._success.labels(table).set_to_current_time()
        self._bytes_in.labels(table).inc(compacted.bytes_read)
        self._bytes_out.labels(table).inc(compacted.bytes_written)
        self._rows_in.labels(table).inc(compacted.rows_read)
        self._rows_out.labels(table).inc(compacted.rows)

    def failed(self, table: str) -> None:
        """See `Observer`."""
        self._failed.labels(table).inc()

    def served(self, table: str, done: ServiceDone) -> None:
        """See `Observer`. Tables without services have no such series."""
        self._instants.labels(table, done.service.value).inc(done.instants)
        self._service_failed.labels(table, done.service.value).inc(done.failed)
        if done.service is Service.CLEAN:
            self._cleaned_files.labels(table).inc(done.files)
            self._cleaned_bytes.labels(table).inc(done.bytes)

    def trouble(self, table: str, error: str | None) -> None:
        """See `Observer`."""
        self._up.labels(table).set(error is None)

    def pool(self, use: PoolUsage) -> None:
        """See `Observer`."""
        for gauge, value in zip(self._pools, (use.running, use.occupancy, use.bytes), strict=True):
            gauge.labels(use.pool).set(value)

    def forget(self, table: str) -> None:
        """See `Observer`."""
        for family in self._by_table:
            family.remove_by_labels({"table": table})

    def zookeeper(self, connected: bool) -> None:
        """Whether ZooKeeper is connected."""
        if self._connected is None:
            self._connected = Gauge(
                "phantombase_zookeeper_connected", "1 while ZooKeeper answers", registry=self.registry
            )
        self._connected.set(connected)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"phantombase_{name}", text, ["table"], registry=self.registry)

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(f"phantombase_{name}", text, ["table", *more], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"phantombase_{name}", text, registry=self.registry, buckets=buckets)
