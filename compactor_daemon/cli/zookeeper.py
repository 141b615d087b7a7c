"""The ZooKeeper options that several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.zookeeper_access import ZooKeeperAccess, with_access
from phantombase.timeline.option import option

from ..zookeeper.embedded import default_folder, embedded_hosts, embedded_zookeeper
from ..zookeeper.session import ZooKeeperOptions
from .option_flags import Only

_CONNECT_S = 10.0
EMBEDDED = "embedded"


def _file(name: str, help_text: str) -> Any:
    """An option that names a file, `--zookeeper-NAME FILE`."""
    return option(None, help_text, flag=f"zookeeper_{name}", metavar="FILE")


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
    digest_file: Path | None = _file(
        "digest_file", "a file with user:password for ZooKeeper, the same for the whole fleet"
    )
    ca: Path | None = _file("ca", "ZooKeeper over TLS: certificates to trust (PEM)")
    cert: Path | None = _file("cert", "ZooKeeper over TLS: client certificate (PEM)")
    key: Path | None = _file("key", "ZooKeeper over TLS: client private key (PEM)")
    sasl: str | None = option(
        None,
        "ZooKeeper over SASL: GSSAPI (Kerberos) or DIGEST-MD5",
        flag="zookeeper_sasl",
        metavar="MECHANISM",
    )
    sasl_file: Path | None = _file("sasl_file", "a file with user:password for DIGEST-MD5")

    def options(self) -> ZooKeeperOptions | None:
        """The options, None without hosts. UsageError: a file cannot be read, or options are given without hosts.

        ZooKeeperError: no embedded server is running.
        """
        if self.hosts is None:
            if self._access().is_given or self.folder is not None:
                raise UsageError("options of ZooKeeper are given without --zookeeper HOSTS")
            return None
        text = self.hosts if self.hosts != EMBEDDED else embedded_hosts(self.folder or default_folder())
        hosts, within = with_access(text)
        given = self._access()
        if within.is_given and given.is_given:
            raise UsageError(
                "the access to ZooKeeper is given twice", expected="behind --zookeeper HOSTS?, or as options"
            )
        return ZooKeeperOptions(
            hosts=hosts,
            session_timeout_s=self.session_s,
            connect_timeout_s=_CONNECT_S,
            access=within if within.is_given else given,
        )

    def on_lock(self, lock: str | None) -> str | None:
        """The lock with the same access as the fleet, if it is one in ZooKeeper that names none of its own."""
        if lock is None or not lock.startswith("zookeeper:") or "?" in lock or self.hosts in (None, EMBEDDED):
            return lock
        given = self._access()
        return lock + (given if given.is_given else with_access(str(self.hosts))[1]).query

    def _access(self) -> ZooKeeperAccess:
        paths = (self.ca, self.cert, self.key, self.digest_file, self.sasl_file)
        ca, cert, key, digest, user = (None if path is None else str(path) for path in paths)
        return ZooKeeperAccess(ca=ca, cert=cert, key=key, digest_file=digest, sasl=self.sasl, sasl_file=user)

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

Fleet = Annotated[ZooKeeperFlags, Only("hosts", "folder", "digest_file", "ca", "cert", "key", "sasl", "sasl_file")]
"""For commands that look at a fleet, or ring its doorbell, and hold no claims."""
