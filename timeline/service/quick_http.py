"""HTTP/1.1 by httptools, with bounds, and a fast path for repeated requests of Hudi's clients.

httptools sets no bounds; here the request line, headers, body, and their time are bounded.

Repeated requests are answered as they are read: no task, no scope, no parameters. That takes less than half the
processor time. uvicorn handles all other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .asgi import MAX_QUERY_BYTES, PLAIN, Answer, coded, headers_for

_LINE_BYTES_MAX = MAX_QUERY_BYTES + (4 << 10)
_HEADERS_BYTES_MAX = 32 << 10
_BODY_BYTES_MAX = 64 << 10
"""Routes take at most a short form; Hudi's clients send no body."""
_REQUEST_S = 30.0


class _TooLongError(Exception):
    """A request that is too long to be read to its end."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. A too long request line gets 414, headers 431, a body 413; a late request is cut off."""

    _refusal = (400, "")
    _header_bytes = _body_bytes = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._body_bytes = 0
        self._wait()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > _LINE_BYTES_MAX:
            self._refuse(414, f"the request line is longer than {_LINE_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _HEADERS_BYTES_MAX:
            self._refuse(431, f"the headers have more than {_HEADERS_BYTES_MAX} bytes")
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > _BODY_BYTES_MAX:
            self._refuse(413, f"the body is longer than {_BODY_BYTES_MAX} bytes")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._came()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        status, reason = self._refusal
        if self._body_bytes and self.cycle is not None and self.cycle.response_started:
            self.transport.close()
            return
        if status == 400:
            super().send_400_response(msg)
            return
        body = reason.encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (status, _PHRASES[status], len(body), body)
        )
        self.transport.close()

    def _refuse(self, status: int, reason: str) -> None:
        self._refusal = (status, reason)
        raise _TooLongError

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _came(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


_PHRASES = {413: b"Content Too Large", 414: b"URI Too Long", 431: b"Request Header Fields Too Large"}
_UNDERSTOOD = frozenset({b"host", b"connection", b"user-agent", b"accept", b"accept-encoding"})
"""Headers of Hudi's clients. Others may mean anything: a body, a proxy before the service, a page of another site."""


class Repeating(Protocol):
    """An application that keeps its earlier answers."""

    def repeated(self, target: bytes, given: Mapping[bytes, bytes], client: str | None) -> Answer | None:
        """The answer to a GET, if it is still valid and allowed for this client with the `given` headers."""


class QuickHttp(BoundedHttp):
    _answered = False

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._repeating = cast(Repeating, self.config.app)

    def on_headers_complete(self) -> None:
        self._answered = self._answer()
        if not self._answered:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._answered:
            self._came()
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _answer(self) -> bool:
        """Answers the request if it can, but not before earlier ones of this connection; whether it did."""
        is_first = self.cycle is None or self.cycle.response_complete
        if not is_first or self.flow.write_paused or not self._is_plain_get():
            return False
        given = dict(self.headers)
        answer = self._repeating.repeated(self.url, given, self.client[0] if self.client else None)
        if answer is None or not _UNDERSTOOD.issuperset(given):
            return False
        body, how = coded(given, answer)
        headers = (*self.server_state.default_headers, *headers_for(body, PLAIN, how))
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"HTTP/1.1 200 OK\r\n%s\r\n%s" % (lines, body))
        return True

    def _is_plain_get(self) -> bool:
        parser = self.parser
        return parser.get_method() == b"GET" and parser.get_http_version() == "1.1" and parser.should_keep_alive()
