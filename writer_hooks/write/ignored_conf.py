"""Hudi's configurations that set no option here, so that complete dictionaries of Hudi jobs can be given (pure).

A configuration agrees with what phantombase does, or has no effect here (how Hudi's client works, or services other
than the write), or contradicts phantombase: then it is refused, since the job would not get what it asks for.
`hoodie.write.lock.*` names the table lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from phantombase.compactor_daemon.hudi_names import NameKind, hudi_names, is_of_a_family, nearest
from phantombase.compactor_daemon.services.hudi_conf import ARCHIVE_CONF, CLEAN_CONF, SCHEDULE_CONF
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.locks.table_lock import BASE_PATH_HASH, STORAGE

from ..options import Mode, Operation, Write

LOCK = "hoodie.write.lock."
_ZOOKEEPER = "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider"
_STORAGE = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
_PORT = "2181"


_INSTEAD = {
    "InProcess": "A lock within one process, such as InProcessLockProvider, keeps no other process away: leave the "
    "lock out if no other process writes.",
    "DynamoDB": "Give all writers of the table, Hudi's too, one of the expected providers: a lock in DynamoDB is not "
    "taken, and another lock would not keep them away.",
}
"""What to do, by a part of a provider's name."""

_OF_A_NODE = ("zookeeper.url", "zookeeper.base_path", "zookeeper.lock_key")


def is_tuning(conf: Mapping[str, str]) -> bool:
    """Whether the options name no lock: waits and retries, or Hudi's default provider without a place."""
    provider = conf.get("provider", _ZOOKEEPER)
    return provider == _ZOOKEEPER and not any(name in conf for name in _OF_A_NODE)


_IMPLICIT = "org.apache.hudi.client.transaction.lock.ZookeeperBasedImplicitBasePathLockProvider"


def lock_of(conf: Mapping[str, str], table: str | None = None) -> str:
    """The lock, as `--lock` names it. `conf`: the options without their common prefix.

    `table`: the name of the table, if it is given: Hudi takes it for a ZooKeeper lock without a key.
    """
    provider = conf.get("provider", _ZOOKEEPER)  # Hudi's default
    if provider == _STORAGE:
        return STORAGE
    if provider == _IMPLICIT:
        return f"zookeeper:{_address(conf)}/tmp/{BASE_PATH_HASH}/lock_key"
    if provider != _ZOOKEEPER:
        raise UnsupportedError(
            "this lock provider is not supported",
            expected=f"{_ZOOKEEPER}, {_IMPLICIT} or {_STORAGE}",
            found=str(provider),
            todo=next((todo for part, todo in _INSTEAD.items() if part in str(provider)), None),
        )
    base, key = conf.get("zookeeper.base_path"), conf.get("zookeeper.lock_key", table)
    address = _address(conf)
    for part, value in (("base_path", base), ("lock_key", key)):
        if value is None:
            raise UsageError("an incomplete ZooKeeper lock", expected=f"{LOCK}zookeeper.{part}")
    return f"zookeeper:{address}{str(base).rstrip('/')}/{key}"


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


CONCURRENCY = "hoodie.write.concurrency.mode"
_SINGLE, OPTIMISTIC = "SINGLE_WRITER", "OPTIMISTIC_CONCURRENCY_CONTROL"

_ORDERING = (
    "hoodie.datasource.write.precombine.field",
    "hoodie.table.ordering.fields",
    "hoodie.table.precombine.field",
)
_SAME_AS_ORDERING = "hoodie.payload.ordering.field"


def has_effect_elsewhere(name: str, value: str, conf: Mapping[str, str], *, has_lock: bool) -> bool | None:
    """What a configuration that sets nothing here asks for. False: what is done anyway. True: something that is not
    done, so that a warning names it. None: the name is not known.

    UnsupportedError: it asks for other rows, other files, or another lock.
    """
    text = value.strip()
    if name == CONCURRENCY:
        if text.upper() == _SINGLE or (text.upper() == OPTIMISTIC and has_lock):
            return False
        todo = "Give the lock of all writers: hoodie.write.lock.*." if text.upper() == OPTIMISTIC else None
        raise UnsupportedError(
            f"this {name} is not supported{'' if has_lock else ' without a lock'}",
            expected=f"{_SINGLE}, or {OPTIMISTIC} with a lock",
            found=value,
            todo=todo,
        )
    if name == _SAME_AS_ORDERING and text in {conf[one].strip() for one in _ORDERING if one in conf}:
        return False
    one = hudi_names().get(name)
    if one is None:
        return True if is_of_a_family(name) else None
    if one.kind is NameKind.SET:
        return None
    if one.agrees(text):
        return False
    if one.kind is NameKind.ONLY:
        raise UnsupportedError(
            f"{name} asks for what is not done here: {one.why}", expected=" or ".join(one.agreeing) or None, found=value
        )
    return True


_COMMITS, _SECONDS = "hoodie.compact.inline.max.delta.commits", "hoodie.compact.inline.max.delta.seconds"
_PARTITIONS = "hoodie.datasource.write.partitions.to.delete"
_LAYOUT = "hoodie.storage.layout.type"


def idle(conf: Mapping[str, str], write: Write, *, streams: bool) -> list[str]:
    """The names that have no effect in this write, since they belong to other settings: when a compaction is due, if
    none is requested; how many versions are kept, if commits are counted. Hudi ignores them silently.

    `streams`: the write is a batch of a stream, for which file groups are full by the trigger of compactions.
    """
    own = {name for name in _idle(conf, write, streams=streams) if name in conf}
    gone = [_PARTITIONS] if write.partitions is not None and write.operation is not Operation.DELETE_PARTITION else []
    usual = {n for n in own if hudi_names()[n].agrees(conf[n]) and not (n == _LAYOUT and conf[n].strip() != "DEFAULT")}
    return sorted([*(own - usual), *gone])


def _idle(conf: Mapping[str, str], write: Write, *, streams: bool) -> Iterator[str]:
    options = write.options
    mode, strategy = options.compaction.mode, options.compaction.schedule.strategy
    counts = options.archive is not None or options.back_pressure is not None or streams
    if mode is Mode.WRITE_ONLY:
        yield from (name for name in SCHEDULE_CONF if name != _COMMITS or not counts)
        yield from ("hoodie.compact.inline", "hoodie.compact.schedule.inline")
    elif strategy is TriggerStrategy.TIME_ELAPSED and not counts:
        yield _COMMITS
    elif strategy not in (TriggerStrategy.TIME_ELAPSED, TriggerStrategy.NUM_AND_TIME, TriggerStrategy.NUM_OR_TIME):
        yield _SECONDS
    counted = None if options.clean is None else options.clean.policy.value
    yield from (name for name, (of, _) in CLEAN_CONF.items() if of != counted and (of != "policy" or counted is None))
    if options.archive is None:
        yield from ARCHIVE_CONF
    if options.metadata is None:
        yield "hoodie.metadata.compact.max.delta.commits"
    if options.buckets is None:
        yield from (_LAYOUT, "hoodie.storage.layout.partitioner.class")
    yield from (name for name in conf if name.startswith(f"{LOCK}zookeeper.") and not used_by_the_lock(name, conf))


def refused(problems: Mapping[str, PhantombaseError]) -> PhantombaseError:
    """One error for all configurations that cannot be followed, by name."""
    errors = list(problems.values())
    if len(errors) == 1:
        return errors[0]
    kind = UnsupportedError if all(isinstance(error, UnsupportedError) for error in errors) else UsageError
    each = " ".join(f"({number}) {name}: {error}" for number, (name, error) in enumerate(problems.items(), start=1))
    return kind(f"{len(errors)} configurations cannot be followed; nothing was written", todo=each)


def unknown(name: str, value: str, known: Collection[str]) -> UsageError:
    """The error for a name that is neither phantombase's nor known as Hudi's."""
    near = nearest(name, [*known, *hudi_names()])
    todo = f"Did you mean {near}?" if near else None
    return UsageError("not a known configuration of a write or a table", found=f"{name}={value}", todo=todo)
