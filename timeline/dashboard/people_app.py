"""The state of the served tables over HTTP, for people and their programs; logins; metrics for Prometheus.

/                                        /api/tables                          every table, worst first; `details`
/t/<name>                                /api/tables/<name>                   one table
/t/<name>/groups                         /api/tables/<name>/groups            its file groups, worst first, in pages
/t/<name>/instant/<time>                 /api/tables/<name>/instants/<time>   an instant, decoded
/fleet                                   /api/fleet                           daemons, claims, parked compactions
                                         /metrics                             for Prometheus
/t/<name>/actions/<order>                /api/tables/<name>/actions/<order>   POST: see `actions`

A visitor without the token gets only the form for the token. The label of metrics is the table's path."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from importlib.metadata import version
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST as METRICS_TYPE
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..clocks import clock_ms
from ..errors import PhantombaseError, UsageError
from ..service.asgi import (
    COOKIE,
    SESSION_S,
    Access,
    Receive,
    Refused,
    Scope,
    Send,
    encoded,
    form_of,
    headers_of,
    own_parameters,
    send_answer,
    send_bytes,
    send_error,
    send_text,
    status_of,
)
from ..service.served_tables import ServedTable, ServedTables
from ..terminal.text_table import Row, moment
from .actions import ActionApp, StatusFleet
from .details import PARAMETERS, fleet_work, groups_page, instant_page, tables_index
from .orders import CommandSettings
from .pages import error_page, fleet_page, login_page, script, style, table_page, tables_page
from .pages import groups_page as groups_html
from .pages import instant_page as instant_html
from .table_rows import FleetInfo, TableInfo, TableRows, recent
from .verdict import Health, is_silenced

LOGIN = "/login"

POLICY = (
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; script-src 'self'; base-uri 'none'; "
     b"form-action 'self'; frame-ancestors 'none'"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)  # fmt: skip
HTML = b"text/html; charset=utf-8"


class LoginApp:
    """A form of one field. The right token sets a cookie; a program sends `Authorization: Bearer` instead."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except Exception as error:
            await send_error(scope, send, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/page.css" and method in ("GET", "HEAD"):
            await send_bytes(send, style(), b"text/css; charset=utf-8")
        elif path == LOGIN and method == "POST":
            given = own_parameters(await form_of(receive), "token")
            if not self._access.is_token(given.get("token", "").strip()):
                await send_bytes(send, login_page(wrong=True).encode(), HTML, POLICY, status=403)
                return
            cookie = f"{COOKIE}={self._access.session(clock_ms() / 1000)}; HttpOnly; SameSite=Strict; Path=/; "
            set_cookie = (b"set-cookie", f"{cookie}Max-Age={SESSION_S}".encode())
            await send_text(send, 303, "welcome", [(b"location", b"/"), set_cookie])
        elif method not in ("GET", "HEAD"):
            raise Refused(401, "this needs the token")
        elif path == LOGIN:
            await send_bytes(send, login_page().encode(), HTML, POLICY)
        elif path == "/" or path.startswith("/t/") or path == "/fleet":
            await send_text(send, 303, "log in first", [(b"location", LOGIN.encode())])
        else:
            await send_text(send, 401, "this needs the token", [(b"www-authenticate", b"Bearer")])


_SETTINGS = CommandSettings()
_NOT_FOUND = Refused(404, "Not found")


class PeopleApp:
    """Answers all requests except Hudi's. `slo_s`: see `TableRows`. `fleet_info`: of the compactor. `registry`: metrics
    of the daemon in this process. `settings`: those of the commands. `actions`: takes orders; None: pages show commands
    to copy. `fleet`, `stored`: of a service without a daemon."""

    def __init__(
        self,
        tables: ServedTables,
        slo_s: float | None = None,
        fleet_info: FleetInfo | None = None,
        registry: CollectorRegistry | None = None,
        settings: CommandSettings = _SETTINGS,
        actions: ActionApp | None = None,
        fleet: StatusFleet | None = None,
        stored: TableInfo | None = None,
    ) -> None:
        self._tables, self._fleet_info, self._registry = tables, fleet_info, registry
        self._settings, self._actions, self._elsewhere = settings, actions, fleet
        placed = fleet_info.placed if fleet_info is not None else None if fleet is None else fleet.placed
        self._rows = TableRows(slo_s, fleet_info or stored, settings, placed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Names may contain encoded slashes, so the path is split before it is decoded.
        raw = scope.get("raw_path", scope["path"].encode()).decode("ascii", "replace")
        parts = [unquote(part, errors="surrogateescape") for part in raw.partition("?")[0].removeprefix("/").split("/")]
        is_api, query = parts[0] == "api", scope["query_string"]
        try:
            if scope["method"] == "POST" and self._actions is not None:
                await self._actions.answer(scope, receive, send, parts, self._named)
            elif scope["method"] not in ("GET", "HEAD"):
                raise _NOT_FOUND
            elif parts == ["login"]:
                await send_text(send, 303, "logged in", [(b"location", b"/")])
            elif parts == ["page.css"]:
                await send_bytes(send, style(), b"text/css; charset=utf-8")
            elif parts == ["page.js"]:
                await send_bytes(send, script(), b"text/javascript; charset=utf-8")
            elif parts == ["metrics"]:
                own_parameters(query)
                info, tables = self._fleet_info, list(self._tables.by_name.values())
                tables = [one for one in tables if info is None or info.placed(one.path).own]
                rows = await self._rows.all(tables)
                text = await asyncio.to_thread(exposition, tables, rows, self._registry)
                await send_bytes(send, text, METRICS_TYPE.encode())
            elif is_api:
                found = await self._data(parts[1:], query)
                await send_answer(scope, send, encoded(found), kind=b"application/json")
            else:
                page = await self._html(scope, parts, query)
                await send_bytes(send, page.encode("utf-8", "replace"), HTML, POLICY)
        except Exception as error:
            status, reason = status_of(error)
            if status < 500 and not is_api and b"text/html" in headers_of(scope).get(b"accept", b""):
                await send_bytes(send, error_page(status, reason).encode(), HTML, POLICY, status=status)
            else:
                await send_error(scope, send, error)

    async def _data(self, parts: Sequence[str], query: bytes) -> Row:
        match parts:
            case ["tables"] | ["tables", ""]:
                own_parameters(query)
                return {"tables": await self._all()}
            case ["tables", name]:
                own_parameters(query)
                return await self._rows.one(self._named(name), whole=True, lock=True)
            case ["tables", name, "groups"]:
                given = own_parameters(query, "sort", "partition", "page")
                held = await recent(self._named(name))
                return await asyncio.to_thread(groups_page, held.state, given)
            case ["tables", name, "instants", time]:
                own_parameters(query)
                table = self._named(name)
                held = await recent(table)
                return await asyncio.to_thread(instant_page, table.table, held.state, time)
            case ["fleet"]:
                own_parameters(query)
                return await self._fleet()
        raise _NOT_FOUND

    async def _html(self, scope: Scope, parts: Sequence[str], query: bytes) -> str:
        match parts:
            case [""]:
                given = own_parameters(query, "again", *PARAMETERS)
                again, served = _again(given), list(self._tables.by_name.values())
                rows, age_s = await self._rows.listed(served)
                index = tables_index(rows, {} if age_s is None else given)
                return tables_page({**index, "age_s": age_s, "served": len(served)}, given, again=again)
            case ["t", name]:
                again, table = _again(own_parameters(query, "again")), self._named(name)
                row = await self._data(["tables", name], b"")
                now, acts = table.table.now() if "instants" in row else None, self._actions
                proof, ordered = (acts.proof(scope), acts.of(table)) if acts is not None else (None, ())
                return table_page(row, now, self._settings, proof=proof, ordered=ordered, again=again)
            case ["t", name, "groups"]:
                return groups_html(name, await self._data(["tables", name, "groups"], query))
            case ["t", name, "instant", time]:
                return instant_html(name, await self._data(["tables", name, "instants", time], query))
            case ["fleet"]:
                again = _again(own_parameters(query, "again"))
                return fleet_page(await self._data(["fleet"], b""), again=again)
        raise _NOT_FOUND

    async def _fleet(self) -> Row:
        """What `fleet_info` knows, and the work on the tables."""
        own = self._fleet_info is not None
        row: Row = {"known": own, "own": own, "problem": None}
        row |= {"zookeeper": None, "daemons": [], "pools": [], "claims": [], **fleet_work(())}
        if self._fleet_info is None:
            if self._elsewhere is not None:
                row |= {"known": True, **await asyncio.to_thread(self._elsewhere.fleet)}
            rows, _ = await self._rows.listed(list(self._tables.by_name.values()))
            return row | fleet_work(rows)
        rows, _ = await self._rows.listed(list(self._tables.by_name.values()))
        busy = [one["path"] for one in rows if one.get("pending_instants") or one.get("pending")]
        try:
            row |= await asyncio.to_thread(self._fleet_info.fleet, busy)
        except PhantombaseError as error:
            row["problem"] = str(error)
        names = {one.path: one.name for one in self._tables.by_name.values()}
        for one in (*row["claims"], *(work for daemon in row["daemons"] for work in daemon["running"])):
            one["served_as"] = names.get(one["table"])
        return row | fleet_work(rows)

    async def _all(self) -> list[Row]:
        return await self._rows.all(list(self._tables.by_name.values()))

    def _named(self, name: str) -> ServedTable:
        if name not in self._tables.by_name:
            raise Refused(404, f"no table is served as {name!r}; /api/tables names all")
        return self._tables.by_name[name]


def _again(given: Mapping[str, str]) -> bool:
    """Whether a page reads itself again: yes, without the parameter `again`. UsageError: another value."""
    if (value := given.get("again")) not in (None, "never"):
        raise UsageError("not a value of the parameter again", expected="never", found=repr(value))
    return value is None


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
