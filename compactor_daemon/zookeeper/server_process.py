"""One ZooKeeper server as a child process of the daemon, from the jars that PySpark brings.

    sh, which becomes the server (exec): its process id is the server's
    └── sh, the guard: waits for the end of a pipe that only the daemon holds open, then kills its process group

So the server ends with the daemon, even if the daemon ends by SIGKILL. The pipe is used instead of PR_SET_PDEATHSIG
because every POSIX system has pipes, and because that signal comes at the end of the *thread* that started the child.
The guard kills its own process group, which exists as long as the guard, and not a process id, which another process
may have got meanwhile. The server has a session of its own, so a terminal's Ctrl-C does not reach it before the daemon
has finished.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from phantombase.timeline.errors import ZooKeeperError

from ..jvm_archive import spark_java

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = ("zookeeper", "netty", "slf4j-api", "log4j", "metrics-core", "snappy", "commons-cli", "commons-io")
"""The jars it needs, of PySpark's 280: with all of them it starts half as fast and takes half as much memory again."""
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
        """Whether the process is gone."""
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
                    todo="Its data may be deleted: no table depends on it.",
                )
            time.sleep(0.05)


def start_server(
    folder: Path, *, port: int, settings: dict[str, object], inherited: int | None = None
) -> ServerProcess:
    """Starts a server that keeps `data`, `zoo.cfg` and `server.log` in a folder, and does not wait for it.

    `settings`: more of zoo.cfg, by its names. `inherited`: a file descriptor that stays open while the server lives.
    ZooKeeperError: no Java, or the folder cannot be used.
    """
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
        config.write_text(javaproperties.dumps({name: str(value) for name, value in (every | settings).items()}))
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", _GUARDED, "sh", java, *_JVM, "-cp", _class_path(), _MAIN, str(config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                pass_fds=passed,
                start_new_session=True,
            )
    except OSError as error:
        raise ZooKeeperError(
            "the ZooKeeper server's folder cannot be used", path=str(folder), found=f"{type(error).__name__}: {error}"
        ) from error
    finally:
        for descriptor in passed:
            os.close(descriptor)
    return ServerProcess(folder=folder, port=port, process=process)


def _class_path() -> str:
    import pyspark  # late: few processes need it

    jars = (Path(pyspark.__file__).parent / "jars").iterdir()
    return ":".join(sorted(str(jar) for jar in jars if jar.name.startswith(_JARS)))


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
        return f"no log ({type(error).__name__})"
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
