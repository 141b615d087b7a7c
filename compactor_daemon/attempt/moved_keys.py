"""Keys that writers put into another file group because of a pending plan: without it the next upsert duplicates them.

    F    a file group; its base file holds key k, and the plan's logs delete k
    C    a pending compaction of F: an upsert of k under the key index does not find k (F's next base file will lack
         it) and puts it into a new or small base file G
    C unscheduled: the base files of F and of G both hold k. Reads are still right, since F's log deletes k. But the
         key index reads base files only: the next upsert of k is written to F and to G, and F has a row of k again

Hudi's SIMPLE and BLOOM indexes do the same. While C, or a later plan on F, is pending or executed, k is in G alone.

A base file of G that was superseded or replaced since counts, too: after C is removed, a restore or rollback may make
it visible again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.arrow_schema import project
from phantombase.timeline.codec.row_hash import KeyLookup
from phantombase.timeline.errors import BarrierError, ConflictError
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.slice_stream import SliceStream, base_tables
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import BaseFile, FileSlice, TableView, slice_before


@dataclass(frozen=True, slots=True, kw_only=True)
class MovableKeys:
    """Where keys may have been moved from and to. Equal values give equal answers.

    `sources`: slices below the plan that have a base file and a log that may delete. `targets`: base files younger
    than the plan, superseded and replaced ones too, by partition of the sources. `pending`: delta commits that may
    still add targets, if there is a source.
    """

    sources: tuple[FileSlice, ...]
    targets: Mapping[str, tuple[BaseFile, ...]]
    pending: tuple[str, ...]


def movable_keys(view: TableView, instant: str, deletes: Callable[[str], bool]) -> MovableKeys:
    """The movable keys of a plan, by a view (pure). `deletes`: whether the log file at a path may delete."""
    under = (slice_before(g, instant) for g in view.groups if g.pending_compaction == instant)
    sources = tuple(s for s in under if s is not None and s.base and any(deletes(log.path) for log in s.logs))
    targets: defaultdict[str, list[BaseFile]] = defaultdict(list)
    for group in view.groups:
        bases = (s.base for s in group.slices if s.base is not None)
        targets[group.partition] += (base for base in bases if base.name.instant > instant)
    partitions = {s.partition for s in sources}
    return MovableKeys(
        sources=sources,
        targets={p: tuple(of) for p, of in targets.items() if p in partitions},
        pending=tuple(i.requested_time for i in view.timeline.pending_delta_commits) if sources else (),
    )


def refuse_moved(table: Table, view: TableView, instant: str, keys: MovableKeys) -> None:
    """ConflictError: a deleted key of a source is in a target. BarrierError: a pending write may put one there.

    Reads key columns only, with the keys of one base file in memory at a time. Too slow to call under the lock.
    """
    if not (keys.pending or keys.targets):
        return
    seen = table.with_timeline(view.timeline)
    rules = slice_rules(seen, seen.newest_schema())
    for source in keys.sources:
        targets = keys.targets.get(source.partition, ())
        if not (keys.pending or targets):
            continue
        gone = _deleted_keys(table, source, rules)
        if len(gone) and keys.pending:
            raise BarrierError(
                "a pending write may put keys that this plan deletes into another file group",
                path=f"{source.partition}/{source.file_id}",
                instant=instant,
                expected="no pending delta commit",
                found=", ".join(keys.pending),
                todo="Wait until it has completed or was rolled back, then run again.",
            )
        lookup = KeyLookup(gone)
        for target in targets if len(gone) else ():
            for batch in _keys_of(table, target, rules):
                at = lookup.find(batch)
                if (at >= 0).any():
                    raise ConflictError(
                        "keys that this plan deletes are now in another file group; without the plan they would double",
                        path=target.path,
                        instant=instant,
                        expected=f"no key in it that {source.base.path if source.base else source.file_id} holds too",
                        found=repr(gone[int(at[at >= 0][0])].as_py()),
                        todo="Execute this compaction (compactor-daemon compact): then each key is in one place.",
                    )


def _deleted_keys(table: Table, source: FileSlice, rules: SliceRules) -> pa.StringArray:
    """Keys of a slice's base file that its logs delete."""
    assert source.base is not None
    chunks = list(_keys_of(table, source.base, rules))
    held = pc.unique(pa.chunked_array(chunks, pa.string()))
    lookup, lives = KeyLookup(held), np.zeros(len(held), np.bool_)
    for batch in SliceStream(table.storage, source, rules, rules.keys.fields).batches():
        at = lookup.find(rules.keys.keys(pa.Table.from_batches([batch]), source.file_id))
        lives[at[at >= 0]] = True
    return held.filter(pa.array(~lives))


def _keys_of(table: Table, base: BaseFile, rules: SliceRules) -> Iterator[pa.StringArray]:
    schema = project(rules.schema, rules.keys.fields)
    for rows, _ in base_tables(table.storage, base.path, schema, rules.batch_rows):
        yield rules.keys.keys(rows, base.path)
