"""How commands are told where ZooKeeper is: the options all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from compactor_daemon.embedded_zookeeper import default_folder, embedded_hosts, embedded_zookeeper
from compactor_daemon.zookeeper import ZooKeeperOptions
from timeline.errors import UsageError

_CONNECT_S = 10.0
EMBEDDED = "embedded"
SESSION_S = 10.0

Hosts = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOSTS|embedded",
        help="ZooKeeper of the fleet: host:port[,host:port][/chroot], or `embedded`: the server that the daemons of "
        "this machine keep running",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--zookeeper-dir", metavar="FOLDER", help="of the embedded server [default: a folder of this user]"),
]
DigestFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="user:password for ZooKeeper, shared by the fleet, in a file")
]
Ca = Annotated[Path | None, typer.Option(metavar="FILE", help="ZooKeeper over TLS: certificates to trust (PEM)")]
Cert = Annotated[Path | None, typer.Option(metavar="FILE", help="ZooKeeper over TLS: our certificate (PEM)")]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="ZooKeeper over TLS: our private key (PEM)")]


def zookeeper_options(
    hosts: str | None,
    folder: Path | None,
    digest_file: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    session_s: float = SESSION_S,
) -> ZooKeeperOptions | None:
    """The options as typed, None without hosts. UsageError: a file that cannot be read, options without hosts.

    ZooKeeperError: no embedded server is running.
    """
    files = (digest_file, ca, cert, key)
    if hosts is None:
        if any(file is not None for file in (*files, folder)):
            raise UsageError("options of ZooKeeper are given without --zookeeper HOSTS")
        return None
    if hosts == EMBEDDED:
        hosts = embedded_hosts(folder or default_folder())
    digest = _text(digest_file).strip() if digest_file is not None else None
    for file in files:
        if file is not None and not file.is_file():
            raise UsageError("no such file", path=str(file))
    ca_path, cert_path, key_path = (str(file) if file is not None else None for file in (ca, cert, key))
    return ZooKeeperOptions(
        hosts=hosts,
        session_timeout_s=session_s,
        connect_timeout_s=_CONNECT_S,
        digest=digest,
        ca=ca_path,
        certfile=cert_path,
        keyfile=key_path,
    )


@contextmanager
def kept_hosts(hosts: str | None, folder: Path | None) -> Iterator[str | None]:
    """The hosts a daemon uses: with `embedded` its server is joined or started, and kept running to the exit."""
    if hosts != EMBEDDED:
        yield hosts
        return
    with embedded_zookeeper(folder or default_folder()) as server:
        yield server.hosts


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the file cannot be read", path=str(file), found=f"{type(error).__name__}: {error}") from error
