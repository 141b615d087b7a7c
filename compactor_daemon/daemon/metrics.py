"""A daemon's HTTP server: `/metrics` for Prometheus, `/healthz` and `/readyz` for a supervisor.

`/healthz` and `/readyz` answer 200 with `ok`, or 503 with the reason in one line. Each `Metrics` has a registry of its
own; the label `table` is the table's path:

    phantombase_pending, _running, _parked, _oldest_pending_seconds     gauges, as of the last snapshot
    phantombase_paused                                                  1 while a person has paused the table
    phantombase_silenced                                                1 while it is known to be bad: no alert
    phantombase_read_optimized_lag_seconds                              of the last report where there is no goal
    phantombase_freshness_goal_seconds                                  of tables with a goal of freshness
    phantombase_completed_total, _failed_total                          instants
    phantombase_bytes_in_total, _bytes_out_total                        of completed compactions
    phantombase_rows_in_total, _rows_out_total                          of completed compactions
    phantombase_last_success_timestamp_seconds                          when this daemon last completed a compaction
    phantombase_claim_latency_seconds, phantombase_compaction_seconds   histograms of the daemon, not by table
    phantombase_service_instants_total, _service_failed_total           by service: cleans, archived instants; failures
    phantombase_service_last_success_timestamp_seconds                  by service: when a run last had no error
    phantombase_service_files_total, _service_bytes_total               by service: removed files
    phantombase_health, _slo_seconds, _backlog_..., _log_..., ...       of the tables' reports, see `table_families`
    phantombase_work_units_total, _work_seconds_total, _work_core_seconds_total      by kind of work, of this process
    phantombase_work_bytes_total, _work_requests_total, _work_cost_total            the same; cost: with prices
    phantombase_tables_listed                                           1 if the last listing of a root succeeded, or 0
    phantombase_table_up                                                1; 0 after a snapshot of the table that failed
    phantombase_pool_running, _pool_occupancy, _pool_bytes              by pool: slots, part of them, bytes of an hour
    phantombase_zookeeper_connected                                     1 or 0; absent without ZooKeeper
    phantombase_build_info, process_...                                 version and Python; memory, processor time"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, make_wsgi_app
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from phantombase.timeline.dashboard.people_app import LAG_TEXT, SILENCED_TEXT, add_process, table_families
from phantombase.timeline.dashboard.verdict import Freshness, is_silenced
from phantombase.timeline.errors import UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.table.history import PriceOptions
from phantombase.timeline.terminal.text_table import Row

from ..attempt.compact_or_resume import Compacted
from ..fleet.pools import Pool, PoolUsage
from ..services.serve import ServiceDone
from ..unit_of_work import forget_spent, spent_here
from .work import Observer

_LATENCY_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_COMPACTION_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0)


_WORK = {
    "units": "units of work: compactions, clusterings, cleans and so on",
    "seconds": "how long units of work took",
    "core_seconds": "how long tasks of units of work held a core, with the processor time of their leading threads",
    "bytes": "bytes that units of work read and wrote",
    "requests": "requests to object stores that units of work made",
    "cost": "what units of work cost by the daemon's prices",
}


class _Work(Collector):
    """What the units of work of this process on the tables that are served took, see `unit_of_work`."""

    def __init__(self, served: Collection[str], prices: PriceOptions) -> None:
        self._served, self._prices = served, prices

    def collect(self) -> Iterator[Metric]:
        spent = {key: total for key, total in spent_here().items() if key[0] in self._served}
        for name, text in _WORK.items():
            family = CounterMetricFamily(f"phantombase_work_{name}", text, labels=["table", "kind"])
            for (table, kind), total in spent.items():
                cost = self._prices.of(total["core_seconds"], total["bytes"], total["requests"])
                if (value := cost if name == "cost" else total[name]) is not None:
                    family.add_metric([table, kind], value)
            yield family


class TableReports(Protocol):
    """Makes the reports of tables, see `http_service.Reports`."""

    def report(self, path: str, timeline: Timeline, pool: Pool) -> Row:
        """As JSON."""

    def silenced(self, path: str) -> bool:
        """Whether a person has said that the table is known to be bad."""

    def forget(self, path: str) -> None:
        """The table is not served any more."""


class Metrics(Observer, Collector):
    """See the module. The methods are those of `Observer`; they may be called from any thread. `reports`: of the
    tables; None: there are no metrics of them."""

    def __init__(self, reports: TableReports | None = None, prices: PriceOptions | None = None) -> None:
        self.registry = CollectorRegistry()
        self._reports = reports
        self._rows: dict[str, Row] = {}
        self._listed: Gauge | None = None
        self._pending = self._gauge("pending", "compactions and clusterings that are requested and not completed yet")
        self._running = self._gauge("running", "the same at work in this daemon, without those that wait for writes")
        self._parked = self._gauge("parked", "those of them that are parked until an operator releases them")
        self._paused = self._gauge("paused", "1 if a person has paused the table, and something waits for it")
        self._silenced = self._gauge("silenced", SILENCED_TEXT)
        self._oldest = self._gauge("oldest_pending_seconds", "age of the oldest pending compaction, 0 without one")
        self._lag = self._gauge("read_optimized_lag_seconds", LAG_TEXT)
        self._goal = self._gauge("freshness_goal_seconds", "how old such a row may become")
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
        self._service_success = self._gauge(
            "service_last_success_timestamp_seconds", "when a service last ended without an error", "service"
        )
        self._service_files = self._counter("service_files", "files that services removed", "service")
        self._service_bytes = self._counter("service_bytes", "bytes that services removed", "service")
        self._up = self._gauge("table_up", "1 if the last snapshot of the table succeeded")
        self._pools = [
            Gauge(f"phantombase_pool_{name}", text, ["pool"], registry=self.registry)
            for name, text in (
                ("running", "compactions at work in this daemon, by pool"),
                ("occupancy", "part of this daemon's slots that a pool has had, over some minutes"),
                ("bytes", "bytes that compactions of a pool have read in this daemon in an hour"),
            )
        ]
        self._by_table = [v for v in vars(self).values() if isinstance(v, Gauge | Counter)]
        self._served = set[str]()
        self._told = dict[tuple[str, str], object]()
        self.registry.register(_Work(self._served, prices or PriceOptions()))
        add_process(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Its own metrics, and what the reports say besides (prometheus_client's `Collector`)."""
        own = list(self.registry.collect())
        named = {metric.name for metric in own}
        yield from own
        yield from (one for one in table_families([*self._rows.values()]) if one.name not in named)

    def swept(self, table: str, timeline: Timeline, pool: Pool) -> None:
        if self._reports is not None:
            row = self._rows[table] = self._reports.report(table, timeline, pool)
            self._silenced.labels(table).set(is_silenced(row))

    def failing(self, table: str) -> None:
        if self._reports is not None:
            self._silenced.labels(table).set(self._reports.silenced(table))

    def listed(self, error: str | None) -> None:
        if self._listed is None:
            text = "1 if the tables of the root could be listed at the last poll"
            self._listed = Gauge("phantombase_tables_listed", text, registry=self.registry)
        self._listed.set(error is None)

    def serves(self, table: str) -> None:
        """Creates a table's series at the start: a counter that appears with its first event would hide that event."""
        if table in self._served:
            return
        self._served.add(table)
        gauges = (self._pending, self._running, self._parked, self._paused, self._oldest)
        counters = (self._completed, self._failed, self._bytes_in, self._bytes_out, self._rows_in, self._rows_out)
        for family in (*gauges, *counters):
            family.labels(table)

    def snapshot_taken(
        self, table: str, pending: int, parked: int, oldest_s: float | None, paused: bool = False
    ) -> None:
        if not self._is_new(table, "seen", (pending, parked, oldest_s, paused)):
            return
        self.serves(table)
        self._paused.labels(table).set(paused)
        self._pending.labels(table).set(pending)
        self._parked.labels(table).set(parked)
        self._oldest.labels(table).set(max(0.0, oldest_s or 0.0))

    def freshness(self, table: str, found: Freshness | None) -> None:
        """See `Observer`. A table without a goal has the lag of its last report, one of unknown lag none."""
        reported = self._rows.get(table, {}).get("read_optimized_lag_s")
        lag_s = reported if found is None or found.goal_s is None else found.lag_s
        goal_s = None if found is None else found.goal_s
        if not self._is_new(table, "lag", (lag_s, goal_s)):
            return
        for gauge, value in ((self._lag, lag_s), (self._goal, goal_s)):
            if value is None:
                gauge.remove_by_labels({"table": table})
            else:
                gauge.labels(table).set(value)

    def started(self, table: str, latency_s: float | None) -> None:
        self._running.labels(table).inc()
        if latency_s is not None:
            self._latency.observe(max(0.0, latency_s))

    def suspend(self, table: str) -> None:
        self._running.labels(table).dec()

    def resumed(self, table: str) -> None:
        self._running.labels(table).inc()

    def finished(self, table: str, compacted: Compacted | None) -> None:
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
        self._failed.labels(table).inc()

    def served(self, table: str, done: ServiceDone) -> None:
        """See `Observer`. Tables without services have no such series."""
        self._instants.labels(table, done.service.value).inc(done.instants)
        self._service_failed.labels(table, done.service.value).inc(done.failed)
        if not done.failed:
            self._service_success.labels(table, done.service.value).set_to_current_time()
        self._service_files.labels(table, done.service.value).inc(done.files)
        self._service_bytes.labels(table, done.service.value).inc(done.bytes)

    def trouble(self, table: str, error: str | None) -> None:
        if self._is_new(table, "up", error is None):
            self._up.labels(table).set(error is None)

    def pool(self, use: PoolUsage) -> None:
        for gauge, value in zip(self._pools, (use.running, use.occupancy, use.bytes), strict=True):
            gauge.labels(use.pool).set(value)

    def forget(self, table: str) -> None:
        self._rows.pop(table, None)
        self._served.discard(table)
        for what in ("seen", "lag", "up"):
            self._told.pop((table, what), None)
        forget_spent(table)
        if self._reports is not None:
            self._reports.forget(table)
        for family in self._by_table:
            family.remove_by_labels({"table": table})

    def zookeeper(self, connected: bool) -> None:
        if self._connected is None:
            self._connected = Gauge(
                "phantombase_zookeeper_connected", "1 while ZooKeeper answers", registry=self.registry
            )
        self._connected.set(connected)

    def _is_new(self, table: str, what: str, value: object) -> bool:
        """Whether a value is another one than the last: most of thousands of looks find nothing new."""
        before, self._told[table, what] = self._told.get((table, what)), value
        return before != value

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(f"phantombase_{name}", text, ["table", *more], registry=self.registry)

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(f"phantombase_{name}", text, ["table", *more], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"phantombase_{name}", text, registry=self.registry, buckets=buckets)


_log = get_logger()
_CLIENT_S = 10.0
"""How long a client may take to send its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonHealth:
    """A daemon's health. `silent_s`: time since the last turn of its loop. `trouble`: why it cannot work, or None."""

    silent_s: float
    trouble: str | None
    silent_s_max: float = 60.0

    @property
    def not_alive(self) -> str | None:
        """Why the daemon must be started again; None if it is alive."""
        if self.silent_s <= self.silent_s_max:
            return None
        limit = f"the limit is {self.silent_s_max:,.0f} s"
        return f"the daemon's loop has made no progress for {self.silent_s:,.0f} s; {limit}"

    @property
    def not_ready(self) -> str | None:
        """Why the daemon cannot work now; None if it can."""
        return self.not_alive or self.trouble


@contextmanager
def serve(port: int, metrics: Metrics, health: Callable[[], DaemonHealth], *, host: str = "") -> Iterator[int]:
    """Serves on an address (empty: on all) from entry to exit; yields the port, a free one for port 0. UsageError: the
    port cannot be used there. `health` is called in other threads."""
    # The `_created` series would be a third of all. The start time of the process shows when counters were reset.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    every = CollectorRegistry()
    every.register(metrics)
    metrics_app: WSGIApplication = make_wsgi_app(every)

    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return metrics_app(environ, start)
        if path == "/healthz":
            return _answer(start, health().not_alive)
        if path == "/readyz":
            return _answer(start, health().not_ready)
        return _text(start, "404 Not Found", "/metrics, /healthz, /readyz")

    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            "the metrics port cannot be used",
            path=f"{host or '*'}:{port}",
            found=str(error),
            todo="Give another --metrics-port; 0 takes a free one.",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(start: StartResponse, reason: str | None) -> list[bytes]:
    return _text(start, "200 OK" if reason is None else "503 Service Unavailable", reason or "ok")


def _text(start: StartResponse, status: str, line: str) -> list[bytes]:
    body = f"{line}\n".encode()
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # so a client that hangs does not stop the daemon from ending

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's method looks up this host's name, which may take long
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_S

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("http", client=self.client_address[0], request=format % args)
