"""Connections to ZooKeeper: their credentials, how they are made, and what their errors mean.

Credentials (TLS, digest, SASL) follow the hosts and the path, as in a URL. Locks, claims and doorbells share them:

    zk1:2181,zk2:2181/path?ca=/etc/zk/ca.pem&cert=/etc/zk/me.pem&key=/etc/zk/me.key
    zk1:2181/path?digest-file=/etc/zk/digest
    zk1:2181/path?sasl=DIGEST-MD5&sasl-file=/etc/zk/user         or sasl=GSSAPI: Kerberos, by the ticket of the process

The text names files, and secrets are read from them when a connection is made: the text can be logged and recorded.

Where a server closes a session that lacks the right user, an exception ends kazoo's thread, which never connects again.
Calls are not answered then, so a wait for an answer (`answer`) checks whether the connection has ended."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote

from ..errors import UsageError, reason_of
from ..event_log import get_logger
from ..shown import Shown

_log = get_logger()
_FIELDS = {name: name.replace("-", "_") for name in ("ca", "cert", "key", "digest-file", "sasl", "sasl-file")}
MECHANISMS = ("GSSAPI", "DIGEST-MD5")
_SERVICE = "zookeeper"
"""The name of ZooKeeper's principal, which is also its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperAccess(Shown):
    """Credentials for ZooKeeper. `ca`, `cert`, `key`: PEM files; any of them turns TLS on. `digest_file`, `sasl_file`:
    USER:PASSWORD. UsageError: a file does not exist, or only one of two settings that belong together is given."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    digest_file: str | None = None
    sasl: str | None = None
    sasl_file: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UsageError("a client certificate needs its key", expected="certificate and key together")
        for file in (self.ca, self.cert, self.key):
            if file is not None and not os.path.isfile(file):
                raise UsageError(
                    "a file for TLS does not exist", path=file, todo="Name a file that this process can read."
                )
        if self.sasl is not None and self.sasl not in MECHANISMS:
            raise UsageError("unknown SASL mechanism", expected=" or ".join(MECHANISMS), found=self.sasl)
        if (self.sasl == "DIGEST-MD5") != (self.sasl_file is not None):
            raise UsageError(
                "DIGEST-MD5 needs a user and a password", expected="sasl=DIGEST-MD5 and sasl-file together"
            )
        for file in (self.digest_file, self.sasl_file):
            if file is not None:
                _user_and_password(file)
                _warn_if_open(file)

    @property
    def is_given(self) -> bool:
        return self != ZooKeeperAccess()

    @property
    def query(self) -> str:
        """The text after hosts and path, with `?` in front; empty without credentials."""
        given = [(name, value) for name, field in _FIELDS.items() if (value := getattr(self, field)) is not None]
        return "?" + "&".join(f"{name}={quote(value, safe='/')}" for name, value in given) if given else ""

    def client_options(self) -> dict[str, Any]:
        """Arguments of KazooClient."""
        from kazoo.security import make_digest_acl  # late: few processes need it

        found: dict[str, Any] = {}
        if self.digest_file is not None:
            user, password = _user_and_password(self.digest_file)
            found["auth_data"] = [("digest", f"{user}:{password}")]
            found["default_acl"] = [make_digest_acl(user, password, all=True)]
        if self.ca is not None or self.cert is not None:
            found |= {"use_ssl": True, "ca": self.ca, "certfile": self.cert, "keyfile": self.key}
        if self.sasl is not None:
            _check_sasl()
            found["sasl_options"] = {"mechanism": self.sasl, "service": _SERVICE}
        if self.sasl_file is not None:
            user, password = _user_and_password(self.sasl_file)
            found["sasl_options"] |= {"username": user, "password": password}
        return found


def with_access(text: str) -> tuple[str, ZooKeeperAccess]:
    """Hosts and path, and the access after them. UsageError: the access has an unknown name, or is unusable."""
    before, _, query = text.partition("?")
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _FIELDS:
            raise UsageError("no part of the access to ZooKeeper", expected=", ".join(_FIELDS), found=name)
        found[_FIELDS[name]] = value
    return before, ZooKeeperAccess(**found)


def _user_and_password(file: str) -> tuple[str, str]:
    try:
        with open(file) as opened:
            user, _, password = opened.read().strip().partition(":")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the file cannot be read",
            path=file,
            found=reason_of(error),
            todo="Check its path, and that this user may read it.",
        ) from error
    if not user or not password:
        raise UsageError("not a user and a password", path=file, expected="USER:PASSWORD")
    return user, password


@cache
def _warn_if_open(file: str) -> None:
    """Warns once for each file whose password every user of this machine can read."""
    if os.stat(file).st_mode & stat.S_IROTH:
        _log.warning(
            "password_is_readable", path=file, expected="a file that other users cannot read", todo="chmod o-r"
        )


def _check_sasl() -> None:
    try:
        import puresasl  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "SASL needs the package pure-sasl",
            todo="pip install 'phantombase[sasl]' adds it: logins at ZooKeeper by SASL.",
        ) from error


NO_SESSION = "a server that takes connections, but no session"
CHECK_SESSION = "Check that TLS is used on both sides or on none, its certificates, and the user of SASL."
SAME_ACCESS = "All that share the lock need the same digest, or user of SASL."


def connection(
    hosts: str,
    access: ZooKeeperAccess,
    session_s: float,
    most_delay_s: float = 1.0,
    on_end: Callable[[], None] = lambda: None,
) -> Any:
    """A client of these servers, not started yet. `on_end`: called when a server refuses its user."""
    from kazoo.client import KazooClient  # late: the import is slow, and few processes need it

    log = logging.getLogger("kazoo.client.phantombase")
    log.setLevel(logging.CRITICAL)  # no warnings for each attempt to connect: the final error reports it once
    return KazooClient(
        hosts=hosts,
        timeout=session_s,
        connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": most_delay_s},
        handler=_handler(on_end),
        logger=log,
        **access.client_options(),
    )


def _handler(on_end: Callable[[], None]) -> Any:
    """kazoo's handler, whose threads end without a trace on the terminal. `ended`: the error that ended the connection.
    `on_end`: called then, in the handler's thread."""
    from kazoo.exceptions import KazooException
    from kazoo.handlers.threading import SequentialThreadingHandler

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]
        ended: Exception | None = None

        def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
            def run() -> None:
                try:
                    func(*args, **kwargs)
                except KazooException as error:
                    self.ended = error
                    on_end()

            return super().spawn(run)

    return Handler()


_LOOK_S = 0.1


def answer(client: Any, asked: Any, timeout_s: float) -> Any:
    """The answer to a call, or its error; the error that ended the connection at once; else the handler's timeout."""
    handler, until = client.handler, time.monotonic() + timeout_s
    while not asked.ready() and handler.ended is None and (left := until - time.monotonic()) > 0:
        asked.wait(min(left, _LOOK_S))
    if handler.ended is not None and not asked.ready():
        raise handler.ended
    return asked.get(timeout=max(0.0, until - time.monotonic()))


def is_over(client: Any) -> bool:
    """Whether a client that was not closed has ended for good: a server refused its user."""
    from kazoo.protocol.states import KeeperState

    return client.handler.ended is not None or client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)


def is_refusal(error: Exception) -> bool:
    """Whether ZooKeeper refuses access: it sees another user than the right one, or none."""
    from kazoo.exceptions import AuthFailedError, InvalidACLError, NoAuthError, SessionClosedRequireSaslError

    return isinstance(error, NoAuthError | AuthFailedError | InvalidACLError | SessionClosedRequireSaslError)
