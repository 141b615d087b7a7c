"""The table lock of Hudi's options `hoodie.write.lock.*` (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.locks.table_lock import STORAGE

LOCK = "hoodie.write.lock."
_ZOOKEEPER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
_STORAGE = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
_PORT = "2181"


_OF_A_NODE = ("zookeeper.url", "zookeeper.base_path", "zookeeper.lock_key")


def is_tuning(conf: Mapping[str, str]) -> bool:
    """Whether the options name no lock: waits and retries, or Hudi's default provider without a place."""
    provider = conf.get("provider", _ZOOKEEPER)
    return provider == _ZOOKEEPER and not any(name in conf for name in _OF_A_NODE)


def lock_of(conf: Mapping[str, str]) -> str:
    """The lock, as `--lock` names it. `conf`: the options without their common beginning."""
    provider = conf.get("provider", _ZOOKEEPER)  # Hudi's default
    if provider == _STORAGE:
        return STORAGE
    if provider != _ZOOKEEPER:
        raise UnsupportedError(
            "this lock provider is not supported",
            expected=f"{_ZOOKEEPER} or {_STORAGE}",
            found=str(provider),
            todo="A lock within one process, such as InProcessLockProvider, keeps no other process away: leave the "
            "lock out if no other process writes."
            if "InProcess" in str(provider)
            else None,
        )
    try:
        url, base, key = (conf[f"zookeeper.{part}"] for part in ("url", "base_path", "lock_key"))
    except KeyError as error:
        raise UsageError("an incomplete ZooKeeper lock", expected=f"{LOCK}{error.args[0]}") from error
    return f"zookeeper:{_with_ports(url, conf.get('zookeeper.port'))}{base.rstrip('/')}/{key}"


def _with_ports(url: str, port: str | None) -> str:
    """ZooKeeper's client takes 2181 for hosts without a port; Hudi does not read `hoodie.write.lock.zookeeper.port`."""
    hosts, slash, within = url.partition("/")
    bare = [host for host in hosts.split(",") if ":" not in host.rpartition("]")[2]]
    if bare and port not in (None, _PORT):
        raise UsageError(
            "Hudi does not read this port and connects to 2181: writers would hold different locks",
            expected=f"{LOCK}zookeeper.url with the port, as {bare[0]}:{port}",
            found=f"{LOCK}zookeeper.port={port}",
        )
    return ",".join(f"{host}:{_PORT}" if host in bare else host for host in hosts.split(",")) + slash + within
