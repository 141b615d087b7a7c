"""The ZooKeeper options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import option

from ..zookeeper.embedded import default_folder, embedded_hosts, embedded_zookeeper
from ..zookeeper.session import ZooKeeperOptions
from .option_flags import Only

_CONNECT_S = 10.0
EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperFlags:
    """How a command reaches ZooKeeper. `hosts` None: it uses no ZooKeeper."""

    hosts: str | None = option(
        None,
        "ZooKeeper of the fleet: host:port[,host:port][/chroot], or `embedded`: the server that the daemons of "
        "this machine keep running",
        flag="zookeeper",
        metavar="HOSTS|embedded",
    )
    folder: Path | None = option(
        None,
        "folder of the embedded server [default: a folder of this user]",
        flag="zookeeper_dir",
        metavar="FOLDER",
    )
    session_s: float = option(
        10.0,
        "a daemon loses its claims after this time without a sign of life",
        flag="zookeeper_session",
        least=1,
    )
    digest_file: Path | None = option(
        None,
        "a file with user:password for ZooKeeper, the same for the whole fleet",
        flag="zookeeper_digest_file",
        metavar="FILE",
    )
    ca: Path | None = option(
        None, "ZooKeeper over TLS: certificates to trust (PEM)", flag="zookeeper_ca", metavar="FILE"
    )
    cert: Path | None = option(
        None, "ZooKeeper over TLS: client certificate (PEM)", flag="zookeeper_cert", metavar="FILE"
    )
    key: Path | None = option(
        None, "ZooKeeper over TLS: client private key (PEM)", flag="zookeeper_key", metavar="FILE"
    )

    def options(self) -> ZooKeeperOptions | None:
        """The options, None without hosts. UsageError: a file cannot be read, or options are given without hosts.

        ZooKeeperError: no embedded server is running.
        """
        files = (self.digest_file, self.ca, self.cert, self.key)
        if self.hosts is None:
            if any(file is not None for file in (*files, self.folder)):
                raise UsageError("options of ZooKeeper are given without --zookeeper HOSTS")
            return None
        hosts = self.hosts if self.hosts != EMBEDDED else embedded_hosts(self.folder or default_folder())
        digest = _text(self.digest_file).strip() if self.digest_file is not None else None
        for file in files:
            if file is not None and not file.is_file():
                raise UsageError("no such file", path=str(file))
        ca, cert, key = (str(file) if file is not None else None for file in (self.ca, self.cert, self.key))
        return ZooKeeperOptions(
            hosts=hosts,
            session_timeout_s=self.session_s,
            connect_timeout_s=_CONNECT_S,
            digest=digest,
            ca=ca,
            certfile=cert,
            keyfile=key,
        )

    @contextmanager
    def kept(self) -> Iterator[ZooKeeperOptions | None]:
        """The options of a daemon; with `embedded`, joins or starts the server and keeps it running until exit."""
        if self.hosts != EMBEDDED:
            yield self.options()
            return
        with embedded_zookeeper(self.folder or default_folder()) as server:
            yield replace(self, hosts=server.hosts, folder=None).options()


ZOOKEEPER = ZooKeeperFlags()
"""No fleet."""

Fleet = Annotated[ZooKeeperFlags, Only("hosts", "folder", "digest_file", "ca", "cert", "key")]
"""For commands that look at a fleet, or ring its doorbell, and hold no claims."""


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the file cannot be read", path=str(file), found=f"{type(error).__name__}: {error}") from error
