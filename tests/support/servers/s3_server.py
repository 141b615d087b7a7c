"""An honest S3 server in this process: moto, whose changing requests run one at a time: check and write are one step.

`faults` sees each request: what it says happens to the answer of one that has taken effect, or instead of it."""

from __future__ import annotations

import io
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.support.compaction_steps import serving
from tests.support.places import NO_AUTHORITY


class Fault(Enum):
    """What becomes of a request."""

    NONE = "it is answered"
    LOST = "it takes effect, and the answer is an error of the server"
    CUT = "it takes effect, and the connection ends"
    SLOW_DOWN = "it is refused: too many requests"
    CONFLICT = "it is refused: another one for this object is under way"


@dataclass(frozen=True)
class Asked:
    """A request as faults see it."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in ("GET", "HEAD")


@dataclass
class S3Server:
    """A server, and what is asked of it."""

    port: int = 0
    faults: Callable[[Asked], Fault] = lambda asked: Fault.NONE
    asked: list[Asked] = field(default_factory=list)
    ignored: frozenset[str] = frozenset()
    """Headers that are taken away, as by a server that knows nothing of them."""
    ignored_at: Callable[[Asked], bool] = lambda asked: True

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def new_bucket(self) -> str:
        """An empty one."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        self.put(name)
        return name

    def forget(self) -> None:
        """All buckets and objects. moto keeps each object that ever was, also one that was replaced or deleted."""
        from moto.s3.models import FakeKey, FakeMultipart, s3_backends

        for account in list(s3_backends.values()):
            for backend in list(account.values()):
                backend.reset()
        for model in (FakeKey, FakeMultipart):
            vars(model)["instances_tracked"].clear()

    def put(self, key: str, data: bytes | None = None) -> None:
        """Puts an object, or makes a bucket, as another client would."""
        kind = {"Content-Type": "application/octet-stream"}
        urlopen(Request(f"{self.url}/{quote(key)}", data=data, method="PUT", headers=kind)).close()

    def upload(self, folder: Path, bucket: str, prefix: str) -> str:
        """A folder's files below a prefix of a bucket, past HTTP; returns its URL."""
        from moto.s3.models import s3_backends

        partition, account = s3_backends.bucket_accounts[bucket]
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".crc":
                key = f"{prefix}/{path.relative_to(folder).as_posix()}"
                s3_backends[account][partition].put_object(bucket, key, path.read_bytes())
        return f"s3://{bucket}/{prefix}"

    def counts(self) -> Counter[str]:
        """Requests by method."""
        return Counter(asked.method for asked in self.asked)

    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            **NO_AUTHORITY,
        }


class _Application:
    """moto's S3 behind one lock, and behind the faults."""

    def __init__(self, server: S3Server) -> None:
        from moto.core import serialize
        from moto.moto_server.werkzeug_app import create_backend_app

        # A third of the time of a listing: the same times are parsed again and again.
        parse = vars(serialize)["parse_to_aware_datetime"]
        if not hasattr(parse, "cache_info"):
            vars(serialize)["parse_to_aware_datetime"] = lru_cache(maxsize=4096)(parse)
        self._moto, self._server, self._lock = create_backend_app("s3"), server, threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        headers = {k[5:].lower().replace("_", "-"): v for k, v in environ.items() if k.startswith("HTTP_")}
        asked = Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""), headers)
        self._server.asked.append(asked)
        fault = self._server.faults(asked)
        for header in self._server.ignored if self._server.ignored_at(asked) else ():
            environ.pop(f"HTTP_{header.upper().replace('-', '_')}", None)
        # The body is read outside the lock.
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        if fault is Fault.SLOW_DOWN:
            return _refused(start, "503 Slow Down", "SlowDown")
        if fault is Fault.CONFLICT:
            return _refused(start, "409 Conflict", "ConditionalRequestConflict")
        if fault is Fault.NONE:
            return self._done(environ, start)
        self._done(environ, lambda *_: None)
        if fault is Fault.CUT:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return _refused(start, "500 Internal Server Error", "InternalError")

    def _done(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._moto(environ, start)
        with self._lock:
            return list(self._moto(environ, start))


def _refused(start: Callable[..., Any], status: str, code: str) -> list[bytes]:
    body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port of this machine."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: Any) -> None: ...

    found = S3Server()
    listening = make_server("127.0.0.1", 0, _Application(found), threaded=True, request_handler=Quiet)
    found.port = listening.server_port
    with serving(listening):
        yield found


@pytest.fixture(scope="session")
def shared_s3() -> Iterator[S3Server]:
    """One server for all tests of a process."""
    pytest.importorskip("moto")
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(shared_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server without faults, which the environment names."""
    for name, value in shared_s3.environment().items():
        monkeypatch.setenv(name, value)
    shared_s3.asked.clear()
    yield shared_s3
    shared_s3.forget()
    shared_s3.faults, shared_s3.ignored = (lambda asked: Fault.NONE), frozenset()
    shared_s3.ignored_at = lambda asked: True
