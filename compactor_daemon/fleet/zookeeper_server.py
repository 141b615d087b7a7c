"""A ZooKeeper server for the daemons of one machine: `compactor-daemon run --zookeeper embedded`.

    ~/.local/share/phantombase/zookeeper/     $XDG_DATA_HOME in place of ~/.local/share; no table needs it
      lock          held (flock) by the server process itself, as long as it lives
      port          of 127.0.0.1; the same at every start, unless another program has taken it since then
      data/         snapshots and transactions
      zoo.cfg  server.log

Each folder has one server. The first daemon starts it, others join it. When the daemon that started it ends, the server
ends too; then one of the other daemons, which all try to get the lock, starts it again on the same port and data.
Sessions are on disk, so clients that reconnect in time keep their sessions and claims: the daemons of one machine are a
fleet although each may end at any time.

The server is a child process of the daemon, from the jars that PySpark brings:

    sh, which becomes the server (exec): its process id is the server's
    └── sh, the guard: waits for the end of a pipe that only the daemon holds open, then kills its process group

So the server ends with the daemon, even if the daemon ends by SIGKILL. The pipe is used instead of PR_SET_PDEATHSIG
because every POSIX system has pipes, and because that signal comes at the end of the *thread* that started the child.
The guard kills its own process group, which exists as long as the guard, and not a process id, which another process
may have got since then. The server has a session of its own, so a terminal's Ctrl-C does not reach it before the daemon
has finished."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from phantombase.timeline.errors import ZooKeeperError, reason_of
from phantombase.timeline.event_log import get_logger

from ..jvm_archive import require_pyspark, spark_jars, spark_java

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = ("zookeeper", "netty", "slf4j-api", "log4j", "metrics-core", "snappy", "commons-cli", "commons-io")
"""The jars it needs, of PySpark's 280: with all of them it takes twice the time to start, and 1.5 x the memory."""
_JVM = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dzookeeper.jmx.log4j.disable=true",
)
_GUARDED = 'exec 3<&0; (read -r _ <&3; kill -KILL 0) & exec "$@" </dev/null 3<&-'
_ASK_MAX_S = 2.0
_ANSWER_BYTES_MAX = 1 << 20
_LAST_LINES = 3
_LOG_TAIL_BYTES = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A server that was started in `folder` for clients on 127.0.0.1:`port`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        """Ends the server at once, as a crash would: all that it has acknowledged is on disk."""
        self.process.kill()  # also ends a stopped process (SIGSTOP)
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()  # ends the guard

    def wait_until_serving(self, limit_s: float) -> None:
        """Returns once it serves clients. ZooKeeperError, with the end of its log: it ended, or the time is up."""
        until = time.monotonic() + limit_s
        while not is_serving(self.port):
            if self.has_ended() or time.monotonic() > until:
                raise ZooKeeperError(
                    "the ZooKeeper server did not start",
                    path=str(self.folder),
                    expected=f"serving clients at 127.0.0.1:{self.port} within {limit_s:g} s",
                    found=last_words(self.folder),
                    todo=f"Delete {self.folder}/data, if that is damaged, or choose another folder "
                    "(--zookeeper-dir): no table depends on it.",
                )
            time.sleep(0.05)


def start_server(
    folder: Path, *, port: int, settings: dict[str, object], inherited: int | None = None
) -> ServerProcess:
    """Starts a server with `data`, `zoo.cfg` and `server.log` in a folder, and does not wait for it. `settings`: more
    of zoo.cfg, by its names. `inherited`: a file descriptor that stays open while the server lives. UsageError: PySpark
    is not installed. ZooKeeperError: no Java, or the folder cannot be used."""
    require_pyspark("the embedded ZooKeeper, whose jars are Spark's,")
    java = spark_java()
    if java is None:
        raise ZooKeeperError(
            "ZooKeeper needs Java, which was not found",
            todo="Install Java 17 or newer (JAVA_HOME or PATH), or name a running ZooKeeper.",
        )
    every: dict[str, object] = {
        "dataDir": folder / "data",
        "clientPort": port,
        "clientPortAddress": "127.0.0.1",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
        "preAllocSize": 1024,  # KiB; 64 MiB by default
    }
    config, log_path = folder / "zoo.cfg", folder / "server.log"
    # A descriptor number of two digits: the guard uses 3, which may be the number of the caller's descriptor.
    passed = () if inherited is None else (fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, 10),)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        class_path = ":".join(str(jar) for jar in spark_jars() if jar.name.startswith(_JARS))
        config.write_text(javaproperties.dumps({name: str(value) for name, value in (every | settings).items()}))
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", _GUARDED, "sh", java, *_JVM, "-cp", class_path, _MAIN, str(config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                pass_fds=passed,
                start_new_session=True,
            )
    except OSError as error:
        raise ZooKeeperError(
            "the ZooKeeper server's folder cannot be used", path=str(folder), found=reason_of(error)
        ) from error
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return ServerProcess(folder=folder, port=port, process=process)


def ask(port: int, word: str) -> str | None:
    """A server's answer to one of its four-letter commands; None if there is no answer."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ASK_MAX_S) as connection:
            connection.sendall(word.encode())
            while len(answer) < _ANSWER_BYTES_MAX and (more := connection.recv(4096)):
                answer += more
    except OSError:
        return None
    return answer.decode(errors="replace")


def is_serving(port: int) -> bool:
    """Whether a server serves clients on this port; a server of an ensemble does so only while there is a quorum."""
    return "Mode: " in (ask(port, "srvr") or "")


def last_words(folder: Path) -> str:
    """The end of a server's log, without stack traces."""
    try:
        tail = (folder / "server.log").read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
    except OSError as error:
        return f"no log ({reason_of(error)})"
    lines = [line.strip() for line in tail.splitlines()]
    return " | ".join([line for line in lines if line and not line.startswith(("at ", "..."))][-_LAST_LINES:]) or "none"


def free_port() -> int:
    """A port of 127.0.0.1 on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: old connections do not matter
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_log = get_logger()
START_MAX_S = 60.0
_CHECK_S = 0.5
_AGAIN_S = 10.0
"""How long until the next try, after a server was started again."""
_PORT_MAX_S = 2.0
"""How long to wait for the kept port: a server that is being killed may release its lock before its port."""
_SETTINGS: dict[str, object] = {
    "tickTime": 500,  # ms; sessions last at least two ticks
    "maxSessionTimeout": 300_000,  # ms
    "maxClientCnxns": 1000,
    "autopurge.purgeInterval": 1,  # h
    "autopurge.snapRetainCount": 3,
}


def default_folder() -> Path:
    """Where the daemons of this user keep their server's data."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(data) / "phantombase/zookeeper"


def embedded_hosts(folder: Path) -> str:
    """`127.0.0.1:port` of the server that daemons keep running in this folder. ZooKeeperError: there is none."""
    port = _kept_port(folder)
    if port is None or not is_serving(port):
        raise ZooKeeperError(
            "no embedded ZooKeeper is running",
            path=str(folder),
            todo="Start a compactor-daemon with --zookeeper embedded and this folder: the server runs as long as it.",
        )
    return f"127.0.0.1:{port}"


@contextmanager
def embedded_zookeeper(folder: Path) -> Iterator[EmbeddedZooKeeper]:
    """Joins the server of a folder or starts one, and keeps it running, in a thread of its own, until exit.
    ZooKeeperError: it does not start. If it ends later, that is logged, and it is started again."""
    keeper = EmbeddedZooKeeper(folder.absolute())
    try:
        keeper.begin()
        yield keeper
    finally:
        keeper.end()


class EmbeddedZooKeeper:
    """Makes sure that one server runs in a folder, started by this daemon or another."""

    def __init__(self, folder: Path) -> None:
        self.port: int | None = None
        self._folder = folder
        self._server: ServerProcess | None = None
        self._not_before = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="zookeeper-keeper", daemon=True)

    @property
    def hosts(self) -> str:
        """The address of the server."""
        return f"127.0.0.1:{self.port}"

    def begin(self) -> None:
        """Returns once a server serves."""
        until = time.monotonic() + START_MAX_S
        while not self._found():
            if time.monotonic() > until:
                raise ZooKeeperError(
                    "the ZooKeeper server that another daemon started does not answer",
                    path=str(self._folder),
                    expected=f"an answer within {START_MAX_S:g} s",
                    found=last_words(self._folder),
                    todo=f"End the process that holds {self._folder}/lock, or choose another folder (--zookeeper-dir).",
                )
            time.sleep(0.05)
        _log.info("zookeeper_ready", folder=str(self._folder), port=self.port, joined=self._server is None)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._server is not None:
            self._server.stop()

    def problem(self) -> str | None:
        """Why the server does not serve now, in one line with the end of its log; None if it serves. ZooKeeperError:
        its folder cannot be read."""
        if (kept := _kept_port(self._folder)) != self.port:
            return (
                f"the ZooKeeper server in {self._folder} moved from port {self.port} to {kept}: start the daemon again"
            )
        if self.port is not None and is_serving(self.port):
            return None
        return f"the ZooKeeper server in {self._folder} does not answer; the end of its log: {last_words(self._folder)}"

    def _found(self) -> bool:
        """Whether a server serves: one of another daemon, or one that is started now."""
        lock = _take_lock(self._folder)
        if lock is None:
            self.port = _kept_port(self._folder)
            return self.port is not None and is_serving(self.port)
        try:
            self.port = _choose_port(self._folder)
        except ZooKeeperError:
            os.close(lock)
            raise
        self._server = self._started(self.port, lock)
        self._server.wait_until_serving(START_MAX_S)
        return True

    def _started(self, port: int, lock: int) -> ServerProcess:
        try:
            return start_server(self._folder, port=port, settings=_SETTINGS, inherited=lock)
        finally:
            os.close(lock)

    def _keep(self) -> None:
        while not self._ending.wait(_CHECK_S):
            try:
                self._check()
            except ZooKeeperError as error:
                _log.warning("zookeeper_not_started", folder=str(self._folder), error=str(error))

    def _check(self) -> None:
        """Starts the server again if none runs. Does not wait for it: the next check finds out whether it serves."""
        if self._server is not None:
            if not self._server.has_ended():
                return
            _log.warning("zookeeper_ended", folder=str(self._folder), last_words=last_words(self._folder))
            self._server.stop()
            self._server = None
        if self.port is None or time.monotonic() < self._not_before or (lock := _take_lock(self._folder)) is None:
            return
        self._not_before = time.monotonic() + _AGAIN_S
        self._server = self._started(self.port, lock)
        _log.info("zookeeper_started_again", folder=str(self._folder), port=self.port)


def _take_lock(folder: Path) -> int | None:
    """An open file that holds the folder's lock; None while a server lives."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise _unusable(folder, error) from error
    return lock


def _kept_port(folder: Path) -> int | None:
    try:
        text = (folder / "port").read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(folder, error) from error
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16 else None


def _choose_port(folder: Path) -> int:
    """The port kept in the folder, which joined daemons use; a new one if another program listens on it."""
    kept = _kept_port(folder)
    until = time.monotonic() + _PORT_MAX_S
    while kept is not None and time.monotonic() < until:
        if is_free(kept):
            return kept
        time.sleep(0.05)
    port, new = free_port(), folder / "port.new"
    try:
        new.write_text(f"{port}\n")
        new.replace(folder / "port")
    except OSError as error:
        raise _unusable(folder, error) from error
    return port


def _unusable(folder: Path, error: Exception) -> ZooKeeperError:
    return ZooKeeperError(
        "the folder for the embedded ZooKeeper cannot be used",
        path=str(folder),
        found=reason_of(error),
        todo="Choose another folder: --zookeeper-dir.",
    )
