"""A daemon's small HTTP server: `/metrics` for Prometheus, `/healthz` and `/readyz` for a supervisor.

The two answer 200 with `ok`, or 503 with the reason in one line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import disable_created_metrics, make_wsgi_app

from phantombase.timeline.errors import UsageError
from phantombase.timeline.event_log import get_logger

from .metrics import Metrics

_log = get_logger()

_CLIENT_S = 10.0
"""How long a client may take to send its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonHealth:
    """A daemon's health. `silent_s`: time since its loop last went round. `trouble`: why it cannot work, or None."""

    silent_s: float
    trouble: str | None
    silent_s_max: float = 60.0

    @property
    def not_alive(self) -> str | None:
        """Why the daemon must be started again; None if it is alive."""
        if self.silent_s <= self.silent_s_max:
            return None
        return f"the daemon's loop has stood still for {self.silent_s:.0f} s; the limit is {self.silent_s_max:g} s"

    @property
    def not_ready(self) -> str | None:
        """Why the daemon cannot work now; None if it can."""
        return self.not_alive or self.trouble


@contextmanager
def serve(port: int, metrics: Metrics, health: Callable[[], DaemonHealth], *, host: str = "") -> Iterator[int]:
    """Serves on an address (empty: on all) from entry to exit; yields the port, a free one for port 0.

    UsageError: the port cannot be used there. `health` is called in other threads.
    """
    # They would be a third of all series. That a counter began anew shows in the start time of the process.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics_app: WSGIApplication = make_wsgi_app(metrics.registry)

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
        raise UsageError("the metrics port cannot be used", path=f"{host or '*'}:{port}", found=str(error)) from error
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
        TCPServer.server_bind(self)  # HTTPServer's asks the name service for this host's name, which may take long
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_S

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("http", client=self.client_address[0], request=format % args)
