"""Conflicts of a write with instants added since it began: whether the write may complete (pure).

Two writes conflict if they change one file group, as in Hudi's optimistic concurrency control. These conflict too:

    a new file of the same bucket      two writers that both open a bucket would leave two file groups of it
    inserts into the same partition    under a key index both may have inserted one key (not `insert`, `bulk_insert`)
    rows anywhere                      the same, if keys are unique over all partitions
    another schema                     two writes both change it: the later one would remove the other's column
    a compaction requested since then  version 6: the write's log is on the slice that the plan compacts, but the plan
                                       does not name it. All versions: a rewritten base file would be older than the
                                       compaction's; and a key found in a base file may be deleted by the plan's logs
    a clustering requested since then  it replaces the file group without the rows of this write (also Hudi's rule)
    a partition that one overwrites    the other's rows would be kept with the new ones, or be lost silently"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phantombase.timeline.codec.arrow_schema import arrow_schema
from phantombase.timeline.codec.avro_schema import without_meta_columns
from phantombase.timeline.format.commit_metadata import CLUSTER, LATEST_SCHEMA, SERVICE_OPERATIONS, CommitMetadata
from phantombase.timeline.view.view import GroupKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """What a write changes. `appended`: file groups that get log files. `rewritten`: file groups whose base file is
    written again. `buckets`: (partition, first 8 characters) of new file ids, if these are buckets. `inserts`:
    partitions that get new keys, which no other write may have inserted. `looked_up`: the file groups were found by
    looking up keys. `everywhere`: no other write may have added one of these keys to any partition. Each row of another
    write may have added one: a row of a key whose deleted row is still in the base file counts as an update.
    `partitions`: those that get files. `overwritten`: those whose file groups are replaced; with `overwrites_all` every
    partition, also one that does not exist yet. `replaced`: these file groups."""

    appended: frozenset[GroupKey]
    rewritten: frozenset[GroupKey]
    buckets: frozenset[tuple[str, str]]
    inserts: frozenset[str]
    looked_up: bool
    everywhere: bool = False
    partitions: frozenset[str] = frozenset()
    overwritten: frozenset[str] = frozenset()
    overwrites_all: bool = False
    replaced: frozenset[GroupKey] = frozenset()


def conflict_with_commit(mine: WriteSet, theirs: CommitMetadata) -> str | None:
    """The conflict with a write that completed since this one began, None if there is none. Not for compactions."""
    groups = theirs.written_groups | theirs.replaced_groups
    for key in sorted((mine.appended | mine.rewritten) & groups):
        return f"file group {'/'.join(key)}"
    for part, bucket in sorted(mine.buckets & {(part, file_id[:8]) for part, file_id in groups}):
        return f"bucket {bucket} of partition {part!r}"
    for part in sorted(_overwritten_by_either(mine, theirs)):
        return f"partition {part!r}, which is overwritten"
    if theirs.operation_type == CLUSTER:
        return None  # it moves rows, and adds no key
    new = {
        partition
        for partition, stats in theirs.partition_to_write_stats.items()
        if any(s.num_inserts and (s.path or "").endswith(".parquet") for s in stats)
    }
    for part in sorted(mine.inserts & new):
        return f"inserts into partition {part!r}"
    if mine.everywhere:
        for part in sorted(part for part, stats in theirs.partition_to_write_stats.items() if stats):
            return f"rows in partition {part!r}, where keys are unique over all partitions"
    return None


def conflict_with_schema(mine: Mapping[str, str], theirs: CommitMetadata) -> str | None:
    """The conflict with a write that completed since this one began and changed the schema; None if there is none. Of
    two changes at once one would be lost. `mine`: the table's Avro schema as this write records it, and Hudi's own
    record of the columns where they evolve on read."""
    text, own = theirs.extra_metadata.get("schema"), mine["schema"]
    if not text:
        return None
    if text != own and arrow_schema(without_meta_columns(text)) != arrow_schema(own):
        return "the table's schema"
    theirs_evolved = theirs.extra_metadata.get(LATEST_SCHEMA)
    if theirs.operation_type not in SERVICE_OPERATIONS and theirs_evolved != mine.get(LATEST_SCHEMA):
        return "the record of the table's columns"
    return None


def conflict_with_plans(mine: WriteSet, plans: Iterable[GroupKey], *, logs_too: bool) -> str | None:
    """The conflict with compactions requested since the write began. `logs_too`: file names give slices (version 6)."""
    concerned = mine.rewritten | mine.appended if logs_too or mine.looked_up else mine.rewritten
    for key in sorted(concerned & set(plans)):
        return f"compaction of file group {'/'.join(key)}"
    return None


def conflict_with_clusterings(mine: WriteSet, clustered: Iterable[GroupKey]) -> str | None:
    """The conflict with pending clusterings, which will replace a file group of this write."""
    for key in sorted((mine.rewritten | mine.appended | mine.replaced) & set(clustered)):
        return f"clustering of file group {'/'.join(key)}"
    return None


def _overwritten_by_either(mine: WriteSet, theirs: CommitMetadata) -> frozenset[str]:
    """Partitions that both writes change and one overwrites. A clustering changes no rows, but moves them."""
    replaced = (theirs.partition_to_replace_file_ids or {}).keys()
    changed = frozenset({*(part for part, stats in theirs.partition_to_write_stats.items() if stats), *replaced})
    found = changed if mine.overwrites_all else changed & mine.overwritten
    return found if theirs.operation_type == CLUSTER else found | (mine.partitions & replaced)
