"""Which partitions of the metadata table are built, and which are taken out first (no I/O).

Built again are those that are asked for, or all. On version 6 all are, whatever is asked for: a folder does not show
that its base files are from before its partition was filled again. Without the partition `files`, or if it is built
again, the whole metadata table is dropped first, and indexes that only Hudi can build are left to Hudi."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.metadata_table.records.keys import (
    BLOOM_FILTERS,
    COLUMN_STATS,
    FILES,
    PARTITION_STATS,
    RECORD_INDEX,
)
from phantombase.timeline.option import check_least, least_of, option, same_option, spelled_class
from phantombase.timeline.table.schema_finder import TableSchema
from phantombase.timeline.table.table import Snapshot

from .content import ListedState

KNOWN = (FILES, COLUMN_STATS, PARTITION_STATS, BLOOM_FILTERS, RECORD_INDEX)
"""The partitions that are built here."""


@spelled_class
@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What is built. `indexes`: partitions of the metadata table; none: Hudi's defaults for the table's version, or
    those that are built again. `pending_wait_s`: seconds that the end waits for pending actions of other programs."""

    indexes: tuple[str, ...] = option(
        (),
        f"partitions to build, with commas: {', '.join(KNOWN)} [default: those that Hudi's writers build]",
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
            raise UsageError("no index is named", expected=", ".join(KNOWN), found=repr(self.indexes[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """The partitions that are asked for."""
        return tuple(name.strip() for one in self.indexes for name in one.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """`names`: what is built. `again`: what is taken out first. `dropped`: of that what is left to Hudi."""

    names: tuple[str, ...]
    again: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether there is no metadata table when the partitions are filled."""
        return FILES in self.names


def choose(table: Snapshot, options: BuildOptions, taken_out: Collection[str], *, again: bool) -> Chosen:
    """Chooses by the settings and the newest schema. `taken_out`: what earlier runs took out, or meant to build, and
    did not. `again`: partitions that are there are built again, too. UnsupportedError: an index that the table cannot
    have, or that is not built here. UsageError: the metadata table has no partition `files`."""
    asked = options.names
    for name in asked:
        _check_known(table, name)
    chosen = _chosen(table, asked, taken_out, again)
    measured_schema(table, chosen.names)
    return chosen


def _chosen(table: Snapshot, asked: Collection[str], taken_out: Collection[str], again: bool) -> Chosen:
    config = table.config
    if config.building_metadata_partitions and not again:
        raise UnsupportedError(
            "Hudi is building an index of this table",
            path=table.storage.base_path,
            found=", ".join(config.building_metadata_partitions),
            todo="Wait until it is built, or run with --rebuild, which builds it.",
        )
    there = {*config.metadata_partitions, *taken_out}
    names = set(asked) or ((there if again else set(taken_out)) & set(KNOWN)) or set(_usual(table))
    if not again and FILES not in config.built_metadata_partitions and there - set(taken_out):
        raise UsageError(
            "the metadata table has no partition files",
            path=table.storage.base_path,
            todo="`compactor-daemon metadata TABLE --rebuild` builds all of it.",
        )
    if not again:
        names -= set(config.built_metadata_partitions)
        if names and FILES not in config.built_metadata_partitions:
            names.add(FILES)
        return Chosen(names=_ordered(names))
    if FILES in names or FILES not in config.built_metadata_partitions or not table.layout.has_completion_times:
        names |= {FILES, *(there & set(KNOWN))}
        return Chosen(
            names=_ordered(names), again=config.metadata_partitions, dropped=tuple(sorted(there - set(KNOWN)))
        )
    return Chosen(names=_ordered(names), again=_ordered(names & set(config.metadata_partitions)))


def measured_schema(table: Snapshot, names: Collection[str]) -> TableSchema | None:
    """The newest schema, whose columns are measured; None: none are. UnsupportedError: they cannot be."""
    if not {COLUMN_STATS, PARTITION_STATS} & set(names):
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
    return tuple(name for name in KNOWN if name in names)


def _usual(table: Snapshot) -> tuple[str, ...]:
    """What Hudi's writers build by default: 0.15.0 on version 6, 1.2.0 on 8 and 9."""
    if not table.layout.has_completion_times or not table.timeline.completed_writes:
        return (FILES,)
    return (FILES, COLUMN_STATS, PARTITION_STATS) if table.config.partition_fields else (FILES, COLUMN_STATS)


def _check_known(table: Snapshot, name: str) -> None:
    if name not in KNOWN:
        raise UnsupportedError(
            "phantombase does not build this index",
            path=table.storage.base_path,
            expected=", ".join(KNOWN),
            found=name,
            todo="A Hudi writer that has it enabled builds it.",
        )
    why = ""
    if name == PARTITION_STATS and not table.layout.has_completion_times:
        why = "Hudi 0.15 does not know it"
    elif name == PARTITION_STATS and not table.config.partition_fields:
        why = "the table has no partitions"
    elif name == RECORD_INDEX and not table.config.populate_meta_fields:
        why = "its rows have no meta columns"
    if why:
        raise UnsupportedError(f"the table cannot have this index: {why}", path=table.storage.base_path, found=name)


_NAME_BYTES, _STATS_BYTES, _FILTER_BYTES, _KEY_SHARE = 20, 160, 1 << 10, 2


def approximate_bytes(table: Snapshot, names: Collection[str], state: ListedState) -> int:
    """The size of the log files, without a read of any file."""
    text = sum(len(name) + _NAME_BYTES for of in state.files.values() for name in of)
    schema = measured_schema(table, names)
    columns = 0 if schema is None else len(schema.arrow.names)
    each = {
        FILES: text,
        COLUMN_STATS: state.count * columns * _STATS_BYTES,
        PARTITION_STATS: len(state.files) * columns * _STATS_BYTES,
        BLOOM_FILTERS: state.count * _FILTER_BYTES,
        RECORD_INDEX: sum(size for of in state.files.values() for size in of.values()) // _KEY_SHARE,
    }
    return sum(each[name] for name in names)
