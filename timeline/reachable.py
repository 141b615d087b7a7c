"""Whether any of several servers takes a connection, and if not, why: unknown host, refused, no answer. What a process
waits for is said after two seconds."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

from .event_log import NAME, get_logger

_WAIT_S = 3.0


def is_port(text: str) -> bool:
    """Whether a text is the number of a port."""
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) <= 65535


def is_server_url(text: str) -> bool:
    """Whether a text is `http[s]://HOST[:PORT]`, with or without a path."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def why_unreachable(servers: Sequence[str], port: int) -> str | None:
    """Why none of the servers `HOST[:PORT]` takes a connection; None: one does. `port`: where none is named."""
    problems = []
    for server in servers:
        with waiting(f"waiting for {server}"):
            problem = _problem(server, port)
        if problem is None:
            return None
        problems.append(f"{server}: {problem}")
    return "; ".join(problems)


def _problem(server: str, port: int) -> str | None:
    name, _, named = server.rpartition(":")
    host, at = (name.strip("[]"), named) if name else (server, str(port))
    try:
        with socket.create_connection((host, int(at)), _WAIT_S):
            return None
    except socket.gaierror:
        return "unknown host"
    except ConnectionRefusedError:
        return "connection refused, no process listens there"
    except TimeoutError:
        return f"no answer within {_WAIT_S:g} s"
    except (OSError, ValueError, OverflowError) as error:
        return str(error)


SILENT_S = 2.0
"""So long a wait needs no word."""
_EVERY_S = 0.25
_log = get_logger()


@dataclass(slots=True, eq=False)
class _Wait:
    what: str
    since: float = field(default_factory=time.monotonic)
    logged: bool = False
    line: bool = False

    def __enter__(self) -> None:
        _teller.begin(self)

    def __exit__(self, *raised: object) -> None:
        _teller.end(self)


class _Teller:
    """One thread of this process, which looks at all that is waited for."""

    def __init__(self) -> None:
        """Also in a forked process: the waits, and who holds the lock, are threads of the other process."""
        self._lock = Lock()
        self._waits: list[_Wait] = []
        self._some = Event()
        self._thread: Thread | None = None

    def begin(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.append(wait)
            if len(self._waits) == 1:
                self._some.set()
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="phantombase-waiting", daemon=True)
                self._thread.start()

    def end(self, wait: _Wait) -> None:
        with self._lock:
            if wait in self._waits:  # not where the body forked
                self._waits.remove(wait)
            if not self._waits:
                self._some.clear()
            if wait.line:
                _print("")

    def _run(self) -> None:
        shown = ""
        while True:
            self._some.wait()
            time.sleep(_EVERY_S)
            with self._lock:
                late = [one for one in self._waits if time.monotonic() - one.since >= SILENT_S]
                for one in late:
                    if not one.logged:
                        one.logged = True
                        _log.info("waiting", what=one.what)
                if late and sys.stderr.isatty() and not logging.getLogger(NAME).isEnabledFor(logging.INFO):
                    late[0].line = True
                    line = f"{late[0].what}: {int(time.monotonic() - late[0].since)} s"
                    if line != shown:
                        _print(shown := line)


def _print(line: str) -> None:
    print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)


_teller = _Teller()
os.register_at_fork(after_in_child=_teller.__init__)  # type: ignore[misc]


def waiting(what: str) -> AbstractContextManager[None]:
    """For what may take long and shows no progress, such as a server that does not answer. After two seconds it is
    logged (`waiting`, info). Where that is not printed, and stderr is a terminal, a line shows `what` and the seconds
    until the end; then it is gone. Cheap: each request of a store is one."""
    return _Wait(what)
