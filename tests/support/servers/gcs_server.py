"""A stand-in for Google Cloud Storage: the requests of its XML API that obstore sends, as Google's pages describe them.

No judge: it shows that what is sent has the meaning that is meant. No emulator known here speaks this part of the API:
fake-gcs-server answers each PUT of an object by 400 (tried), Google's own storage-testbench puts and gets objects by
XML, but neither lists nor copies them, nor keeps their metadata (read in its source)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.support.compaction_steps import serving
from tests.support.places import NO_AUTHORITY


@dataclass
class GcsServer:
    """A server, its objects by bucket/key as (data, headers), and what was asked of it."""

    port: int = 0
    objects: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    ignored: frozenset[str] = frozenset()
    lock: Any = field(default_factory=threading.Lock)
    generations: Any = field(default_factory=lambda: count(1_700_000_000_000_000))

    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        base = {"GOOGLE_BASE_URL": f"http://127.0.0.1:{self.port}", "GOOGLE_ALLOW_HTTP": "true"}
        return {**base, "GOOGLE_BEARER_TOKEN": "tests", **NO_AUTHORITY}

    def put(self, name: str, data: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Puts an object unless its condition fails: the generation that is there, 0 for none."""
        there = self.objects.get(name, (b"", {"x-goog-generation": "0"}))[1]["x-goog-generation"]
        wanted = headers.get("x-goog-if-generation-match", there)
        if wanted != there and "x-goog-if-generation-match" not in self.ignored:
            return 412, {}
        kept = {key: value for key, value in headers.items() if key.startswith("x-goog-meta-")}
        generation = str(next(self.generations))
        own = {
            "ETag": f'"{uuid.uuid4().hex}"',
            "x-goog-generation": generation,
            "Last-Modified": formatdate(usegmt=True),
        }
        self.objects[name] = data, {**kept, **own}
        return 200, own

    def listing(self, bucket: str, asked: dict[str, str]) -> bytes:
        """Keys below a prefix, and with a delimiter the folders of the next ones."""
        prefix, cut = asked.get("prefix", ""), asked.get("delimiter")
        keys = sorted(k.removeprefix(f"{bucket}/") for k in self.objects if k.startswith(f"{bucket}/{prefix}"))
        folders = {prefix + k[len(prefix) :].split("/")[0] + "/" for k in keys if cut and "/" in k[len(prefix) :]}
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{escape(headers['ETag'])}</ETag>"
            f"<LastModified>{parsedate_to_datetime(headers['Last-Modified']):%FT%TZ}</LastModified></Contents>"
            for key in keys
            if not (cut and "/" in key[len(prefix) :])
            for data, headers in [self.objects[f"{bucket}/{key}"]]
        )
        above = "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        return f"<ListBucketResult>{rows}{above}</ListBucketResult>".encode()

    def answer(self, method: str, path: str, asked: dict[str, str], headers: dict[str, str], body: bytes) -> Any:
        """Status, headers and content."""
        if "/" not in path.strip("/"):
            return 200, {}, self.listing(path.strip("/"), asked)
        name, upload = path.strip("/"), asked.get("uploadId", "")
        if method in ("GET", "HEAD"):
            return (200, self.objects[name][1], self.objects[name][0]) if name in self.objects else (404, {}, b"")
        if method == "DELETE":
            return (204 if (self.parts if upload else self.objects).pop(upload or name, None) else 404), {}, b""
        if "uploads" in asked:
            self.parts[upload := uuid.uuid4().hex] = {}
            return 200, {}, f"<R><Bucket/><Key/><UploadId>{upload}</UploadId></R>".encode()
        if "partNumber" in asked:
            self.parts[upload][int(asked["partNumber"])] = body
            return 200, {"ETag": f'"{len(body)}"'}, b""
        if upload:
            whole = b"".join(data for _, data in sorted(self.parts.pop(upload).items()))
            status, own = self.put(name, whole, headers)
            return status, own, b"<R><ETag>&quot;x&quot;</ETag></R>"
        if source := unquote(headers.get("x-goog-copy-source", "")).strip("/"):
            if source not in self.objects:
                return 404, {}, b""
            body = self.objects[source][0]
        return *self.put(name, body, headers), b""


@contextmanager
def gcs_server() -> Iterator[GcsServer]:
    """A server on a free port of this machine."""
    found = GcsServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            parts = urlsplit(self.path)
            asked = {key: value[0] for key, value in parse_qs(parts.query, keep_blank_values=True).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            with found.lock:
                found.asked.append((self.command, unquote(parts.path), headers))
                status, own, data = found.answer(self.command, unquote(parts.path), asked, headers, body)
            if status == 200 and (wanted := headers.get("range")):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                own = {**own, "Content-Range": f"bytes {first}-{last}/{len(data)}"}
                status, data = 206, data[int(first) : int(last) + 1]
            self.send_response(status)
            for name, value in {**own, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do

        def log_message(self, *_: Any) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    found.port = listening.server_port
    with serving(listening):
        yield found


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server that the environment names."""
    with gcs_server() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
