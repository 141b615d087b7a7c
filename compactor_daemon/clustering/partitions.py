"""Which partitions a clustering looks at: Hudi's selections, and a filter over the columns of partitions.

    none                 all
    recent-days          the newest ones by name, --lookback-partitions of them behind --skip-newest-partitions
    selected-partitions  those from --begin-partition to --end-partition, by name
    day-rolling          the n-th of 24 by name in the n-th hour of the day

The rules are those of Hudi 1.2.0 (ClusteringPlanPartitionFilter), which 0.15.0 has too. First the listed partitions
count, or, without a list, those whose whole path the regular expression matches; then the selection. The filter is an
addition: it must hold for all rows of a partition, as far as the names of folders show the values of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import pyarrow as pa

from phantombase.timeline.errors import UsageError
from phantombase.timeline.filter.bind import bound
from phantombase.timeline.filter.possible import may_match
from phantombase.timeline.filter.tree import Filter, columns_of, parse_filter
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.planning.strategies import compiled
from phantombase.timeline.read.pruning import partition_bounds
from phantombase.timeline.table.table import Table

from .options import ClusterOptions, PartitionSelection


def chosen_partitions(
    table: Table, partitions: Iterable[str], options: ClusterOptions, timeline: Timeline
) -> frozenset[str] | None:
    """The partitions of these that are chosen; None: all are. UsageError: the filter asks for columns whose values the
    folders do not show, or cannot be read."""
    if not options.chooses_partitions:
        return None
    now = table.now() if options.partition_filter is PartitionSelection.DAY_ROLLING else None
    found = selected(sorted(set(partitions)), options, now)
    if options.where is not None:
        schema = table.newest_schema(timeline).arrow
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
                path=partition,
                expected="columns of partitions, whose folders are named by their values",
                found=column,
                todo="Name the partitions: --partition, --partition-regex, or --partition-filter.",
            )
    return may_match(node, bounds)
