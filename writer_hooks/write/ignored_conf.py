"""Hudi's configurations that set no option here, so that complete dictionaries of Hudi jobs can be given (pure).

A configuration agrees with what phantombase does, or has no effect here (how Hudi's client works, or services other
than the write), or contradicts phantombase: then it is refused, since the job would not get what it asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from phantombase.compactor_daemon.hudi_names import NameKind, hudi_names, is_of_a_family, meant
from phantombase.compactor_daemon.services.hudi_conf import ARCHIVE_CONF, CLEAN_CONF, CLUSTER_CONF, SCHEDULE_CONF
from phantombase.compactor_daemon.services.hudi_lock import CONCURRENCY, LOCK, is_concurrent, used_by_the_lock
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.instants.triggers import BY_TIME, TriggerStrategy

from ..options import FullAction, Mode, Operation, Write

_ORDERING = (
    "hoodie.datasource.write.precombine.field",
    "hoodie.table.ordering.fields",
    "hoodie.table.precombine.field",
)
_SAME_AS_ORDERING = "hoodie.payload.ordering.field"


def has_effect_elsewhere(name: str, value: str, conf: Mapping[str, str], *, has_lock: bool) -> bool | None:
    """What a configuration that sets nothing here asks for. False: what is done anyway. True: something that is not
    done, so that a warning names it. None: the name is not known. UnsupportedError: it asks for other rows, other
    files, or another lock."""
    text = value.strip()
    if name == CONCURRENCY:
        is_concurrent(text, has_lock=has_lock)
        return False
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
PARTITIONS = "hoodie.datasource.write.partitions.to.delete"
_LAYOUT = "hoodie.storage.layout.type"


def idle(conf: Mapping[str, str], write: Write, *, streams: bool) -> list[str]:
    """The names that have no effect in this write, since they belong to other settings: when a compaction is due, if
    none is requested; how many versions are kept, if commits are counted. Hudi ignores them silently. `streams`: the
    write is a batch of a stream, for which file groups are full by the trigger of compactions."""
    own = {name for name in _idle(conf, write, streams=streams) if name in conf}
    gone = [PARTITIONS] if write.partitions is not None and write.operation is not Operation.DELETE_PARTITION else []
    named = own & hudi_names().keys()
    usual = {
        n for n in named if hudi_names()[n].agrees(conf[n]) and not (n == _LAYOUT and conf[n].strip() != "DEFAULT")
    }
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
    elif strategy not in BY_TIME:
        yield _SECONDS
    counted = None if options.clean is None else options.clean.policy.value
    yield from (name for name, (of, _) in CLEAN_CONF.items() if of != counted and (of != "policy" or counted is None))
    if options.archive is None:
        yield from ARCHIVE_CONF
    if options.cluster is None:
        yield from (*CLUSTER_CONF, "hoodie.clustering.inline.max.commits")
    if options.back_pressure is not None and options.back_pressure.action is not FullAction.WAIT:
        yield "phantombase.write.stop.wait.seconds"
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
    todo = meant(name, [*known, *hudi_names()])
    return UsageError("not a known configuration of a write or a table", found=f"{name}={value}", todo=todo)
