"""Shared by the service's applications: parses requests, encodes and compresses answers, sends errors; and which
requests are allowed:

    /healthz, /readyz         all
    Hudi's routes             from this machine and the networks of `--hudi-clients`: Hudi's clients cannot send a token
    pages, JSON, /metrics     with the token, if there is one; without one the service listens on this machine only
    actions                   with the token; from a page only by a form that was made for that login

Other sites can attack through a browser: their page may send requests to this address, or give the address a name of
theirs (DNS rebinding). So a `Host` that is a name must be a known one, and an `Origin` must be this service."""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
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


Network: TypeAlias = IPv4Network | IPv6Network
COOKIE = "phantombase"
SESSION_S = 12 * 3600
_KEPT = 1024
_LOCAL_NAMES = frozenset({"localhost"})
_TOKEN_LEAST = 16
_LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@dataclass(frozen=True, kw_only=True)
class Access:
    """`host`: the address to listen on. `names`: of this machine, as clients use them. UsageError: no token with an
    address beyond this machine, a token that can be guessed, an invalid network."""

    host: str = "127.0.0.1"
    token: str | None = None
    hudi_clients: Sequence[str] = ()
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.token is not None and (len(self.token) < _TOKEN_LEAST or not self.token.isprintable()):
            raise UsageError("the token is too short", expected=f"at least {_TOKEN_LEAST} printable characters")
        if self.token is None and not self.is_local:
            what = "an address beyond this machine needs a token"
            raise UsageError(what, found=self.host, todo="Give --token-file, or listen on 127.0.0.1.")
        _ = self._networks

    @cached_property
    def is_local(self) -> bool:
        """Whether only processes of this machine reach it."""
        return self.host in _LOCAL_NAMES or _is_in(self.host, _LOOPBACK)

    @cached_property
    def _networks(self) -> tuple[Network, ...]:
        try:
            return (*_LOOPBACK, *map(ip_network, self.hudi_clients))
        except ValueError as error:
            what = "not a network for --hudi-clients"
            raise UsageError(what, expected="such as 10.0.0.0/8", found=str(error)) from error

    @cached_property
    def _names(self) -> frozenset[str]:
        return _LOCAL_NAMES | {name.lower() for name in self.names}

    def is_hudi_client(self, client: str | None) -> bool:
        return client is not None and self._is_known_address(client)

    @cached_property
    def _is_known_address(self) -> Callable[[str], bool]:
        return lru_cache(_KEPT)(lambda client: _is_in(client, self._networks))

    @cached_property
    def _is_known_host(self) -> Callable[[bytes], bool]:
        return lru_cache(_KEPT)(self._has_host)

    def _has_host(self, host: bytes) -> bool:
        name = _without_port(host.decode("latin-1"))
        is_address = _is_in(name, _LOOPBACK) if self.is_local else _address(name) is not None
        return is_address or name.lower() in self._names

    def refusal(self, headers: Mapping[bytes, bytes]) -> str:
        """Why a request is refused that another site may have made a browser send; "" if it is allowed."""
        host = headers.get(b"host", b"")
        if not self._is_known_host(host):
            return f"the Host header is {host.decode('latin-1')!r}, which is no name of this service (--name adds one)"
        origin = headers.get(b"origin")
        if origin is not None and origin not in (b"http://" + host, b"https://" + host):
            return "requests of pages of other sites (with another Origin header) are not answered"
        return ""

    def may_look(self, headers: Mapping[bytes, bytes], now_s: float) -> bool:
        """Whether a request has the token, or the cookie of a login."""
        if self.token is None:
            return True
        bearer = _bearer(headers)
        return self._is_session(_cookie(headers), now_s) if bearer is None else self.is_token(bearer)

    def order_refusal(self, headers: Mapping[bytes, bytes], proof: str, now_s: float) -> str:
        """Why a request that changes something is refused; "" if it is allowed. A browser adds the cookie by itself, so
        a page of another site could make the person's browser send it: the form must have `proof`, which only a page of
        that login has, and come from this service. A program's token suffices."""
        if (bearer := _bearer(headers)) is not None:
            return "" if self.is_token(bearer) else "this is not the token"
        if not self._is_session(_cookie(headers), now_s):
            return "this needs a login"
        if headers.get(b"origin") is None or headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
            return "only forms of this service's own pages are answered"
        if not hmac.compare_digest(proof.encode(), self.proof(headers).encode()):
            return "the form is not of this login; load the page again"
        return ""

    def proof(self, headers: Mapping[bytes, bytes]) -> str:
        """The field by which a form of a page shows that it was made for this login."""
        return self._signed(f"form {_cookie(headers)}")

    def is_token(self, given: str) -> bool:
        """Whether `given` is the token; takes the same time for every wrong one."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def session(self, now_s: float) -> str:
        """The cookie of a login. It contains its expiry, so the service stores none."""
        until = str(int(now_s) + SESSION_S)
        return f"{until}.{self._signed(f'session {until}')}"

    def _is_session(self, cookie: str, now_s: float) -> bool:
        until, _, signature = cookie.partition(".")
        signed = hmac.compare_digest(signature.encode(), self._signed(f"session {until}").encode())
        return signed and until.isascii() and until.isdigit() and now_s < int(until)

    def _signed(self, text: str) -> str:
        return hmac.new(str(self.token).encode(), text.encode(), sha256).hexdigest()


def _bearer(headers: Mapping[bytes, bytes]) -> str | None:
    kind, _, given = headers.get(b"authorization", b"").partition(b" ")
    return given.strip().decode("latin-1") if kind.lower() == b"bearer" else None


def _cookie(headers: Mapping[bytes, bytes]) -> str:
    try:
        found = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    return found[COOKIE].value if COOKIE in found else ""


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] or host if host.count(":") == 1 else host


def _address(text: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(text)
    return None


def _is_in(text: str, networks: Sequence[Network]) -> bool:
    address = _address(text)
    found = getattr(address, "ipv4_mapped", None) or address
    return found is not None and any(found in network for network in networks)
