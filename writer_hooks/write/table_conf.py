"""Hudi's write configuration as the description of a table, and its names that set no option here.

The latter agree with what phantombase does, or have no effect here (how Hudi's client works, or services other than the
write), or contradict phantombase: then they are refused, since the job would not get what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from phantombase.compactor_daemon.hudi_names import (
    CONCURRENCY,
    LOCK,
    Known,
    NameKind,
    flag,
    hudi_names,
    is_concurrent,
    is_of_a_family,
    meant,
    not_done,
    parsed,
    put_once,
    same_value,
    setting,
    used_by_the_lock,
    word_of,
)
from phantombase.compactor_daemon.services.hudi_conf import ARCHIVE_CONF, CLEAN_CONF, CLUSTER_CONF, SCHEDULE_CONF
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.merge_settings import (
    KEY_GENERATOR_CLASSES,
    MERGE_STRATEGIES,
    PAYLOAD,
    check_payload,
    is_stored_payload,
    mode_of_payload,
)
from phantombase.timeline.format.table_config import MergeMode, TableConfig
from phantombase.timeline.instants.triggers import BY_TIME, TriggerStrategy
from phantombase.timeline.option import whole_number

from ..options import FullAction, Mode, Operation, Write
from ..schema.key_generator import generator_kind, inferred_kind
from ..schema.new_table import NewTable
from ..schema.partition_times import PREFIX, PartitionTimes

_ORDERING = (
    "hoodie.datasource.write.precombine.field",
    "hoodie.table.ordering.fields",
    "hoodie.table.precombine.field",
)
_log = get_logger()
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
        raise not_done(one, name, value)
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
    if options.back_pressure is not None and options.back_pressure.slow_trigger is None:
        yield "phantombase.write.slow.wait.seconds"
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
    todo = meant(name, [*known, *hudi_names()]) or "Leave it out: no write of Hudi 0.15.0 and 1.2.0 reads it."
    return UsageError("not a known configuration of a write or a table", found=f"{name}={value}", todo=todo)


_OLD_PREFIX = "hoodie.deltastreamer.keygen.timebased."


def names_of_columns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _generator_class(text: str) -> str:
    return KEY_GENERATOR_CLASSES[text.strip().replace("Avro", "")]


def _generator_type(text: str) -> str:
    return text.strip().upper().removesuffix("_AVRO")


_mode = word_of({mode.value: mode for mode in (MergeMode.EVENT_TIME, MergeMode.COMMIT_TIME)})
_strategy = word_of({strategy: mode for mode, strategy in MERGE_STRATEGIES.items()})


def _version(text: str) -> int:
    """A number, or Hudi's word for it."""
    return _VERSION_WORDS.get(text.strip().upper()) or whole_number(text)


_VERSION_WORDS = {"SIX": 6, "EIGHT": 8, "NINE": 9}

_KNOWN: Known = {
    "hoodie.table.name": ("name", str),
    "hoodie.datasource.write.table.name": ("name", str),
    "hoodie.database.name": ("database", str),
    "hoodie.write.table.version": ("version", whole_number),
    "hoodie.datasource.write.recordkey.field": ("key_fields", names_of_columns),
    "hoodie.datasource.write.partitionpath.field": ("partition_fields", names_of_columns),
    "hoodie.datasource.write.precombine.field": ("ordering_fields", names_of_columns),
    "hoodie.table.ordering.fields": ("ordering_fields", names_of_columns),
    "hoodie.datasource.write.keygenerator.class": ("key_generator", _generator_class),
    "hoodie.datasource.write.keygenerator.type": ("key_generator", _generator_type),
    "hoodie.datasource.write.hive_style_partitioning": ("hive_style", flag),
    "hoodie.datasource.write.partitionpath.urlencode": ("url_encode", flag),
    "hoodie.write.record.merge.mode": ("merge_mode", _mode),
    "hoodie.record.merge.mode": ("merge_mode", _mode),
    "hoodie.datasource.write.payload.class": ("merge_mode", mode_of_payload),
    "hoodie.table.timeline.timezone": ("utc_timezone", word_of({"UTC": True, "LOCAL": False})),
    "hoodie.populate.meta.fields": ("meta_columns", flag),
    "hoodie.table.recordkey.fields": ("key_fields", names_of_columns),
    "hoodie.table.partition.fields": ("partition_fields", names_of_columns),
    "hoodie.table.precombine.field": ("ordering_fields", names_of_columns),
    "hoodie.table.keygenerator.class": ("key_generator", _generator_class),
    "hoodie.table.keygenerator.type": ("key_generator", _generator_type),
    "hoodie.base.path": ("base_path", str),
    "path": ("base_path", str),
    "hoodie.table.version": ("version", _version),
    "hoodie.write.record.merge.strategy.id": ("merge_mode", _strategy),
}
"""The field of `NewTable` that a name sets; `base_path` is none of them, but the path that a write must be given."""
_OF_TABLES = frozenset(("hoodie.table.version", "hoodie.write.record.merge.strategy.id"))
"""Hudi derives these from the others: at the default of a release they have no effect."""
TABLE_NAMES = frozenset(_KNOWN)
"""All names of `parse_table_conf` but those of times, which begin as `is_table_conf` knows, and alternative ones."""


def is_table_conf(name: str) -> bool:
    return _own(name) in TABLE_NAMES or name.startswith((PREFIX, _OLD_PREFIX))


def table_field(name: str) -> str | None:
    """The field of `NewTable` that a name sets; None: it sets none."""
    if not is_table_conf(name):
        return None
    return _KNOWN[_own(name)][0] if _own(name) in _KNOWN else "times"


def _own(name: str) -> str:
    """The name of the setting for which this name may be an alternative."""
    return name if name in _KNOWN else setting(name)


def check_times(names: Iterable[str]) -> None:
    """UsageError: a name for the times of partitions that Hudi does not have; they name the folders of rows."""
    for name in names:
        if name not in hudi_names():
            known = [one for one in hudi_names() if one.startswith(PREFIX)]
            todo = meant(name, known)
            raise UsageError("not an option of partition times", expected=", ".join(known), found=name, todo=todo)


def parse_table_conf(conf: Mapping[str, str]) -> dict[str, Any]:
    """Hudi's names as fields of `NewTable`. UsageError: an unknown name, a wrong value, or two that contradict."""
    found: dict[str, Any] = {}
    times: dict[str, str] = {}
    named: dict[str, str] = {}
    for name, value in conf.items():
        if (time := time_name(name)).startswith(PREFIX):
            check_times([time])
            if value.strip():  # Hudi's default of some is an empty text: none
                put_once(times, time, value, name, conf, named)
            continue
        own = _own(name)
        if own in _OF_TABLES and hudi_names()[own].agrees(value):
            continue
        if own == PAYLOAD and is_stored_payload(value):
            continue  # compared with the table: `not_followed`
        if own not in _KNOWN:
            raise UsageError(
                "not a known configuration of a write or a table",
                found=f"{name}={value}",
                todo="docs/reference/hudi-names.md lists the names that are followed.",
            )
        field, converted = parsed({name: _KNOWN[own]}, name, value)
        put_once(found, field, converted, name, conf, named)
    return {**found, "times": tuple(sorted(times.items()))} if times else found


_VERSION, _DATABASE = "hoodie.write.table.version", "hoodie.database.name"
_VERSIONS = ("hoodie.table.version", "hoodie.table.initial.version", _VERSION)
_MERGES: Mapping[str, Callable[[str], MergeMode]] = {
    "hoodie.compaction.payload.class": mode_of_payload,
    "hoodie.record.merge.strategy.id": _strategy,
    "hoodie.write.record.merge.strategy.id": _strategy,
}
"""Names that say how rows merge: `not_followed` compares them with the table's merge mode."""
_COMPARED = TABLE_NAMES - {"hoodie.table.version", _DATABASE, _VERSION, *_MERGES}
"""Names of fields that `check_same_table` compares."""
_SMALL_FILES, _METADATA_DUE = "hoodie.parquet.small.file.limit", "hoodie.metadata.compact.max.delta.commits"


def table_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Fields of `NewTable` under Hudi's names, as far as an existing table may have other values."""
    named = {"version": _VERSION, "database": _DATABASE}
    return {**{named[f]: str(v) for f, v in given.items() if f in named}, **dict(given.get("times", ()))}


def not_followed(config: TableConfig, conf: Mapping[str, str]) -> set[str]:
    """The names of `conf` that this table does not follow, for a warning. A name that hoodie.properties has must have
    the stored value, as Hudi's writers compare them. (Seen: 0.15.0 and 1.2.0, "Config conflict".) An explicit default
    of Hudi may differ from the stored value, and is returned. UsageError: a name contradicts the table. Fields that
    `check_same_table` compares are left to it."""
    stored = {setting(name): (name, value) for name, value in config.properties.items()}
    _check_merger(config, conf)
    check_payload(config.properties, conf.get(PAYLOAD, ""))
    found: set[str] = set()
    for name, value in conf.items():
        own, one = setting(name), hudi_names().get(name)
        is_usual = one is not None and one.agrees(value)
        if own in stored and _own(name) not in _COMPARED and not _says(own, value, stored[own][1]):
            if is_usual:
                found.add(name)
            elif one is None or one.kind is NameKind.SET:
                raise UsageError(
                    "another table is at this path",
                    expected=f"{name}={value}",
                    found="{}={}".format(*stored[own]),
                    todo="Leave it out, or write with the table's own settings.",
                )
        elif (
            (own == _VERSION and not _says(own, value, str(config.version)))
            or (own == _DATABASE and own not in stored and value.strip() != "")
            or (own in _MERGES and _MERGES[own](value) is not config.merge_mode.as_new)
            or (table_field(name) == "times" and not is_usual and _is_idle(name, config, conf))
            or (own == _METADATA_DUE and not is_usual and not config.metadata_partitions)
            or (own == _SMALL_FILES and not is_usual and config.captures_changes)
        ):
            found.add(name)
    return found


def _is_idle(name: str, config: TableConfig, conf: Mapping[str, str]) -> bool:
    """Whether an option of partition times has no effect with the others: folders have the same names without it."""
    kind, own = generator_kind(config), time_name(name)
    if kind != "TIMESTAMP":
        return kind != "CUSTOM"
    given = {time_name(n): value for n, value in conf.items() if table_field(n) == "times"}
    try:
        without = PartitionTimes.of(_without(config.properties, own), _without(given, own))
        return without == PartitionTimes.of(config.properties, given)
    except (UsageError, UnsupportedError):
        return False


def time_name(name: str) -> str:
    """The name, with today's prefix in place of the old one of partition times."""
    return PREFIX + name.removeprefix(_OLD_PREFIX) if name.startswith(_OLD_PREFIX) else name


def _without(options: Mapping[str, str], name: str) -> dict[str, str]:
    return {one: value for one, value in options.items() if one != name}


def _check_merger(config: TableConfig, conf: Mapping[str, str]) -> None:
    """UnsupportedError: a class with which Hudi 0.15.0 merges by ordering value, whatever the table's rule (seen)."""
    name = next((name for name in conf if setting(name) == _MERGERS), None)
    if name is None or _BY_ORDERING not in conf[name] or config.version != 6:
        return
    if config.merge_mode.as_new is MergeMode.COMMIT_TIME:
        raise UnsupportedError(
            f"Hudi 0.15.0 merges by this {name} the row with the greater ordering value, and the table lets the later "
            "write win",
            expected="none",
            found=conf[name],
            todo="Leave it out; or make a table that merges so: hoodie.datasource.write.payload.class="
            "org.apache.hudi.common.model.DefaultHoodieRecordPayload.",
        )


_MERGERS, _BY_ORDERING = "hoodie.write.record.merge.custom.implementation.classes", "HoodieSparkRecordMerger"


def _says(setting: str, value: str, stored: str) -> bool:
    words = _VERSION_WORDS if setting in _VERSIONS else {}
    return same_value(str(words.get(value.strip().upper(), value)), stored)


_GENERATOR_TYPES = ("hoodie.datasource.write.keygenerator.type", "hoodie.table.keygenerator.type")
_GENERATOR_CLASSES = ("hoodie.datasource.write.keygenerator.class", "hoodie.table.keygenerator.class")
_KEY = "hoodie.datasource.write.recordkey.field"
_NEEDED = {
    "name": ("a name", '.table("NAME")', "hoodie.table.name=NAME"),
    "key_fields": ("a record key", '.key("COLUMN")', f"{_KEY}=COLUMN"),
}
"""What the description of a new table needs: in words, the method, and Hudi's name."""
_GREATER = (
    "hoodie.datasource.write.payload.class=org.apache.hudi.common.model.DefaultHoodieRecordPayload, if the greater "
    "ordering value is to win"
)
NEW_TABLE_VERSION = 9
"""The version of new tables: the newest one; there a pending delta commit never delays scheduling."""


def described_table(given: Mapping[str, Any], hoodie: Mapping[str, str], *, takes_keyless: bool) -> NewTable:
    """A new table. `given`: the fields of `NewTable` and `base_path`; `hoodie`: the names that set some of them.
    `takes_keyless`: the write fits a table without keys. UsageError, UnsupportedError: incomplete, or as of Hudi's
    Spark writers another table."""
    if missing := [name for name in _NEEDED if name not in given]:
        by_name = bool(hoodie)  # the advice follows the way in which the table is described
        ways = " and ".join(_NEEDED[name][1 + by_name] for name in missing)
        keyless = f"{_KEY}= (empty)" if by_name else ".key() without columns"
        if "key_fields" in missing and takes_keyless:
            ways += f", or {keyless} for a keyless table"
        raise UsageError(
            "there is no table at this path, and the description of a new one is incomplete",
            expected=" and ".join(_NEEDED[name][0] for name in missing),
            todo=f"Add {ways}; or check the path.",
        )
    described = {k: v for k, v in given.items() if k != "base_path"}
    spec = NewTable(**{"version": NEW_TABLE_VERSION, **described})
    by_name = any(table_field(name) == "ordering_fields" for name in hoodie)
    if spec.version == 6 and spec.merge_mode is None and spec.ordering_fields and by_name:
        spec = replace(spec, merge_mode=MergeMode.COMMIT_TIME)  # as 0.15.0; 1.x makes one of the greater value
        _log.warning("merge_rule_not_given", rule="the later write wins", instead=_GREATER)
    by_type = next((name for name in _GENERATOR_TYPES if name in hoodie), None)
    infers_custom = spec.version > 6  # 0.15 takes the types for parts of the columns' names
    partitions = tuple(f if infers_custom else f.partition(":")[0] for f in spec.partition_fields)
    inferred = inferred_kind(spec.key_fields, partitions)
    if by_type is not None and spec.kind != inferred and not any(n in hoodie for n in _GENERATOR_CLASSES):
        raise UnsupportedError(
            f"Hudi's Spark writers do not read {by_type}, and make another table",
            expected=f"{inferred}, which they infer from the fields",
            found=hoodie[by_type],
            todo=f"Leave it out, or give {_GENERATOR_CLASSES[0]}.",
        )
    return spec
