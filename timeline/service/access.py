"""Which requests are allowed (pure).

    /healthz, /readyz         all
    Hudi's routes             from this machine and the networks of `--hudi-clients`: Hudi's clients cannot send a token
    pages, JSON, /metrics     with the token, if there is one; without one the service listens on this machine only
    actions                   with the token; from a page only by a form that was made for that login

Other sites can attack through a browser: their page may send requests to this address, or give the address a name of
theirs (DNS rebinding). So a `Host` that is a name must be a known one, and an `Origin` must be this service."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from ..errors import UsageError

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
