"""A proxy before an S3 server of tests that spoils requests: each may be done, done twice or not at all, and answered
by an error, late, in part or by nothing.

    with fault_proxy(port) as proxy:
        proxy.faults = nth(7, Fault.LOST)

Unlike `S3Server.faults` it works before any server, and sees the bodies of answers."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from tests.support.compaction_steps import serving
from tests.support.servers.s3_server import S3Server


class Body(Enum):
    """What the client gets of the body of an answer."""

    WHOLE = "all of it"
    CUT = "half of it under the length of all, then the end of the connection"
    RESET = "half of it under the length of all, then a reset"
    SHORT = "half of it, under the length of that half"
    LONG = "all of it, under the length of its half"
    PART = "half of a range, under a Content-Range that says so"


class Spoilt(NamedTuple):
    """What becomes of a request: how often the server does it, then what the client gets.

    `status`: an answer of that number in the place of the server's; 0: the connection ends without an answer. `code`:
    S3's name of that error. `later_s`: the server does it that long after the answer. `page`: the most names of a page
    of a listing. `is_stale`: the connection ends without a word after the answer."""

    times: int = 1
    status: int | None = None
    delay_s: float = 0.0
    body: Body = Body.WHOLE
    code: str = "Injected"
    later_s: float = 0.0
    page: int = 0
    is_stale: bool = False


class Fault(Enum):
    """The usual ways to spoil a request."""

    NONE = Spoilt()
    LOST = Spoilt(status=0)
    LOST_500 = Spoilt(status=500)
    LOST_503 = Spoilt(status=503)
    LOST_429 = Spoilt(status=429)
    LOST_409 = Spoilt(status=409)
    DROPPED = Spoilt(times=0, status=0)
    REFUSED_500 = Spoilt(times=0, status=500)
    REFUSED_503 = Spoilt(times=0, status=503)
    REFUSED_429 = Spoilt(times=0, status=429)
    REFUSED_409 = Spoilt(times=0, status=409)
    DOUBLED = Spoilt(times=2)
    DELAYED = Spoilt(delay_s=0.3)
    CUT = Spoilt(body=Body.CUT)
    GONE = Spoilt(times=0, status=404)
    RESET = Spoilt(body=Body.RESET)
    SHORT = Spoilt(body=Body.SHORT)
    LONG = Spoilt(body=Body.LONG)
    PARTIAL = Spoilt(body=Body.PART)
    SLOW_DOWN = Spoilt(times=0, status=503, code="SlowDown")
    STALE = Spoilt(is_stale=True)
    EXPIRED = Spoilt(times=0, status=400, code="ExpiredToken")
    SKEWED = Spoilt(times=0, status=403, code="RequestTimeTooSkewed")
    PAGES = Spoilt(page=3)
    FAILED_200 = Spoilt(times=0, status=200, code="InternalError")
    LATE = Spoilt(times=0, status=200, later_s=0.2)


OF_CHANGES = tuple(Fault)[1 : list(Fault).index(Fault.CUT)]
"""What may become of a request that changes something."""
OF_ANSWERS = (Fault.CUT, *tuple(Fault)[list(Fault).index(Fault.RESET) : list(Fault).index(Fault.FAILED_200)])
"""What may become of any request besides."""


class Kind(Enum):
    """What a request asks for."""

    GET = "get"
    HEAD = "head"
    LIST = "list"
    PUT = "put"
    UPLOAD = "begin an upload"
    PART = "put or copy a part of an upload"
    COMPLETE = "complete an upload"
    ABORT = "abort an upload"
    DELETE = "delete"


_READS = (Kind.GET, Kind.HEAD, Kind.LIST)


@dataclass(frozen=True)
class Request:
    """A request as faults see it. `number`: from 0, among those that change something, or among those that do not."""

    method: str
    path: str
    query: str
    number: int

    @property
    def kind(self) -> Kind:
        """What it asks for."""
        parameters = {part.partition("=")[0] for part in self.query.split("&")}
        if self.method == "POST":
            return next((kind for name, kind in _POSTS if name in parameters), Kind.DELETE)
        if "uploadId" in parameters:
            return Kind.ABORT if self.method == "DELETE" else Kind.PART
        if self.method == "GET" and self.path.count("/") == 1:
            return Kind.LIST
        return Kind[self.method]

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in ("GET", "HEAD")


_POSTS = (("uploads", Kind.UPLOAD), ("uploadId", Kind.COMPLETE))

Faults = Callable[[Request], Fault]


def nth(number: int, fault: Fault, *, times: int = 1) -> Faults:
    """That fault at the n-th request (from 0) that changes something, and at the next `times` - 1."""
    return lambda asked: fault if asked.changes and number <= asked.number < number + times else Fault.NONE


def of_kind(kind: Kind, *faults: Fault) -> Faults:
    """Those faults at the first requests of a kind, one each; the last of them at all others of the kind."""
    left = list(faults)

    def spoil(asked: Request) -> Fault:
        if asked.kind is not kind:
            return Fault.NONE
        return left.pop(0) if len(left) > 1 else left[0]

    return spoil


def seeded(seed: int, share: float) -> Faults:
    """Spoils that share of all requests."""
    chance = random.Random(seed)

    def faults(asked: Request) -> Fault:
        if chance.random() >= share:
            return Fault.NONE
        return chance.choice(OF_CHANGES) if asked.changes else Fault.CUT

    return faults


def storm(after: int, seconds: float) -> Faults:
    """From the n-th request (from 0) that changes something on, the server refuses everything for some seconds."""
    until: list[float] = []

    def faults(asked: Request) -> Fault:
        if not until and asked.changes and asked.number >= after:
            until.append(time.monotonic() + seconds)
        return Fault.REFUSED_503 if until and time.monotonic() < until[0] else Fault.NONE

    return faults


@dataclass
class FaultProxy:
    """A proxy, what it spoils, and what was asked since the last `restart`."""

    port: int = 0
    faults: Faults = lambda asked: Fault.NONE
    asked: list[Request] = field(default_factory=list)
    spoilt: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def restart(self, faults: Faults = lambda asked: Fault.NONE) -> None:
        """Numbers requests from 0 again."""
        with self._lock:
            self.asked, self.spoilt, self.faults = [], [], faults

    def changes(self) -> int:
        """How many requests that may change something were seen."""
        return sum(asked.changes for asked in self.asked)

    def see(self, method: str, target: str) -> tuple[Request, Spoilt]:
        """Notes a request; what becomes of it."""
        path, _, query = target.partition("?")
        changes = method not in ("GET", "HEAD")
        with self._lock:
            number = sum(asked.changes == changes for asked in self.asked)
            request = Request(method, unquote(path), query, number)
            self.asked.append(request)
            fault = self.faults(request)
            if fault is not Fault.NONE:
                self.spoilt.append(request)
        return request, fault.value


@contextmanager
def fault_proxy(upstream_port: int) -> Iterator[FaultProxy]:
    """A proxy on a free port of this machine before a server on another."""
    found = FaultProxy()
    handler = type("Handler", (_Handler,), {"proxy": found, "upstream_port": upstream_port})
    listening = _Server(("127.0.0.1", 0), handler)
    found.port = listening.server_port
    with serving(listening):
        yield found


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


_NOT_FORWARDED = {"connection", "transfer-encoding", "content-length", "expect"}


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    proxy: FaultProxy
    upstream_port: int

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def setup(self) -> None:
        """One connection to the server for each of a client."""
        super().setup()
        self.upstream = http.client.HTTPConnection("127.0.0.1", self.upstream_port, timeout=120)

    def finish(self) -> None:
        """Both connections end."""
        self.upstream.close()
        super().finish()

    def handle_one(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked, spoilt = self.proxy.see(self.command, self.path)
        time.sleep(spoilt.delay_s)
        if spoilt.page and asked.kind is Kind.LIST:
            self.path += f"&max-keys={spoilt.page}"
        for _ in range(spoilt.times):
            status, headers, data = self._done(body)
        if spoilt.later_s:
            self._answer(200, _INVENTED, _COMPLETED)
            time.sleep(spoilt.later_s)
            self._done(body)
        elif spoilt.status == 0:
            self._end()
        elif spoilt.status is not None:
            self._answer(spoilt.status, _INVENTED, _ERROR.replace(b"Injected", spoilt.code.encode()))
        else:
            self._answer(status, headers, data, spoilt.body)
            if spoilt.is_stale:
                self._end()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def _done(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _NOT_FORWARDED}
        if body or self.command in ("PUT", "POST"):
            headers["Content-Length"] = str(len(body))
        for is_last in (False, True):
            try:
                self.upstream.request(self.command, self.path, body=body or None, headers=headers)
                answer = self.upstream.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()
            except (http.client.RemoteDisconnected, ConnectionError):  # an idle connection was closed by the server
                self.upstream.close()
                if is_last:
                    raise
        raise AssertionError

    def _answer(self, status: int, headers: dict[str, str], data: bytes, body: Body = Body.WHOLE) -> None:
        half = len(data) // 2
        if body is Body.PART and status == 206:
            name = next(name for name in headers if name.lower() == "content-range")
            first, _, size = headers[name].removeprefix("bytes ").replace("/", "-").split("-")
            headers[name], data = f"bytes {first}-{int(first) + half - 1}/{size}", data[:half]
        is_short, is_long = body is Body.SHORT, body is Body.LONG
        self.send_response_only(status)
        length = (
            headers.get("Content-Length", "0") if self.command == "HEAD" else half if is_short or is_long else len(data)
        )
        for name, value in headers.items():
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        is_cut = body in (Body.CUT, Body.RESET)
        if self.command != "HEAD":
            self.wfile.write(data[:half] if is_cut or is_short else data)
        self.wfile.flush()
        if body is Body.RESET:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif is_cut:
            self._end()

    def _end(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


_ERROR = b"<Error><Code>Injected</Code><Message>injected</Message></Error>"
_INVENTED = {"Content-Type": "application/xml", "ETag": f'"{"0" * 32}"'}
_COMPLETED = (
    b"<CompleteMultipartUploadResult><Location>l</Location><Bucket>b</Bucket><Key>k</Key><ETag>x</ETag>"
    b"</CompleteMultipartUploadResult>"
)


@pytest.fixture
def faulty_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the server, which the environment names."""
    with fault_proxy(s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy
