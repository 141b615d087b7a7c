"""Leaves out file slices that cannot hold a row that a read's filter matches (pure)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..filter.bind import bound
from ..filter.parse import parse_filter
from ..filter.possible import may_match
from ..filter.tree import And, Filter
from ..format.table_config import TableConfig
from ..view.view import FileSlice
from .filter_keys import partition_bounds, wanted_keys
from .where import Where


def where_of(wanted: Sequence[Filter | str], config: TableConfig, schema: pa.Schema) -> Where | None:
    """A read's filters, all of which must be true, bound to the table's schema.

    UsageError: see `parse_filter` and `bound`.
    """
    nodes = [bound(parse_filter(one) if isinstance(one, str) else one, schema) for one in wanted]
    if not nodes:
        return None
    node = nodes[0] if len(nodes) == 1 else And(tuple(nodes))
    return Where(filter=node, schema=schema, keys=wanted_keys(node, config, schema))


def prune(slices: Sequence[FileSlice], where: Where | None, config: TableConfig) -> tuple[FileSlice, ...]:
    """The slices whose partition's values let a row match."""
    if where is None:
        return tuple(slices)
    partitions = {s.partition for s in slices}
    kept = {p for p in partitions if may_match(where.filter, partition_bounds(p, config, where.schema))}
    return tuple(s for s in slices if s.partition in kept)
