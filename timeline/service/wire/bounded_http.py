"""HTTP/1.1 by httptools, which bounds nothing itself: the request line, headers, body, and the time they may take."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .asgi import MAX_QUERY_BYTES

_LINE_BYTES_MAX = MAX_QUERY_BYTES + (4 << 10)
_HEADERS_BYTES_MAX = 32 << 10
_BODY_BYTES_MAX = 64 << 10
"""No route takes more than a short form; Hudi's clients send none."""
_REQUEST_S = 30.0


class _TooLongError(Exception):
    """A request that is not read to its end."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. A request line that is too long gets 414, headers 431, a body 413; what does not come in time is
    cut off.
    """

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
