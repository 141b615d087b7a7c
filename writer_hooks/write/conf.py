"""Hudi's write configuration, and a few names of phantombase, as options of a write and a description of a table.

An option that the job sets by a method, and Hudi's name for it, must agree: neither overrides the other silently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.catalogs.options import (
    GLUE_TOOL,
    OF_GLUE,
    SYNC,
    SYNC_CONF,
    SYNC_ENABLED,
    SyncOptions,
    names_glue,
    sync_fields,
    with_site,
)
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.compactor_daemon.hudi_names import (
    CONCURRENCY,
    IN_PROCESS,
    LOCK,
    OPTIMISTIC,
    Known,
    contradiction,
    flag,
    hudi_names,
    is_tuning,
    lock_of,
    parsed,
    put_once,
    texts,
    without_doubles,
    word_of,
)
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.services.hudi_conf import (
    ARCHIVE_CONF,
    CLEAN_CONF,
    CLUSTER_CONF,
    HUDI_NAMES,
    INLINE_CLUSTERING,
    SCHEDULE_CONF,
    clean_of,
    parse_hudi_conf,
    parse_schedule_conf,
)
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.instants.clock_check import LOCAL
from phantombase.timeline.locks.heartbeat import BEAT_S
from phantombase.timeline.locks.table_lock import STORAGE
from phantombase.timeline.option import decimal_number, whole_number

from ..commit.stream_batches import checked_stream
from ..options import COMBINES, BackPressure, CompactionOptions, FullAction, Mode, MovedKeys, Operation, WriteOptions
from .table_conf import (
    PARTITIONS,
    TABLE_NAMES,
    has_effect_elsewhere,
    is_table_conf,
    names_of_columns,
    parse_table_conf,
    refused,
    table_field,
    time_name,
    unknown,
)

SERVICES = "hoodie.table.services.enabled"
"""Turns every service after a write off, whatever the services' own names are set to."""
_INDEX = "hoodie.index.type"


def check_agreement(
    found: Mapping[str, Any],
    options: WriteOptions,
    explicit: Collection[str],
    conf: Mapping[str, str],
    option_of: Callable[[str], str | None],
) -> None:
    """UsageError: a name of `conf` contradicts an option of the write that the job has set itself. `found`: the fields
    that `conf` sets, `explicit`: those that the job has set. Of options that are groups of others, such as `clean`,
    those count that differ from their defaults. `option_of`: the field that a name sets."""

    def refuse(field: str, mine: Any, now: Any) -> None:
        top = field.partition(".")[0]
        own = [name for name in conf if (option_of(name) or "").startswith(top)]
        other = next((name for name in (*own, SERVICES) if name in conf), _INDEX)
        raise contradiction(f"option {field}", _plain(mine), other, conf.get(other, _plain(now)))

    for field in sorted(found.keys() & set(explicit)):
        for path, mine, now in _differing(field, getattr(options, field), found[field]):
            refuse(path, mine, now)
    for field in COMBINES:
        if "combine" in explicit and options.combine not in (None, found.get(field, options.combine)):
            refuse("combine", options.combine, found[field])
    if "buckets" in explicit and options.buckets is not None and conf.get(_INDEX, "BUCKET").strip().upper() != "BUCKET":
        refuse("buckets", options.buckets, conf[_INDEX])


def check_description(
    said: Mapping[str, Any], found: Mapping[str, Any], timezone: str, conf: Mapping[str, str]
) -> None:
    """UsageError: a name of `conf` contradicts what a method says of the table. `said` and `found`: fields of
    `NewTable` that methods set, and that `conf` sets. `timezone`: see `ClockOptions`."""

    def refuse(field: str, option: str, mine: Any) -> None:
        named = (n for n in conf if table_field(n) == field and (field != "times" or time_name(n) == option))
        other = next(named, METADATA)
        raise contradiction(f"option {option}", _plain(mine), other, conf[other])

    for field in sorted(found.keys() & said.keys() - {"times"}):
        if said[field] != found[field]:
            refuse(field, field, said[field])
    times = dict(found.get("times", ()))
    for name, value in said.get("times", ()):
        if times.get(name, value) != value:
            refuse("times", name, value)
    if found.get("utc_timezone") and timezone.upper() not in ("UTC", LOCAL):
        refuse("utc_timezone", "timezone", timezone)


def _differing(path: str, mine: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    if is_dataclass(mine) and now is not None:
        usual: Any = type(mine)()  # type: ignore[misc]
        for one in fields(mine):
            own = getattr(mine, one.name)
            if own != getattr(usual, one.name) and own != getattr(now, one.name):
                yield from _differing(f"{path}.{one.name}", own, getattr(now, one.name))
    elif mine != now:
        yield path, mine, now


def _plain(value: Any) -> str:
    return "on" if is_dataclass(value) else str(getattr(value, "value", value))


_lazy = word_of({"LAZY": True, "EAGER": False})
METADATA = "hoodie.metadata.enable"
_KNOWN: Known = {
    "hoodie.combine.before.upsert": ("combine_upserts", flag),
    "hoodie.combine.before.insert": ("combine_inserts", flag),
    "hoodie.write.set.null.for.missing.columns": ("null_for_missing", flag),
    "phantombase.write.allow.other.files": ("allow_other_files", flag),
    METADATA: ("drop_metadata_table", lambda text: not flag(text)),
    "hoodie.metadata.compact.max.delta.commits": (
        "metadata",
        lambda n: MetadataOptions(max_delta_commits=whole_number(n)),
    ),
    "hoodie.logfile.data.block.format": ("log_format", lambda text: LogFormat(text.strip().lower())),
    "hoodie.parquet.max.file.size": ("file_bytes", whole_number),
    "hoodie.parquet.small.file.limit": ("small_file_bytes", lambda text: max(0, whole_number(text))),
    "hoodie.upsert.shuffle.parallelism": ("slots", lambda text: whole_number(text) or None),
    "hoodie.write.num.retries.on.conflict.failures": ("retries", whole_number),
    "hoodie.cleaner.policy.failed.writes": ("lazy_rollback", _lazy),
    "hoodie.clean.failed.writes.policy": ("lazy_rollback", _lazy),
}
_BUCKET: Known = {
    "hoodie.bucket.index.num.buckets": ("buckets", whole_number),
    "hoodie.bucket.index.hash.field": ("bucket_fields", names_of_columns),
}
"""Names that have an effect with the bucket index only, as in Hudi."""
_BEAT: Known = {
    "hoodie.client.heartbeat.interval_in_ms": ("interval_ms", whole_number),
    "hoodie.client.heartbeat.tolerable.misses": ("misses", whole_number),
}
"""Names for the time after which a writer without a heartbeat counts as dead: an interval times misses."""
_BEAT_MS, _MISSES = 60_000, 2
"""Hudi's defaults: the interval in milliseconds, and the misses."""
_BY_BUCKET, _BUCKETS = "BUCKET", 256
"""The kind of index, and Hudi's default of buckets."""
_RECONCILE = "hoodie.datasource.write.reconcile.schema"
"""With it Hudi gives rows the columns that they lack, whatever the value of the other name."""
_DELETES = "hoodie.combine.before.delete"
"""Both values are the same here: a key that is deleted twice is deleted once."""
_PRESSURE: Known = {
    "phantombase.write.slow.trigger": ("slow_trigger", whole_number),
    "phantombase.write.slow.wait.seconds": ("slow_s", decimal_number),
    "phantombase.write.stop.trigger": ("stop_trigger", whole_number),
    "phantombase.write.stop.action": ("action", lambda text: FullAction(text.strip().lower())),
    "phantombase.write.stop.wait.seconds": ("wait_s", decimal_number),
}
"""Names for back-pressure, which Hudi does not have."""
_MODES = {"hoodie.compact.inline": Mode.INLINE, "hoodie.compact.schedule.inline": Mode.SCHEDULE}
_ARCHIVE: Known = {**ARCHIVE_CONF, "hoodie.archive.automatic": ("automatic", flag)}
"""Names for archiving after a write."""
_CLEAN: Known = {**CLEAN_CONF, "hoodie.clean.automatic": ("automatic", flag)}
"""Names for cleaning after a write."""
_CLUSTER: Known = {
    **CLUSTER_CONF,
    **dict.fromkeys(INLINE_CLUSTERING, ("inline", flag)),
    "hoodie.clustering.inline.max.commits": ("after_commits", whole_number),
}
"""Names for clustering after a write."""
_MODE = f"{SYNC}mode"
_SYNC: Known = {**SYNC_CONF, **dict.fromkeys(SYNC_ENABLED, ("on", flag))}
"""Names for the sync of a catalog after a write."""
_HUDIS_CLUSTER = ClusterOptions(
    grouping=Grouping.SIZE, target_size=1 << 30, small_size=300 << 20, after_commits=4, wait_s=0.0
)
"""Hudi's defaults; it does not wait for other writes, as `Writer.cluster`."""
_PARTS: Mapping[str, Known] = {
    "cluster": _CLUSTER,
    "archive": _ARCHIVE,
    "clean": _CLEAN,
    "sync": _SYNC,
    "pressure": _PRESSURE,
    "bucket": _BUCKET,
    "beat": _BEAT,
}
_NAMES_OF_PARTS = tuple(name for known in _PARTS.values() for name in known)
_OF_RECORDS = ("hoodie.record.index.update.partition.path", MovedKeys.STAY)
_GLOBAL = {
    "GLOBAL_SIMPLE": ("hoodie.simple.index.update.partition.path", MovedKeys.MOVE),
    "GLOBAL_BLOOM": ("hoodie.bloom.index.update.partition.path", MovedKeys.MOVE),
    "RECORD_INDEX": _OF_RECORDS,
    "GLOBAL_RECORD_LEVEL_INDEX": _OF_RECORDS,
}
"""The kinds of index with keys unique over all partitions: the name that says whether keys move, and its default."""
_MOVES = {name for name, _ in _GLOBAL.values()}
_OF_PARTITIONS = ("SIMPLE", "BLOOM", "RECORD_LEVEL_INDEX")
"""Kinds of index for which the key index is used, with the same result."""
OPERATION = "hoodie.datasource.write.operation"
STREAM = "hoodie.datasource.write.streaming.checkpoint.identifier"


def parse_write_conf(
    given_conf: Mapping[str, Any], options: WriteOptions, explicit: Collection[str] = ()
) -> tuple[dict[str, Any], WriteOptions, list[str]]:
    """The fields of `NewTable` that `conf` sets, `options` with the fields of the write that it sets, and the names
    that have no effect here and are not at Hudi's default. Complete dictionaries of Hudi's jobs may be given, with
    values of text, numbers and bools. `explicit`: fields of `options` that the job has set itself. UsageError: unknown
    names, wrong values, contradictions. UnsupportedError: something that phantombase does not do. One error names all
    that cannot be followed."""
    conf = without_doubles(texts(given_conf))
    problems: dict[str, PhantombaseError] = {}
    found: dict[str, Any] = {}
    given: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    lock, table, modes = dict[str, str](), dict[str, str](), dict[str, str]()
    output, schedule, ignored = list[str](), list[str](), list[str]()
    locks = {name.removeprefix(LOCK): value for name, value in conf.items() if name.startswith(LOCK)}
    has_lock = options.lock is not None or not is_tuning(locks)

    clusters = options.cluster is not None or any(_is_on(conf, name, usual=False) for name in INLINE_CLUSTERING)
    syncs = options.sync is not None or any(_is_on(conf, name, usual=False) for name in SYNC_ENABLED)
    glue = names_glue(conf) or (options.sync is not None and options.sync.is_glue)
    named_by: dict[str, dict[str, str]] = {part: {} for part in ("", *_PARTS)}

    def put(name: str, known: Known, part: str = "") -> None:
        field, value = parsed(known, name, conf[name])
        put_once(parts[part] if part else found, field, value, name, conf, named_by[part])

    def take(name: str, value: str) -> None:
        if name == _INDEX:
            found.update(moved_keys=_moved_keys(value, conf))
        elif name in _MOVES:
            moves = _flag_of(name, value)
            if name not in _decisive(conf) and moves is not (name != _OF_RECORDS[0]):
                ignored.append(name)
        elif name in (SERVICES, _DELETES):
            _flag_of(name, value)
        elif name.startswith(LOCK) and (name in hudi_names() or not is_tuning({name.removeprefix(LOCK): value})):
            lock[name.removeprefix(LOCK)] = value
            if has_effect_elsewhere(name, value, conf, has_lock=has_lock):
                ignored.append(name)
        elif name in SCHEDULE_CONF:
            parse_schedule_conf([f"{name}={value}"])
            schedule.append(f"{name}={value}")
        elif name in _MODES:
            modes[name] = value
        elif name in HUDI_NAMES:
            parse_hudi_conf([f"{name}={value}"])
            output.append(f"{name}={value}")
        elif name in _KNOWN:
            put(name, _KNOWN)
        elif name in _CLUSTER and name not in INLINE_CLUSTERING and not clusters:
            pass  # `idle` names it
        elif name in SYNC_CONF and (not syncs or (name in OF_GLUE and not glue)):
            ignored.extend([] if hudi_names()[name].agrees(value) else [name])
        elif (part := next((p for p, known in _PARTS.items() if name in known), None)) is not None:
            put(name, _PARTS[part], part)
            if name == _MODE and value.strip().lower() != "hms":
                ignored.append(name)
        elif is_table_conf(name):
            parse_table_conf({name: value})
            table[name] = value
        elif (undone := has_effect_elsewhere(name, value, conf, has_lock=has_lock)) is not None:
            ignored.extend([name] if undone else [])
        else:
            raise unknown(name, value, [*_KNOWN, *_MODES, *SCHEDULE_CONF, *HUDI_NAMES, *TABLE_NAMES, *_NAMES_OF_PARTS])

    with _collected(problems) as attempt:
        for name, value in conf.items():
            attempt(name, partial(take, name, value))
        if lock.get("provider", "").strip() == IN_PROCESS:
            if _is_concurrent(conf):  # of this process only; the lock of the storage excludes its threads, too
                found["lock"] = STORAGE
        elif not is_tuning(lock):
            named = next((value for name, value in conf.items() if table_field(name) == "name"), None)
            attempt("hoodie.write.lock.*", lambda: found.update(lock=lock_of(lock, named)))
        attempt(CONCURRENCY, lambda: _check_rollback(conf, found))
        attempt("hoodie.client.heartbeat.*", lambda: found.update(_heartbeat(parts["beat"])))
        attempt(_INDEX, lambda: found.update(_buckets(conf, parts["bucket"], options, ignored)))
        if output:
            found["output"] = replace(options.output, **parse_hudi_conf(output))
        if modes or schedule:
            what = "the compaction after a write"
            attempt(what, lambda: found.update(compaction=_compaction(options.compaction, modes, schedule)))
        attempt("the table", lambda: given.update(parse_table_conf(table)))
        attempt("the services after a write", lambda: _put_services(found, parts, options, explicit, conf))
        if _is_on(conf, _RECONCILE, usual=False) and "null_for_missing" in found:
            found["null_for_missing"] = True
        attempt("the options of the write", lambda: check_agreement(found, options, explicit, conf, option_of))
    if METADATA in conf:
        given["metadata_table"] = not found["drop_metadata_table"]
    return given, replace(options, **found), sorted(ignored)


def option_of(name: str) -> str | None:
    """The option of a write, or else the field of a new table, that a name sets; None: neither."""
    by_part = {part: part for part in ("cluster", "clean", "archive", "sync")}
    by_part |= {"pressure": "back_pressure", "beat": "heartbeat_expiry_s"}
    if name in (_INDEX, *_MOVES):
        return "moved_keys"
    if name.startswith(LOCK):
        return "lock"
    if name in SCHEDULE_CONF or name in _MODES:
        return "compaction"
    if name in HUDI_NAMES:
        return "output"
    for part, known in _PARTS.items():
        if name in known:
            return by_part.get(part) or known[name][0]
    return _KNOWN[name][0] if name in _KNOWN else table_field(name)


@contextmanager
def _collected(problems: dict[str, PhantombaseError]) -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Gives a function that keeps the error of a step under a name; raises one error for all of them at the end."""

    def attempt(name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except (UsageError, UnsupportedError) as error:
            problems[name] = error

    yield attempt
    if problems:
        raise refused(problems)


def _put_services(
    found: dict[str, Any],
    parts: Mapping[str, dict[str, Any]],
    options: WriteOptions,
    explicit: Collection[str],
    conf: Mapping[str, str],
) -> None:
    if parts["pressure"]:
        found["back_pressure"] = replace(options.back_pressure or BackPressure(), **parts["pressure"])
    if given := parts["clean"]:  # as with Hudi, it is on unless `hoodie.clean.automatic` is false; so is archiving
        own, infers = options.clean or CleanOptions(), "clean" not in explicit
        found["clean"] = clean_of(own, given, infers=infers) if given.get("automatic", True) else None
    if given := parts["cluster"]:
        is_on = given.pop("inline", options.cluster is not None)
        found["cluster"] = replace(options.cluster or _HUDIS_CLUSTER, **given) if is_on else None
    if given := parts["archive"]:
        is_on = given.pop("automatic", True)
        found["archive"] = replace(options.archive or ArchiveOptions(), **given) if is_on else None
    if given := parts["sync"]:
        found["sync"] = _sync(given, options, conf)
    if not _is_on(conf, SERVICES, usual=True):
        found |= {"cluster": None, "clean": None, "archive": None, "metadata": None}
        found["compaction"] = replace(found.get("compaction", options.compaction), mode=Mode.WRITE_ONLY)
    if "heartbeat_s" in explicit:
        found.pop("heartbeat_s", None)  # no name sets it: it follows from the time after which a writer counts as dead


def _sync(given: dict[str, Any], options: WriteOptions, conf: Mapping[str, str]) -> SyncOptions | None:
    """The sync that names ask for, if it is on. UsageError: they name no catalog, or several."""
    if not given.pop("on", options.sync is not None):
        return None
    made = with_site(replace(options.sync or SyncOptions(), **sync_fields(given)))
    if made.to is None:
        raise UsageError(
            "the sync of a catalog needs its metastore",
            expected=f"{SYNC}metastore.uris=thrift://HOST:PORT",
            todo="Set it, or HIVE_CONF_DIR to the folder of hive-site.xml. The metastore is asked, whatever the mode. "
            f"For AWS Glue set hoodie.meta.sync.client.tool.class={GLUE_TOOL}.",
        )
    return made


def _is_on(conf: Mapping[str, str], name: str, *, usual: bool) -> bool:
    """A flag; a value that is neither true nor false is reported elsewhere."""
    with suppress(ValueError):
        return flag(conf.get(name, ""))
    return usual


def parse_operation_conf(conf: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields `operation`, `partitions` and `stream` of a writer, as far as `conf` sets them, and all other
    configurations. UsageError: an unknown operation, or no valid name of a stream."""
    rest = texts(conf)
    named, partitions = rest.pop(OPERATION, None), rest.pop(PARTITIONS, None)
    found: dict[str, Any] = {}
    if named is not None:
        try:
            found["operation"] = Operation(named.strip().upper())
        except ValueError as error:
            known = ", ".join(one.value.lower() for one in Operation)
            raise UsageError(f"not a value of {OPERATION}", expected=known, found=named) from error
    if partitions is not None:
        found["partitions"] = tuple(part.strip() for part in partitions.split(","))
    if (stream := rest.pop(STREAM, None)) is not None:
        found["stream"] = checked_stream(stream.strip())
    return found, rest


def _flag_of(name: str, value: str) -> bool:
    return bool(parsed({name: ("", flag)}, name, value)[1])


def _is_concurrent(conf: Mapping[str, str]) -> bool:
    return conf.get(CONCURRENCY, "").strip().upper() == OPTIMISTIC


def _check_rollback(conf: Mapping[str, str], found: Mapping[str, Any]) -> None:
    """UsageError: there are concurrent writers, and each of their pending writes would be rolled back at once."""
    if _is_concurrent(conf) and found.get("lazy_rollback") is False:
        raise UsageError(
            "with concurrent writers only those whose heartbeat has expired count as dead, as in Hudi",
            expected="hoodie.clean.failed.writes.policy=LAZY",
            found="EAGER",
            todo="Leave it out, or set LAZY.",
        )


def _heartbeat(given: Mapping[str, int]) -> dict[str, float]:
    """The times of heartbeats; the interval is at most the default: others check it by their own settings."""
    if not given:
        return {}
    expiry_s = given.get("interval_ms", _BEAT_MS) / 1000 * given.get("misses", _MISSES)
    return {"heartbeat_expiry_s": expiry_s, "heartbeat_s": min(BEAT_S, expiry_s / 2)}


def _buckets(
    conf: Mapping[str, str], given: Mapping[str, Any], options: WriteOptions, ignored: list[str]
) -> Mapping[str, Any]:
    """The bucket index, if the dictionary or else the write asks for it; else its names are ignored, as in Hudi."""
    usual = _BY_BUCKET if options.buckets is not None else ""
    if conf.get(_INDEX, usual).strip().upper() == _BY_BUCKET:
        return {"buckets": options.buckets or _BUCKETS, **given}
    ignored.extend(name for name in _BUCKET if name in conf and not hudi_names()[name].agrees(conf[name]))
    return {}


def _compaction(options: CompactionOptions, modes: Mapping[str, str], schedule: list[str]) -> CompactionOptions:
    flags = {_MODES[name]: _flag_of(name, value) for name, value in modes.items()}
    chosen = [mode for mode, on in flags.items() if on]
    if len(chosen) > 1:
        (first, value), (second, other) = modes.items()
        raise contradiction(first, value, second, other)
    return replace(
        options,
        mode=chosen[0] if chosen else options.mode if flags.get(options.mode, True) else Mode.WRITE_ONLY,
        schedule=replace(options.schedule, **parse_schedule_conf(schedule, options.schedule.strategies)),
    )


def _decisive(conf: Mapping[str, str]) -> tuple[str, ...]:
    """The name that says whether keys move under the index of `conf`; empty: none does."""
    return _GLOBAL.get(conf.get(_INDEX, "").strip().upper(), ())[:1]


def _moved_keys(kind: str, conf: Mapping[str, str]) -> MovedKeys | None:
    """See `WriteOptions`. UnsupportedError: another kind of index."""
    name = kind.strip().upper()
    if name in _GLOBAL:
        decisive, usual = _GLOBAL[name]
        moves = _flag_of(decisive, conf[decisive]) if decisive in conf else None
        return usual if moves is None else MovedKeys.MOVE if moves else MovedKeys.STAY
    if name not in (*_OF_PARTITIONS, _BY_BUCKET):
        raise UnsupportedError(
            f"this {_INDEX} is not supported", expected=", ".join((*_OF_PARTITIONS, *_GLOBAL, _BY_BUCKET)), found=kind
        )
    return None
