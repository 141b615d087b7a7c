"""Which partitions of the metadata table are built, and which are taken out first (no I/O).

Built again are those that are asked for, or all. On version 6 all are, whatever is asked for: a folder does not show
that its base files are from before its partition was filled again. Without the partition `files`, or if it is built
again, the whole metadata table is dropped first, and indexes that only Hudi can build are left to Hudi."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.commit_metadata import TableSchema
from phantombase.timeline.metadata_table.index_definitions import (
    READ_AS_DEFINED,
    UNBUILDABLE,
    known_definitions,
    secondary_index_in,
    taken_out_indexes,
    undefined_indexes,
)
from phantombase.timeline.metadata_table.records.keys import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    EXPRESSION_INDEX,
    FILES,
    PARTITION_STATS,
    RECORD_INDEX,
    SECONDARY_INDEX,
    RowIndex,
)
from phantombase.timeline.option import check_least, least_of, option, same_option, spelled_class
from phantombase.timeline.table.table import Snapshot

if TYPE_CHECKING:
    from .runs import ListedState

KNOWN = (FILES, COLUMN_STATS, PARTITION_STATS, BLOOM_FILTERS, RECORD_INDEX)
"""The partitions that are built here, besides secondary indexes."""
_ALL = {"secondary": SECONDARY_INDEX, "expression": EXPRESSION_INDEX}
"""All of these indexes that are defined."""
_NAMES = f"{', '.join(KNOWN)}, {SECONDARY_INDEX}NAME, {EXPRESSION_INDEX}NAME"


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What is built. `indexes`: partitions of the metadata table; none: Hudi's defaults for the table's version, or
    those that are built again. `pending_wait_s`: seconds that the end waits for pending actions of other programs."""

    indexes: tuple[str, ...] = option(
        (),
        f"partitions to build, with commas: {', '.join(KNOWN)}, {SECONDARY_INDEX}NAME:COLUMN (one that is defined "
        f"without :COLUMN, all of these: secondary), {EXPRESSION_INDEX}NAME (one that is defined; all of these: "
        "expression) [default: those that Hudi's writers build, and secondary indexes that are defined]",
        metavar="NAMES",
    )
    pending_wait_s: float = option(
        60.0, "seconds to wait, at the end, for pending actions of Hudi, before the build is given up", least=0
    )
    record_index_groups: int = option(10, "file groups of a new record index", least=1, most=10_000)
    memory_limit: int = same_option(OutputOptions, "memory_limit")

    def __post_init__(self) -> None:
        check_least(self, least_of(BuildOptions))
        if self.indexes and not self.names:
            raise UsageError("no index is named", expected=_NAMES, found=repr(self.indexes[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """The partitions that are asked for."""
        return tuple(self.columns)

    @property
    def columns(self) -> dict[str, str]:
        """The same with the columns of secondary indexes; "": not said."""
        parts = (part.partition(":") for one in self.indexes for part in one.split(","))
        return {name.strip(): column.strip() for name, _, column in parts if name.strip()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`names`: what is built; `indexes`: of that the indexes of rows; `expressions`: of that those of expressions.
    `again`: what is taken out first. `dropped`: of that what is left to Hudi."""

    names: tuple[str, ...]
    again: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    indexes: tuple[RowIndex, ...] = ()

    @property
    def expressions(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name.startswith(EXPRESSION_INDEX))

    @property
    def is_new(self) -> bool:
        """Whether there is no metadata table when the partitions are filled."""
        return FILES in self.names


def choose(
    table: Snapshot,
    options: BuildOptions,
    taken_out: Collection[str],
    definitions: Mapping[str, Any],
    *,
    again: bool,
    also: Collection[str] = (),
) -> Chosen:
    """Chooses by the settings, the newest schema and the `definitions` of indexes. `taken_out`: what earlier runs took
    out, or meant to build, and did not. `again`: partitions that are there are built again, too. `also`: what is built
    with what is asked for, if it can be. UnsupportedError: an index that the table cannot have, or that is not built
    here. UsageError: the metadata table has no partition `files`; an index of another column."""
    asked = dict(options.columns)
    for word, beginning in _ALL.items():
        defined = [name for name in definitions if name.startswith(beginning)]
        if word in asked and defined:
            asked = {name: column for name, column in asked.items() if name != word} | dict.fromkeys(defined, "")
    secondary, expressions = _secondary(table, definitions, asked), _expressions(table, definitions)
    for name in asked:
        _check_known(table, name, expressions)
    known = (*KNOWN, *secondary, *expressions)
    chosen = _chosen(table, {*asked, *(set(also) & set(known))}, taken_out, known, again)
    measured_schema(table, chosen.names)
    of_rows = {RECORD_INDEX: RowIndex(), **secondary}
    return replace(chosen, indexes=tuple(of_rows[name] for name in chosen.names if name in of_rows))


def _secondary(table: Snapshot, definitions: Mapping[str, Any], asked: Mapping[str, str]) -> dict[str, RowIndex]:
    """The secondary indexes that are defined or asked for, by partition: those that can be built here. Errors: one that
    is asked for and cannot be."""
    found = dict[str, RowIndex]()
    for name in sorted({*definitions, *asked}):
        defined = secondary_index_in(definitions, name)
        if defined is None and (name not in asked or not name.startswith(SECONDARY_INDEX)):
            continue
        column = asked.get(name, "")
        if defined is None:
            column = column or name.removeprefix(SECONDARY_INDEX)
            defined = RowIndex(partition=name, column=column, by_value=table.config.version >= _BY_VALUE_FROM)
        elif column not in ("", defined.column):
            raise UsageError(
                "the table has an index of this name on another column",
                path=table.storage.base_path,
                expected=f"{name}:{defined.column}",
                found=f"{name}:{column}",
                todo="Use another name, or drop the index with Hudi (DROP INDEX) first.",
            )
        why = _cannot_index(table, defined.column)
        if not why:
            found[name] = defined
        elif name in asked:
            raise _cannot_have(table, name, why)
    return found


def taken_out(table: Snapshot) -> dict[str, str]:
    """The secondary and expression indexes that writes have taken out, and why no service builds them again; "": the
    metadata service does. Without those that Hudi has dropped since then. MalformedError: damaged definitions."""
    if FILES not in table.config.built_metadata_partitions or not (found := taken_out_indexes(table)):
        return {}
    definitions = known_definitions(table.storage)
    said = dict.fromkeys(_secondary(table, definitions, {}), "")
    said |= {name: _ASKED.format(name) for name in _expressions(table, definitions)}
    return {name: definitions[name].get(UNBUILDABLE) or said.get(name, _LEFT) for name, there in found.items() if there}


_LEFT = "only Hudi's CREATE INDEX builds it"
_ASKED = "`metadata TABLE --create --indexes {}` builds it, by which Hudi's own queries miss rows"


def _expressions(table: Snapshot, definitions: Mapping[str, Any]) -> tuple[str, ...]:
    """The expression indexes that are defined and can be built here."""
    defined = [name for name in definitions if name.startswith(EXPRESSION_INDEX)]
    if not defined or not table.layout.has_completion_times or not table.timeline.completed_writes:
        return ()
    from phantombase.timeline.metadata_table.expression_index import expressions_in  # late: it takes pyarrow

    schema = table.newest_schema()
    found = {} if schema.evolved is not None else expressions_in(definitions, defined, schema)
    return tuple(name for name, one in found.items() if one is not None)


_BY_VALUE_FROM = 9
"""The first table version whose secondary indexes look up a value in one file group."""


def _cannot_index(table: Snapshot, column: str) -> str:
    from phantombase.timeline.metadata_table.records.entries import cannot_index_column  # late: it takes pyarrow

    if not table.layout.has_completion_times:
        return "Hudi 0.15 does not know it"
    if not table.config.populate_meta_fields:
        return _NO_META
    schema = table.newest_schema() if table.timeline.completed_writes else None
    if schema is None or schema.evolved is not None:
        return "it has no completed write" if schema is None else "its columns evolve on read"
    return cannot_index_column(schema.arrow, column)


def _chosen(
    table: Snapshot, asked: Collection[str], taken_out: Collection[str], known: Collection[str], again: bool
) -> Chosen:
    config = table.config
    if config.building_metadata_partitions and not again:
        raise UnsupportedError(
            "Hudi is building an index of this table",
            path=table.storage.base_path,
            found=", ".join(config.building_metadata_partitions),
            todo="Wait until it is built, or run with --rebuild, which builds it.",
        )
    there = {*config.metadata_partitions, *taken_out}
    defined = {name for name in known if name.startswith(READ_AS_DEFINED)} - _built_if_named(table, known)
    before = there | defined if again and there else set(taken_out)
    names = set(asked) or (before & set(known)) or {*_usual(table), *defined}
    if any(name.startswith(SECONDARY_INDEX) for name in names) and RECORD_INDEX not in config.built_metadata_partitions:
        names.add(RECORD_INDEX)  # by which Hudi finds the rows of the keys
    if not again and FILES not in config.built_metadata_partitions and there - set(taken_out):
        raise UsageError(
            "the metadata table has no partition files",
            path=table.storage.base_path,
            todo="`compactor-daemon metadata TABLE --rebuild` builds all of it.",
        )
    if not again:
        undefined = set(undefined_indexes(table)) & set(known)
        names -= set(config.built_metadata_partitions) - undefined
        if names and FILES not in config.built_metadata_partitions:
            names.add(FILES)
        return Chosen(names=_ordered(names), again=_ordered(names & undefined))
    if FILES in names or FILES not in config.built_metadata_partitions or not table.layout.has_completion_times:
        names |= {FILES, *(there & set(known))}
        return Chosen(
            names=_ordered(names), again=config.metadata_partitions, dropped=tuple(sorted(there - set(known)))
        )
    return Chosen(names=_ordered(names), again=_ordered(names & set(config.metadata_partitions)))


def _built_if_named(table: Snapshot, known: Collection[str]) -> set[str]:
    """The defined indexes that are built only if they are named: those of expressions, by which Hudi's own queries miss
    rows, unless the table has them; and those that Hudi has dropped."""
    expressions = {name for name in known if name.startswith(EXPRESSION_INDEX)}
    if not table.config.metadata_partitions:
        return expressions
    found = taken_out_indexes(table)
    return expressions.intersection(found) | {name for name, there in found.items() if not there}


def measured_schema(table: Snapshot, names: Collection[str]) -> TableSchema | None:
    """The newest schema, whose columns are measured; None: none are. UnsupportedError: they cannot be."""
    if not any(name in (COLUMN_STATS, PARTITION_STATS) or name.startswith(EXPRESSION_INDEX) for name in names):
        return None
    schema = table.newest_schema() if table.timeline.completed_writes else None
    if schema is None or schema.evolved is not None:
        why = "without a completed write" if schema is None else "with schema evolution on read"
        raise UnsupportedError(
            f"column statistics of a table {why} are not supported",
            path=table.storage.base_path,
            todo=f"Build {FILES} alone: --indexes {FILES}.",
        )
    return schema


def _ordered(names: Collection[str]) -> tuple[str, ...]:
    return (*(name for name in KNOWN if name in names), *sorted(set(names) - set(KNOWN)))


def _usual(table: Snapshot) -> tuple[str, ...]:
    """What Hudi's writers build by default: 0.15.0 on version 6, 1.2.0 on 8 and 9."""
    if not table.layout.has_completion_times or not table.timeline.completed_writes:
        return (FILES,)
    return (FILES, COLUMN_STATS, PARTITION_STATS) if table.config.partition_fields else (FILES, COLUMN_STATS)


def _check_known(table: Snapshot, name: str, expressions: Collection[str]) -> None:
    if name not in KNOWN and not name.startswith(SECONDARY_INDEX) and name not in expressions:
        raise UnsupportedError(
            "phantombase does not build this index",
            path=table.storage.base_path,
            expected=_NAMES,
            found=name,
            todo="Hudi's CREATE INDEX defines an index of an expression and builds it."
            if name.startswith(EXPRESSION_INDEX)
            else "A Hudi writer that has it enabled builds it.",
        )
    why = ""
    if name == PARTITION_STATS and not table.layout.has_completion_times:
        why = "Hudi 0.15 does not know it"
    elif name == PARTITION_STATS and not table.config.partition_fields:
        why = "the table has no partitions"
    elif name == RECORD_INDEX and not table.config.populate_meta_fields:
        why = _NO_META
    if why:
        raise _cannot_have(table, name, why)


_NO_META = "its rows have no meta columns"


def _cannot_have(table: Snapshot, name: str, why: str) -> UnsupportedError:
    return UnsupportedError(f"the table cannot have this index: {why}", path=table.storage.base_path, found=name)


_NAME_BYTES, _STATS_BYTES, _FILTER_BYTES, _KEY_SHARE = 20, 160, 1 << 10, 2


def approximate_bytes(table: Snapshot, names: Collection[str], state: ListedState) -> int:
    """The size of the log files, without a read of any file."""
    text = sum(len(name) + _NAME_BYTES for of in state.files.values() for name in of)
    schema = measured_schema(table, names)
    columns = 0 if schema is None else len(schema.arrow.names)
    keys = sum(size for of in state.files.values() for size in of.values()) // _KEY_SHARE
    each = {
        FILES: text,
        COLUMN_STATS: state.count * columns * _STATS_BYTES,
        PARTITION_STATS: len(state.files) * columns * _STATS_BYTES,
        BLOOM_FILTERS: state.count * _FILTER_BYTES,
    }
    return sum(each.get(name, keys) for name in names)
