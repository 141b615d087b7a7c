"""What a clustering knows about file groups besides the view: `GroupFacts`.

**Partitions.** Which ones are looked at: Hudi's selections, and a filter over the columns of partitions.

    none                 all
    recent-days          the newest ones by name, --lookback-partitions of them behind --skip-newest-partitions
    selected-partitions  those from --begin-partition to --end-partition, by name
    day-rolling          the n-th of 24 by name in the n-th hour of the day

The rules are those of Hudi 1.2.0 (ClusteringPlanPartitionFilter), which 0.15.0 has too. First the listed partitions
count, or, without a list, those whose whole path the regular expression matches; then the selection. The filter is an
addition: it must hold for all rows of a partition, as far as the names of folders show the values of columns.

**Order.** Which base files a clustering has written in a given order, by its plan on the timeline or in the archive. A
plan of phantombase names the columns and the order, and its commit shows that phantombase executed it. A plan of Hudi
names only the columns; the order of several is a setting of the job that executed it. So it counts for one column. What
is not known counts as not sorted.

**Reasons to rewrite.** By the footers of base files. A file that was just written has none: each rule allows what
`write_base_file` writes for the same schema and options."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.bloom import ALWAYS_TRUE, SATURATED_KEYS
from phantombase.timeline.codec.conform import is_promotion
from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.codec.parquet_read import open_parquet, readable
from phantombase.timeline.codec.parquet_write import BLOOM_FILTER, CUT_AT, cut_bytes
from phantombase.timeline.errors import MissingFileError, UsageError, in_table
from phantombase.timeline.filter.possible import bound, may_match
from phantombase.timeline.filter.tree import Filter, columns_of, parse_filter
from phantombase.timeline.format.ledger import CLUSTERED
from phantombase.timeline.format.replace_request import ClusterPlan, decode_cluster_plan
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.planning.schedule import busy_file_groups
from phantombase.timeline.planning.strategies import compiled
from phantombase.timeline.prefetch import prefetched
from phantombase.timeline.read.pruning import partition_bounds
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.view import BaseFile, FileGroup, GroupKey, TableView

from .options import ClusterOptions, Grouping, PartitionSelection, Rewrite

_FACTOR = 2
"""Row groups have a wrong size with more times the rows of the option, or if they are more times as many as needed."""
_ROWS_MAX = 64 << 20
"""Of a row group that pyarrow writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What is known about file groups. `busy`: why some are held; `sorted`: those whose base file a clustering wrote in
    the wanted order. `partitions`: the chosen ones; None: all. `reasons`: why base files are rewritten."""

    busy: Mapping[GroupKey, str] = field(default_factory=dict)
    sorted: Collection[GroupKey] = frozenset()
    partitions: Collection[str] | None = None
    reasons: Mapping[GroupKey, frozenset[Rewrite]] = field(default_factory=dict)

    def takes(self, partition: str) -> bool:
        """Whether a partition is chosen."""
        return self.partitions is None or partition in self.partitions


def group_facts(table: Table, view: TableView, options: ClusterOptions, footers: Footers) -> GroupFacts:
    """What the timeline, the folders and the footers in scope say. UsageError: see `chosen_partitions`. MalformedError,
    StorageError: a footer cannot be read."""
    living, seen = living_groups(view), table.with_timeline(view.timeline)
    facts = GroupFacts(
        busy=busy_file_groups(seen).groups,
        sorted=sorted_already(table, view, options),
        partitions=chosen_partitions(seen, [group.partition for group in living], options),
    )
    if not options.reasons:
        return facts
    last = {group.key: group.slices[-1].base for group in living if facts.takes(group.partition)}
    bases = {key: base for key, base in last.items() if base is not None and key not in facts.busy}
    schema = seen.schema_to_cluster().arrow
    found = dict(zip(bases, footers.reasons(list(bases.values()), schema, options.reasons), strict=True))
    if Rewrite.SORT_ORDER in options.reasons:
        found |= {key: found[key] | {Rewrite.SORT_ORDER} for key in bases.keys() - facts.sorted}
    return replace(facts, reasons=found)


def living_groups(view: TableView) -> list[FileGroup]:
    """The file groups that a reader reads."""
    return [g for g in view.living() if g.slices]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footers:
    """The reasons of base files in one run. Each footer is read once, since files never change: a second choice, under
    the lock, reads those of new files only. Memory: a path and its reasons for each file."""

    storage: Storage
    output: OutputOptions
    _seen: dict[pa.Schema, dict[str, frozenset[Rewrite]]] = field(default_factory=dict)

    def reasons(
        self, bases: Sequence[BaseFile], schema: pa.Schema, asked: frozenset[Rewrite]
    ) -> list[frozenset[Rewrite]]:
        """Those `asked` for that the footers of these files show. `schema`: the table's. MalformedError, StorageError:
        one cannot be read."""
        if asked == {Rewrite.SORT_ORDER}:
            return [frozenset()] * len(bases)
        seen = self._seen.setdefault(schema, {})

        def found(base: BaseFile) -> frozenset[Rewrite]:
            with self.storage.open_input(base.path, whole=False) as source, readable("base file", base.path):
                file = open_parquet(source)
                return frozenset(rewrite_reasons(file.metadata, file.schema_arrow, schema, self.output))

        new = [base for base in bases if base.path not in seen]
        seen |= zip((base.path for base in new), prefetched(new, found), strict=True)
        return [seen[base.path] & asked for base in bases]


def rewrite_reasons(
    footer: pq.FileMetaData, stored: pa.Schema, schema: pa.Schema, output: OutputOptions
) -> Iterator[Rewrite]:
    """How a base file differs from what `write_base_file` would write (pure). `stored`: its schema; `schema`: the
    table's; `output`: what is wanted."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = (group.column(at) for group in groups for at in range(group.num_columns))
    codec = "UNCOMPRESSED" if output.codec is Codec.NONE else output.codec.name
    if any(chunk.compression != codec for chunk in chunks):
        yield Rewrite.CODEC
    pairs = footer.metadata or {}
    if _has_other_row_groups([group.num_rows for group in groups], pairs, output):
        yield Rewrite.ROW_GROUPS
    columns = list(_columns(pa.struct(list(stored)), pa.struct(list(schema))))
    if any(want is None for _, want in columns):
        yield Rewrite.DROPPED_COLUMNS
    if any(want is not None and have != want and is_promotion(have, want) for have, want in columns):
        yield Rewrite.WIDENED_TYPES
    if RECORD_KEY in schema.names and _lacks_filter(pairs.get(BLOOM_FILTER.encode()), footer.num_rows, output.bloom):
        yield Rewrite.BLOOM_FILTERS


def _has_other_row_groups(rows: Sequence[int], pairs: Mapping[bytes, bytes], output: OutputOptions) -> bool:
    wanted = min(output.row_group_rows, _ROWS_MAX)
    if max(rows, default=0) > _FACTOR * wanted:
        return True
    cut_at = pairs.get(CUT_AT.encode(), b"")
    if cut_at.isdigit() and int(cut_at) >= cut_bytes(output):  # the memory limit allows no larger ones
        return False
    return len(rows) > _FACTOR * -(-sum(rows) // wanted)


def _columns(have: pa.DataType, want: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType | None]]:
    """The types of a file's columns, each with the type that the table has for it; None: it has no such column."""
    kind = pa.types
    if kind.is_struct(have) and kind.is_struct(want):
        for one in have:
            at = want.get_field_index(one.name)
            yield from _columns(one.type, want.field(at).type) if at >= 0 else [(one.type, None)]
    elif kind.is_list(have) and kind.is_list(want):
        yield from _columns(have.value_type, want.value_type)
    elif kind.is_map(have) and kind.is_map(want):
        yield from _columns(have.item_type, want.item_type)
    else:
        yield have, want


def _lacks_filter(text: bytes | None, keys: int, bloom: Bloom) -> bool:
    """For too many keys the writer puts a filter that says "maybe" to each, too."""
    if text is None:
        return True
    return bloom is Bloom.ON and keys <= SATURATED_KEYS and text == ALWAYS_TRUE.text.encode()


def sorted_already(table: Table, view: TableView, options: ClusterOptions) -> frozenset[GroupKey]:
    """The file groups whose newest base file has rows in the order of `options`; none if the order does not matter."""
    if not options.sort_by or not (options.grouping is Grouping.SIZE or Rewrite.SORT_ORDER in options.reasons):
        return frozenset()
    last = ((group.key, group.slices[-1].base) for group in living_groups(view))
    bases = {key: base for key, base in last if base is not None}
    times = {base.name.instant for base in bases.values()}
    found = dict(_active(table, view, times, options))
    if missing := times - {i.requested_time for i in view.timeline.completed}:
        found |= _archived(table, view, missing, options)
    return frozenset(key for key, base in bases.items() if _is_of(base, found.get(base.name.instant)))


def _is_of(base: BaseFile, files: frozenset[str] | None) -> bool:
    return files is not None and base.path in files


def _active(
    table: Table, view: TableView, times: set[str], options: ClusterOptions
) -> Iterable[tuple[str, frozenset[str]]]:
    """The files that completed clusterings wrote in this order, by instant."""
    for done in view.timeline.completed:
        if done.family != "replacecommit" or done.requested_time not in times:
            continue
        try:
            metadata = table.commit_metadata(done)
            plan = table.files.plan_there(replace(done, action=table.layout.pending_clustering), decode_cluster_plan)
        except MissingFileError:
            continue  # archived since
        if plan is not None and _is_in_order(plan, CLUSTERED in metadata.extra_metadata, options):
            yield done.requested_time, metadata.named_files


def _archived(table: Table, view: TableView, times: set[str], options: ClusterOptions) -> dict[str, frozenset[str]]:
    timeline = table.with_archive(view.timeline)
    writes = [i for i in timeline.archived if i.family == "replacecommit" and i.requested_time in times]
    if not writes:
        return {}
    commits, plans = table.archived_commits(writes), table.archived_records(writes, plans=True)
    found = {}
    for write, metadata in commits.items():
        plan = decode_cluster_plan(plans.get(write, b""), f"the archived plan of {write.requested_time}")
        if plan is not None and _is_in_order(plan, CLUSTERED in metadata.extra_metadata, options):
            found[write.requested_time] = metadata.named_files
    return found


def _is_in_order(plan: ClusterPlan, is_ours: bool, options: ClusterOptions) -> bool:
    if plan.sort_by != options.sort_by:
        return False
    if len(plan.sort_by) == 1:
        return True
    return is_ours and plan.sort_order == options.sort_order.value


def chosen_partitions(table: Snapshot, partitions: Iterable[str], options: ClusterOptions) -> frozenset[str] | None:
    """The partitions of these that are chosen; None: all are. UsageError: the filter asks for columns whose values the
    folders do not show, or cannot be read."""
    if not options.chooses_partitions:
        return None
    now = table.now() if options.partition_filter is PartitionSelection.DAY_ROLLING else None
    found = selected(sorted(set(partitions)), options, now)
    if options.where is not None:
        schema = table.newest_schema().arrow
        node = bound(parse_filter(options.where), schema)
        found = [one for one in found if _matches(node, one, table.config, schema)]
    return frozenset(found)


def selected(partitions: Sequence[str], options: ClusterOptions, now: datetime | None) -> list[str]:
    """Hudi's selection among partitions, which are sorted by name. `now`: for the hour of the day (pure)."""
    found = [one for one in partitions if _is_named(one, options)]
    match options.partition_filter:
        case PartitionSelection.RECENT_DAYS:
            newest = found[::-1][options.skip_newest_partitions :]
            return newest[: options.lookback_partitions] if options.lookback_partitions else newest
        case PartitionSelection.SELECTED_PARTITIONS:
            begin, end = options.begin_partition, options.end_partition
            return [one for one in found if (begin is None or one >= begin) and (end is None or one <= end)]
        case PartitionSelection.DAY_ROLLING:
            assert now is not None, "the hour decides"
            return found[now.hour :: 24]
        case _:
            return found


def _is_named(partition: str, options: ClusterOptions) -> bool:
    if options.partitions:
        return partition in options.partitions
    return options.partition_regex is None or compiled(options.partition_regex).fullmatch(partition) is not None


def _matches(node: Filter, partition: str, config: TableConfig, schema: pa.Schema) -> bool:
    bounds = partition_bounds(partition, config, schema)
    for column in sorted(columns_of(node)):
        if bounds(column).low is None:
            raise UsageError(
                "the names of folders do not show the values of a column in the filter",
                path=in_table(partition),
                expected="columns of partitions, whose folders are named by their values",
                found=column,
                todo="Name the partitions: --partition, --partition-regex, or --partition-filter.",
            )
    return may_match(node, bounds)
