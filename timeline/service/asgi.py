"""Shared by the service's applications: parses requests, encodes and compresses answers, sends errors."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from threading import Lock
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import orjson

from ..errors import NotATableError, PhantombaseError, TableChangedError, UnsupportedError, UsageError
from ..event_log import get_logger

GZIP_FROM_BYTES = 1500
"""From this size on Hudi's server compresses an answer."""
_GZIP_LEVEL = 1
"""A tenth of the time of level 6, and a quarter more bytes."""
_OVERHEAD_BYTES = 500
"""Approximate memory of an answer besides its bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """JSON bytes; of a large answer the compressed form only."""

    body: bytes
    compressed: bool

    def plain(self) -> bytes:
        return gzip.decompress(self.body) if self.compressed else self.body


def encoded(value: object) -> Answer:
    try:
        body = orjson.dumps(value)
    except TypeError:  # a path that is not UTF-8
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    if len(body) < GZIP_FROM_BYTES:
        return Answer(body, compressed=False)
    return Answer(gzip.compress(body, _GZIP_LEVEL, mtime=0), compressed=True)


class AnswerCache:
    """Answers by key, at most `max_bytes`; the least recently used are removed first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> Answer | None:
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def keep(self, key: Hashable, answer: Answer) -> None:
        with self._lock:
            if key not in self._answers:
                self._answers[key] = answer
                self._bytes += len(answer.body) + _OVERHEAD_BYTES
            while self._bytes > self._max_bytes and self._answers:
                self._bytes -= len(self._answers.popitem(last=False)[1].body) + _OVERHEAD_BYTES


Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
MAX_QUERY_BYTES = 64 << 10
"""Longest query string. In some routes it names hundreds of instants or partitions."""
PLAIN = b"text/plain;charset=utf-8"
"""The content type of errors; Hudi's servers give it to their JSON, too."""
_ALWAYS = ((b"x-content-type-options", b"nosniff"),)
_FIELDS_MAX = 64
_FORM_BYTES, _FORM_S = 4 << 10, 10.0
_log = get_logger()


class Refused(Exception):
    """A refused request; the answer is an HTTP status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class BehindError(Exception):
    """The client's timeline is not the table's; the text is for the client."""


class UnknownTableError(Exception):
    """No such table is served."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers of a request by their names in lower case; of a repeated one the last counts."""
    return dict(scope["headers"])


async def form_of(receive: Receive) -> bytes:
    """The body of a form, for `own_parameters`. Refused: it is too long, or takes too long."""
    body, more = b"", True
    try:
        async with asyncio.timeout(_FORM_S):
            while more:
                message = await receive()
                body, more = body + message.get("body", b""), message.get("more_body", False)
                if len(body) > _FORM_BYTES:
                    raise Refused(413, f"the form is longer than {_FORM_BYTES} bytes")
    except TimeoutError:
        raise Refused(408, f"the form did not come in {_FORM_S:g} s") from None
    return body


def parameters(query: bytes) -> dict[str, str]:
    """The parameters of a request to Hudi's routes; of a repeated one the first counts, as on Hudi's server. Any name
    is accepted: Hudi's server looks up the names that it knows, so a newer client may send further ones. Refused,
    UsageError: too long, or not encoded as a form."""
    found: dict[str, str] = {}
    for name, value in _pairs(query):
        found.setdefault(name, value)
    return found


def own_parameters(query: bytes, *names: str) -> dict[str, str]:
    """The parameters of a query string or form for pages, their JSON and metrics, which take these names alone.
    Refused: as `parameters`. UsageError: as there; another name, or a name that is given twice."""
    found: dict[str, str] = {}
    for name, value in _pairs(query):
        if name not in names:
            close = get_close_matches(name.lower(), names, 1)
            todo = f"Did you mean {close[0]}?" if close else "Leave it out."
            raise UsageError("unknown parameter", expected=", ".join(names) or "none", found=repr(name), todo=todo)
        if name in found:
            raise UsageError("a parameter is given twice", found=repr(name), todo="Give it once.")
        found[name] = value
    return found


def _pairs(query: bytes) -> list[tuple[str, str]]:
    if len(query) > MAX_QUERY_BYTES:
        raise Refused(414, f"the query string has {len(query)} bytes; at most {MAX_QUERY_BYTES} are read")
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise UsageError("not a query string", expected="UTF-8, percent-encoded", found=str(error)) from error


async def send_bytes(
    send: Send, body: bytes, kind: bytes, headers: Sequence[tuple[bytes, bytes]] = (), *, status: int = 200
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers_for(body, kind, headers)})
    await send({"type": "http.response.body", "body": body})


async def send_error(scope: Scope, send: Send, error: Exception) -> None:
    """Answers with the status and the reason of an error; those of the service itself are logged."""
    status, reason = status_of(error)
    if status >= 500:
        _log.error("request failed", path=scope["path"], reason=reason, exc_info=error)
    await send_text(send, status, reason)


def status_of(error: Exception) -> tuple[int, str]:
    match error:
        case Refused():
            return error.status, str(error)
        case UnknownTableError() | NotATableError() | UnsupportedError():  # a REMOTE_FIRST client continues by itself
            return 404, str(error)
        case UsageError() | BehindError():
            return 400, str(error)
        case TableChangedError():
            return 503, str(error)
        case PhantombaseError():
            return 500, str(error)
        case _:
            return 500, f"internal error: {type(error).__name__}"


async def send_text(send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    await send_bytes(send, text.encode("utf-8", "replace"), PLAIN, headers, status=status)


async def send_answer(scope: Scope, send: Send, answer: Answer, kind: bytes = PLAIN) -> None:
    body, headers = coded(headers_of(scope), answer)
    await send_bytes(send, body, kind, headers)


def coded(given: Mapping[bytes, bytes], answer: Answer) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body in a coding that the client accepts, and the header of that coding."""
    if not answer.compressed:
        return answer.body, []
    if b"gzip" in given.get(b"accept-encoding", b""):
        return answer.body, [(b"content-encoding", b"gzip")]
    return answer.plain(), []


def headers_for(body: bytes, kind: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """The headers of an answer with this body; `headers`: further ones."""
    return [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *_ALWAYS, *headers]
