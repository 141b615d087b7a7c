"""How commands are told where ZooKeeper is: the options all of them share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compactor_daemon.zookeeper import ZooKeeperOptions
from timeline.errors import UsageError

_CONNECT_S = 10.0

Hosts = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOSTS", help="ZooKeeper of the fleet: host:port[,host:port][/chroot]"),
]
DigestFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="user:password for ZooKeeper, shared by the fleet, in a file")
]
Ca = Annotated[Path | None, typer.Option(metavar="FILE", help="ZooKeeper over TLS: certificates to trust (PEM)")]
Cert = Annotated[Path | None, typer.Option(metavar="FILE", help="ZooKeeper over TLS: our certificate (PEM)")]
Key = Annotated[Path | None, typer.Option(metavar="FILE", help="ZooKeeper over TLS: our private key (PEM)")]


def zookeeper_options(
    hosts: str | None, digest_file: Path | None, ca: Path | None, cert: Path | None, key: Path | None
) -> ZooKeeperOptions | None:
    """The options as typed, None without hosts. UsageError: a file that cannot be read, options without hosts."""
    files = (digest_file, ca, cert, key)
    if hosts is None:
        if any(file is not None for file in files):
            raise UsageError("options of ZooKeeper are given without --zookeeper HOSTS")
        return None
    digest = _text(digest_file).strip() if digest_file is not None else None
    for file in files:
        if file is not None and not file.is_file():
            raise UsageError("no such file", path=str(file))
    ca_path, cert_path, key_path = (str(file) if file is not None else None for file in (ca, cert, key))
    return ZooKeeperOptions(
        hosts=hosts, connect_timeout_s=_CONNECT_S, digest=digest, ca=ca_path, certfile=cert_path, keyfile=key_path
    )


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the file cannot be read", path=str(file), found=f"{type(error).__name__}: {error}") from error
