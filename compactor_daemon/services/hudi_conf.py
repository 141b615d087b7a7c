"""Hudi's configuration names for phantombase's options: `--conf hoodie.parquet.compression.codec=gzip`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.option import whole_number
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.strategies import STRATEGY_CONF, Strategy

from ..archiving.choice import ArchiveOptions
from ..catalogs.options import SYNC_CONF, SYNC_ENABLED, SyncOptions, sync_fields
from ..cleaning.choice import CleanOptions, Policy
from ..clustering.options import ClusterOptions, Grouping, PartitionSelection, SortOrder
from ..hudi_names import (
    CONCURRENCY,
    LOCK,
    Known,
    NameKind,
    contradiction,
    flag,
    hudi_names,
    is_concurrent,
    is_of_a_family,
    is_tuning,
    listed,
    lock_of,
    meant,
    not_done,
    parsed,
    put_once,
    setting,
    word_of,
)
from ..metadata_services.due import MetadataOptions
from ..options import PartitionTtl, PartitionTtlOptions

_log = get_logger()


_CODECS = {**{codec.value: codec for codec in Codec}, "uncompressed": Codec("none"), "lz4_raw": Codec("lz4")}
_STRATEGIES = {s.name: s for s in TriggerStrategy if s is not TriggerStrategy.ALWAYS}
"""By Hudi's names; ALWAYS is not one of them."""
_ORDERS = {"linear": SortOrder.ORDER, "z-order": SortOrder.ZORDER, "hilbert": SortOrder.HILBERT}
_SELECTIONS = {one.name: one for one in PartitionSelection}
_STRATEGIES_OF_SIZE = ("SparkSizeBased", "FlinkSizeBased", "JavaSizeBased")
_GROUPINGS = {
    f"{package}{name}ClusteringPlanStrategy": Grouping.SIZE
    for name in _STRATEGIES_OF_SIZE
    for package in ("", "org.apache.hudi.client.clustering.plan.strategy.")
}
_BY_SIZE = frozenset(("max_group_bytes", "max_groups", "single_group"))
"""Fields that only the grouping of Hudi's plans uses."""


_KNOWN: Known = {
    "hoodie.parquet.compression.codec": ("codec", word_of(_CODECS)),
    "hoodie.parquet.bloom.filter.enabled": ("bloom", word_of({"true": Bloom.ON, "false": Bloom.OFF})),
    "hoodie.memory.compaction.max.size": ("memory_limit", whole_number),
    "hoodie.memory.spillable.map.path": ("spill_dir", str.strip),
}
SCHEDULE_CONF: Known = {
    "hoodie.compact.inline.trigger.strategy": ("strategy", word_of(_STRATEGIES)),
    "hoodie.compact.inline.max.delta.commits": ("max_delta_commits", whole_number),
    "hoodie.compact.inline.max.delta.seconds": ("max_delta_seconds", whole_number),
    **STRATEGY_CONF,
}
HUDI_NAMES = frozenset(_KNOWN)
"""The names `parse_hudi_conf` knows."""
_CLEANS: Known = {
    "policy": ("policy", word_of({policy.hudi_name: policy for policy in Policy})),
    "commits.retained": (Policy.COMMITS.value, whole_number),
    "hours.retained": (Policy.HOURS.value, whole_number),
    "fileversions.retained": (Policy.VERSIONS.value, whole_number),
}
CLEAN_CONF: Known = {f"hoodie.{word}.{name}": known for word in ("clean", "cleaner") for name, known in _CLEANS.items()}
"""How much is retained, by policy. The names with `cleaner` are the older ones."""
ARCHIVE_CONF: Known = {
    "hoodie.keep.min.commits": ("min_instants", whole_number),
    "hoodie.keep.max.commits": ("max_instants", whole_number),
}
METADATA_CONF: Known = {"hoodie.metadata.compact.max.delta.commits": ("max_delta_commits", whole_number)}
INLINE_CLUSTERING = ("hoodie.clustering.inline", "hoodie.datasource.clustering.inline.enable")
_PLAN = "hoodie.clustering.plan.strategy."
CLUSTER_CONF: Known = {
    f"{_PLAN}class": ("grouping", word_of(_GROUPINGS)),
    f"{_PLAN}target.file.max.bytes": ("target_size", whole_number),
    f"{_PLAN}small.file.limit": ("small_size", whole_number),
    f"{_PLAN}max.bytes.per.group": ("max_group_bytes", whole_number),
    f"{_PLAN}max.num.groups": ("max_groups", whole_number),
    f"{_PLAN}single.group.clustering.enabled": ("single_group", flag),
    f"{_PLAN}sort.columns": ("sort_by", listed),
    "hoodie.layout.optimize.strategy": ("sort_order", word_of(_ORDERS)),
    "hoodie.clustering.plan.partition.filter.mode": ("partition_filter", word_of(_SELECTIONS)),
    f"{_PLAN}daybased.lookback.partitions": ("lookback_partitions", whole_number),
    f"{_PLAN}daybased.skipfromlatest.partitions": ("skip_newest_partitions", whole_number),
    f"{_PLAN}cluster.begin.partition": ("begin_partition", str),
    f"{_PLAN}cluster.end.partition": ("end_partition", str),
    f"{_PLAN}partition.regex.pattern": ("partition_regex", str),
    f"{_PLAN}partition.selected": ("partitions", listed),
}
_TTL = "hoodie.partition.ttl."
TTL_CONF: Known = {
    f"{_TTL}management.strategy.type": ("strategy", word_of({one.name: one for one in PartitionTtl})),
    f"{_TTL}strategy.days.retain": ("days_retain", whole_number),
    f"{_TTL}strategy.partition.selected": ("partitions", listed),
    f"{_TTL}strategy.max.delete.partitions": ("max_partitions", whole_number),
}
_OF_COMMANDS: Mapping[type, Known] = {
    ScheduleOptions: SCHEDULE_CONF,
    OutputOptions: _KNOWN,
    CleanOptions: CLEAN_CONF,
    ArchiveOptions: {
        **ARCHIVE_CONF,
        "hoodie.clean.commits.retained": ("commits_retained", whole_number),
        "hoodie.cleaner.commits.retained": ("commits_retained", whole_number),
        "hoodie.compact.inline.max.delta.commits": ("compaction_commits", whole_number),
    },
    MetadataOptions: METADATA_CONF,
    ClusterOptions: CLUSTER_CONF,
    SyncOptions: SYNC_CONF,
    PartitionTtlOptions: TTL_CONF,
}
"""Hudi's names for the options of commands, by option dataclass."""
KINDS = frozenset(_OF_COMMANDS)
"""The option dataclasses with fields that have names of Hudi."""
_DONE_BY_COMMANDS = frozenset(("hoodie.clean.automatic", "hoodie.archive.automatic", *SYNC_ENABLED))
"""They set what runs after a write; a command runs, whatever their values."""
_LAZY = frozenset(("hoodie.clean.failed.writes.policy", "hoodie.cleaner.policy.failed.writes"))
"""Commands roll back only what has no heartbeat, as Hudi does with the value LAZY."""
_LOCKS, _DEATHS = "which lock is held", "when another writer counts as dead"
_OWN_OPTION = {_LOCKS: "this command holds no lock", _DEATHS: "a command has Hudi's defaults"}
_DROPS = "hoodie.metadata.enable"
_FEW = 6
"""An error lists at most this number of names: more are no help in one line."""


@dataclass(frozen=True, slots=True)
class CommandConf:
    """What Hudi's names set for a command. `pairs`: `name=value` by option dataclass; `lock`: as `--lock` names it."""

    pairs: Mapping[type, list[str]]
    lock: str | None


def conf_names(kind: type) -> frozenset[str]:
    return frozenset(_OF_COMMANDS.get(kind, ()))


def parse_hudi_conf(pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` pairs as fields of OutputOptions; UsageError for other names that are not at a default."""
    return _parsed(pairs, _KNOWN)


def parse_schedule_conf(pairs: Iterable[str], strategies: tuple[Strategy, ...] = ()) -> dict[str, Any]:
    """`name=value` pairs as fields of ScheduleOptions. `strategies`: of other options. UsageError: no such name."""
    found = _parsed(pairs, SCHEDULE_CONF)
    if not strategies and "strategies" not in found and any(field in found for field, _ in STRATEGY_CONF.values()):
        found["strategies"] = (Strategy.LOG_FILE_SIZE,)  # Hudi's default, to which these settings apply
    return found


def clean_of(options: CleanOptions, given: Mapping[str, Any], *, infers: bool) -> CleanOptions:
    """The options with the fields `given`, of `CLEAN_CONF`. As in Hudi, only the number of the policy counts. `infers`:
    without a policy, the policy is that of the only number."""
    numbers = [policy for policy in Policy if policy.value in given]
    inferred = numbers[0] if infers and len(numbers) == 1 else None
    policy = given.get("policy") or inferred or options.policy
    retain = given.get(policy.value, options.retain if policy is options.policy else None)
    return replace(options, policy=policy, retain=retain)


def command_conf(
    kinds: Collection[type], pairs: Iterable[str], files: Iterable[Path], *, locks: bool, lock: str | None = None
) -> CommandConf:
    """What a command takes from Hudi's names: options of these kinds, of which several may take the same name, and,
    with `locks`, the table lock. `lock`: the lock that was typed. `pairs`: typed; each must be taken, or set what is
    done anyway. `files`: properties files of Hudi's jobs, whose other names are one warning. A typed pair overrides a
    pair of a file. UsageError, UnsupportedError: an unknown name; one that requests other rows, files, locks or
    rollbacks."""
    typed = [one for pair in pairs if not _is_the_command(kinds, *(one := _pair(pair)))]
    given = {
        n: value for file in files for n, value in properties(file).items() if not _is_the_command(kinds, n, value)
    }
    own = {name for kind in kinds for name in _OF_COMMANDS.get(kind, {})}
    if locks:
        own |= {name for name in (*dict(typed), *given) if name in hudi_names() and hudi_names()[name].why == _LOCKS}
    for name, value in typed:
        _check(name, value, own, is_typed=True)
    left = sorted(name for name, value in given.items() if not _check(name, value, own, is_typed=False))
    if left:
        _log.warning("configurations_without_meaning", names=" ".join(left))
    settings = {setting(name) for name, _ in typed if name in hudi_names()}
    of_files = [(n, v) for n, v in given.items() if n not in hudi_names() or setting(n) not in settings]
    all_ = [*of_files, *typed]
    by_kind = {
        kind: [f"{name}={value}" for name, value in all_ if name in _OF_COMMANDS[kind]]
        for kind in kinds
        if kind in KINDS
    }
    return CommandConf(by_kind, _lock({name: value for name, value in all_ if name in own}, lock) if locks else None)


def _is_the_command(kinds: Collection[type], name: str, value: str) -> bool:
    """Whether a pair asks for what the command does."""
    return PartitionTtlOptions in kinds and (name, value.strip().lower()) == (f"{_TTL}inline", "true")


def _lock(conf: Mapping[str, str], typed: str | None) -> str | None:
    named = {name.removeprefix(LOCK): value.strip() for name, value in conf.items() if name.startswith(LOCK)}
    found = None if is_tuning(named) else lock_of(named, "{name}")  # without a key, Hudi's is the table's name
    if found is not None and typed not in (None, found):
        raise contradiction("--lock", str(typed), f"{LOCK}*", found)
    if CONCURRENCY in conf:
        is_concurrent(conf[CONCURRENCY], has_lock=found is not None or typed is not None)
    return found or typed


def conf_fields(kind: type, pairs: Collection[str], typed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an option dataclass that pairs of `command_conf` set. `typed`: fields that options set."""
    if kind is ScheduleOptions:
        return parse_schedule_conf(pairs, typed.get("strategies") or ())
    found = _parsed(pairs, _OF_COMMANDS[kind])
    if kind is SyncOptions:
        return sync_fields(found)
    if kind is ClusterOptions and "grouping" not in typed and not _BY_SIZE.isdisjoint(found):
        found.setdefault("grouping", Grouping.SIZE)
    if kind is not CleanOptions or not found:
        return found
    policy = {"policy": typed["policy"]} if "policy" in typed else {}
    made = clean_of(CleanOptions(), {**found, **policy}, infers=True)
    names = [name for name, _, value in (pair.partition("=") for pair in pairs) if not hudi_names()[name].agrees(value)]
    if idle := sorted(n for n in names if CLEAN_CONF[n][0] not in ("policy", made.policy.value)):
        _log.warning("configurations_without_meaning", names=" ".join(idle))  # numbers of other policies
    if "policy" in found and "policy" in typed and found["policy"] != typed["policy"]:
        return {"policy": found["policy"]}
    return {"policy": made.policy, **({"retain": made.retain} if made.retain is not None else {})}


def properties(path: Path, within: tuple[Path, ...] = ()) -> dict[str, str]:
    """The names and values of a properties file, as Hudi's jobs read it (DFSPropertiesConfiguration, seen: 1.2.0): a
    backslash is a character, a line is whole, and the name ends at the first "=", or blank where there is none.
    `include=FILE` is the place of the names of another file, beside this one; `within`: the files that include it.
    UsageError: one cannot be read, or includes itself."""
    if path in within:
        raise UsageError("a properties file includes itself", path=str(path), todo="Take the include out of it.")
    try:
        lines = [" ".join(line.split()) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UsageError(
            "the properties file cannot be read",
            path=str(path),
            found=str(error),
            todo="Name a file that this user may read.",
        ) from error
    found: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, _, value = line.partition("=" if "=" in line else " ")
            if name.strip() == "include":
                found |= properties(path.parent / value.strip(), (*within, path))
            else:
                found[name.strip()] = value.strip()
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError("not a configuration", expected="NAME=VALUE", found=text)
    return name.strip(), value


def _check(name: str, value: str, own: Collection[str], *, is_typed: bool) -> bool:
    """Whether a pair is taken, or sets what is done anyway. Errors: see `command_conf`."""
    one = hudi_names().get(name)
    if name in own or (one is not None and (one.agrees(value) or name in _DONE_BY_COMMANDS)):
        return True
    if name in _LAZY and value.strip().upper() == "LAZY":
        return True
    if one is not None and one.kind is NameKind.ONLY:
        raise not_done(one, name, value)
    if not is_typed and (is_of_a_family(name) if one is None else one.why != _DEATHS and name != _DROPS):
        return False
    raise _not_taken(name, value, own)


def _parsed(pairs: Iterable[str], known: Known) -> dict[str, Any]:
    options: dict[str, Any] = {}
    said: dict[str, str] = {}
    conf: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in known and (one := hudi_names().get(name)) is not None and one.agrees(value):
            continue  # Hudi's default, spelled out
        if name not in known:
            raise _not_taken(name, value, known)
        field, converted = parsed(known, name, value)
        if name in conf and options[field] != converted:
            raise contradiction(name, conf[name], name, value)
        put_once(options, field, converted, name, conf | {name: value}, said)
        conf[name] = value
    return options


def _not_taken(name: str, value: str, known: Collection[str]) -> PhantombaseError:
    """The error for a name that a command does not take, with what to do about it."""
    one = hudi_names().get(name)
    if one is None:
        todo = meant(name, [*known, *hudi_names()])
    elif name == _DROPS:
        todo = "Leave it out here: --drop-metadata-table of compact and schedule turns it off."
    elif one.kind is NameKind.SET:
        todo = f"Leave it out here: {_OWN_OPTION.get(one.why, 'writes take it, and commands have options')}."
    else:
        todo = f"Leave it out: {one.why}."
    expected = ", ".join(sorted(known)) if 0 < len(known) <= _FEW else None
    return UsageError("not a known Hudi configuration", expected=expected, found=f"{name}={value}", todo=todo)
