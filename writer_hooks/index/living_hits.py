"""Of a key that several base files of its partition hold, the files where it is alive.

A log may delete a key that its base file still has. Hudi's SIMPLE and BLOOM indexes write the key's next row on top of
that delete, and so does this one. Under its record index a deleted key is a new one, and its next row goes to any file:
then two base files hold it, of which the first is dead. A row in both would be doubled.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.arrow.columns import flat
from phantombase.timeline.arrow.key_lookup import KeyLookup
from phantombase.timeline.avro.schema import RECORD_KEY
from phantombase.timeline.read.slice_log import may_delete
from phantombase.timeline.view.view import FileGroup, latest_slice

from ..files.stored_keys import slice_keys
from ..files.task_context import WriteWork
from .lookup_step import FILE_ID


def living(work: WriteWork, partition: str, hits: pa.Table) -> pa.Table:
    """The hits without those of files where logs delete the key, if another file holds it too.

    A key that is deleted in all of them keeps the first one.
    """
    counts = hits.group_by(RECORD_KEY).aggregate([(FILE_ID, "count")])
    twice = counts.filter(pc.field(f"{FILE_ID}_count") > 1).column(RECORD_KEY)
    if not len(twice):
        return hits
    several = pc.is_in(hits.column(RECORD_KEY), value_set=flat(twice))
    doubled = hits.filter(several).sort_by([(RECORD_KEY, "ascending"), (FILE_ID, "ascending")])
    keys, files = flat(doubled.column(RECORD_KEY)), flat(doubled.column(FILE_ID))
    alive, groups = np.zeros(len(keys), np.bool_), {g.file_id: g for g in work.groups(partition)}
    for file_id in pc.unique(files).to_pylist():
        here = np.flatnonzero(np.asarray(pc.equal(files, file_id)))
        alive[here[_alive(work, groups.get(file_id), keys.take(pa.array(here)))]] = True
    first = np.append(True, np.asarray(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))))
    group = np.cumsum(first) - 1
    none = np.bincount(group, weights=alive)[group] == 0
    return pa.concat_tables([hits.filter(pc.invert(several)), doubled.filter(pa.array(alive | (first & none)))])


def _alive(work: WriteWork, group: FileGroup | None, keys: pa.Array) -> np.ndarray:
    """Which of the keys, all of them in the base file, a reader finds in the file group."""
    found = np.zeros(len(keys), np.bool_)
    slice_ = None if group is None else latest_slice(group)
    if slice_ is None or not may_delete(work.table.storage, work.merge.marker, slice_):
        return ~found
    lookup = KeyLookup(keys)
    for held in slice_keys(work.table.storage, slice_, work.rules):
        at = lookup.find(flat(held.column(RECORD_KEY)))
        found[at[at >= 0]] = True
    return found
