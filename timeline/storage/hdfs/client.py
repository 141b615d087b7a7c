"""Clients of HDFS name nodes: settings are Hadoop's own, as hdfs-native reads them in each process.

`core-site.xml` and `hdfs-site.xml` of HADOOP_CONF_DIR, or of HADOOP_HOME/etc/hadoop: name services and their name
nodes, Kerberos. HADOOP_USER_NAME, or the Kerberos ticket of the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from hdfs_native import Client

from ...errors import MissingFileError, StorageError, UsageError

_ENVIRONMENT = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "KRB5CCNAME")
_TRIES_OF_ONE_NAME_NODE = "2"
"""A single name node that does not answer is reported within seconds, and not after minutes."""


def open_client(authority: str) -> Client:
    """The client of `HOST:PORT` or of a name service; UsageError: the settings cannot be used."""
    # A forked process needs connections of its own.
    return _opened(authority, tuple(os.environ.get(name) for name in _ENVIRONMENT), os.getpid())


@lru_cache(maxsize=64)
def _opened(authority: str, environment: tuple[str | None, ...], process: int) -> Client:
    host, _, port = authority.partition(":")
    # Reads of an observer name node may be behind what another process has written: only the active one is asked.
    settings = {
        f"dfs.client.failover.proxy.provider.{host}": "org.apache.hadoop.hdfs.server.namenode.ha."
        "ConfiguredFailoverProxyProvider"
    }
    if port:
        settings["dfs.client.failover.max.attempts"] = _TRIES_OF_ONE_NAME_NODE
    try:
        return Client(f"hdfs://{authority}", settings)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            "the name node or name service cannot be used",
            path=f"hdfs://{authority}",
            expected="hdfs://HOST:PORT/PATH, or hdfs://NAMESERVICE/PATH as hdfs-site.xml in HADOOP_CONF_DIR names it",
            found=shown(error),
        ) from error


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Errors of the client as those of the tree. `path`: the URL in messages."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError("no such file", path=path) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError("storage failed", path=path, found=shown(error)) from error


def shown(error: Exception) -> str:
    """An error in one line, without the server's stack."""
    text = str(error).replace("\\n\\tat", "\n\tat").partition("\n\tat")[0]
    return " ".join(f"{type(error).__name__}: {text}".split())[:500]
