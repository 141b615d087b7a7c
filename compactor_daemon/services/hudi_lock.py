"""Hudi's names for the table lock, `hoodie.write.lock.*` and the mode of concurrency, as `--lock` names it (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.locks.table_lock import BASE_PATH_HASH, STORAGE

LOCK = "hoodie.write.lock."
CONCURRENCY = "hoodie.write.concurrency.mode"
OPTIMISTIC = "OPTIMISTIC_CONCURRENCY_CONTROL"
_SINGLE = "SINGLE_WRITER"
_TODO = {
    OPTIMISTIC: "Give the lock of all writers: hoodie.write.lock.*.",
    "NON_BLOCKING_CONCURRENCY_CONTROL": (
        f"Writers of that mode check no conflicts, those of phantombase do: write with {OPTIMISTIC} and the lock of "
        "all writers. Hudi's writers may keep that mode: phantombase compacts and cleans beside them."
    ),
}
"""What to do instead, by mode."""
_PROVIDERS = "org.apache.hudi.client.transaction.lock."
_ZOOKEEPER = f"{_PROVIDERS}ZookeeperBasedLockProvider"
_IMPLICIT = f"{_PROVIDERS}ZookeeperBasedImplicitBasePathLockProvider"
_STORAGE = f"{_PROVIDERS}StorageBasedLockProvider"
_PORT = "2181"
_ANOTHER = (
    "Give all writers of the table, Hudi's too, one of the expected providers: this lock is not taken, and another "
    "one would not keep them away."
)
_NONE = "This lock keeps no other process away: leave it out if no other process writes."
IN_PROCESS = f"{_PROVIDERS}InProcessLockProvider"
"""Hudi's lock between the threads of one process."""
_OF_ONE_PROCESS = ("InProcessLockProvider", "NoopLockProvider")
_OF_A_NODE = ("zookeeper.url", "zookeeper.base_path", "zookeeper.lock_key")


def is_tuning(conf: Mapping[str, str]) -> bool:
    """Whether the options name no lock: waits and retries, or Hudi's default provider without a place."""
    provider = conf.get("provider", _ZOOKEEPER)
    return provider == _ZOOKEEPER and not any(name in conf for name in _OF_A_NODE)


def is_concurrent(mode: str, *, has_lock: bool) -> bool:
    """Whether a value of `CONCURRENCY` says that there are several writers. UnsupportedError: no lock is theirs."""
    text = mode.strip().upper()
    if text == _SINGLE or (text == OPTIMISTIC and has_lock):
        return text == OPTIMISTIC
    raise UnsupportedError(
        f"this {CONCURRENCY} is not supported{'' if has_lock else ' without a lock'}",
        expected=f"{_SINGLE}, or {OPTIMISTIC} with a lock",
        found=mode,
        todo=_TODO.get(text),
    )


def lock_of(conf: Mapping[str, str], table: str | None = None) -> str:
    """The lock, as `--lock` names it. `conf`: without the common prefix. `table`: Hudi's key where none is given."""
    provider = conf.get("provider", _ZOOKEEPER)  # Hudi's default
    if provider == _STORAGE:
        return STORAGE
    _check_no_blanks(conf)
    if provider == _IMPLICIT:
        return f"zookeeper:{_address(conf)}/tmp/{BASE_PATH_HASH}/lock_key"
    if provider != _ZOOKEEPER:
        raise UnsupportedError(
            f"this {LOCK}provider is not supported",
            expected=f"{_ZOOKEEPER}, {_IMPLICIT} or {_STORAGE}",
            found=str(provider),
            todo=_NONE if str(provider).endswith(_OF_ONE_PROCESS) else _ANOTHER,
        )
    base, key = conf.get("zookeeper.base_path"), conf.get("zookeeper.lock_key", table)
    address = _address(conf)
    for part, value in (("base_path", base), ("lock_key, or hoodie.table.name", key)):
        if value is None:
            raise UsageError("an incomplete ZooKeeper lock", expected=f"{LOCK}zookeeper.{part}")
    if not str(base).startswith("/"):  # Hudi's client ends, too
        raise UsageError("not a path in ZooKeeper", expected=f"{LOCK}zookeeper.base_path=/{base}", found=str(base))
    return f"zookeeper:{address}{str(base).rstrip('/')}/{key}"


def _check_no_blanks(conf: Mapping[str, str]) -> None:
    """UsageError: a part of a node's path with a blank around it. Spark's options keep it and properties files do not,
    so that two jobs with one dictionary would hold two locks."""
    for part in _OF_A_NODE:
        if conf.get(part, "") != conf.get(part, "").strip():
            raise UsageError(
                "a blank around a part of a lock: writers would hold different locks",
                expected=f"{LOCK}{part}={conf[part].strip()}",
                found=repr(conf[part]),
            )


def _address(conf: Mapping[str, str]) -> str:
    if "zookeeper.url" not in conf:
        raise UsageError("an incomplete ZooKeeper lock", expected=f"{LOCK}zookeeper.url")
    return _with_ports(conf["zookeeper.url"], conf.get("zookeeper.port"))


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


def used_by_the_lock(name: str, conf: Mapping[str, str]) -> bool:
    """Whether the lock that `conf` names uses this option of ZooKeeper. All names are complete."""
    provider, part = conf.get(f"{LOCK}provider", _ZOOKEEPER), name.removeprefix(LOCK)
    if provider == _IMPLICIT:
        return part in ("zookeeper.url", "zookeeper.port")
    return provider == _ZOOKEEPER and any(f"{LOCK}{of}" in conf for of in _OF_A_NODE)
