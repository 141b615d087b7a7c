"""Whose write gave a row, where a table service has put its own time into the rows that it moved.

A log compaction of Hudi 1.2 does, and a clustering that does not preserve commit times. The rows that went into the
service still carry the times of their writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.avro_schema import COMMIT_TIME, RECORD_KEY
from ..codec.columns import flat
from ..codec.row_hash import KeyLookup
from ..view.view import FileGroup, FileSlice, GroupKey, latest_slice
from ..windows.state import WindowState
from ..windows.window_writes import WindowWrites

MARKS = (RECORD_KEY, COMMIT_TIME)
"""The columns that tell whose write gave a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What went into table services: `stamps` are their instants, `slices` hold the rows that they took in."""

    stamps: frozenset[str]
    slices: tuple[FileSlice, ...]


@dataclass(frozen=True, kw_only=True)
class Origins:
    """Puts the times of writes in the place of stamps. `read`: keys and commit times of an origin.

    An origin is read when the first row with its stamp comes; memory then holds its keys and times.
    """

    origins: Sequence[Origin]
    read: Callable[[Origin], Iterable[pa.RecordBatch]]
    _loaded: dict[Origin, tuple[KeyLookup, pa.Array]] = field(default_factory=dict, init=False)

    def restored(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, each row with the time of its write; a stamped row whose origin is not found keeps its stamp."""
        for batch in batches:
            times = batch.column(COMMIT_TIME)
            for origin in self._newest_first:
                times = self._of_writes(origin, batch.column(RECORD_KEY), times)
            at = batch.schema.get_field_index(COMMIT_TIME)
            yield batch.set_column(at, batch.schema.field(at), times)

    @cached_property
    def _newest_first(self) -> list[Origin]:
        """A service takes in what earlier ones have stamped."""
        return sorted(self.origins, key=lambda origin: max(origin.stamps), reverse=True)

    def _of_writes(self, origin: Origin, keys: pa.Array, times: pa.Array) -> pa.Array:
        stamped = np.flatnonzero(pc.is_in(times, pa.array(sorted(origin.stamps), times.type)))
        if not len(stamped):
            return times
        lookup, known = self._lookup(origin)
        places = lookup.find(keys.take(pa.array(stamped)))
        sources = np.arange(len(times))
        sources[stamped[places >= 0]] = len(times) + places[places >= 0]
        return pa.chunked_array([times, known.cast(times.type)]).take(pa.array(sources)).combine_chunks()

    def _lookup(self, origin: Origin) -> tuple[KeyLookup, pa.Array]:
        if origin not in self._loaded:
            found = [batch.select(MARKS) for batch in self.read(origin)]
            schema = pa.schema([(name, pa.string()) for name in MARKS])
            table = pa.Table.from_batches(found) if found else schema.empty_table()
            encoded = flat(table.column(RECORD_KEY)).dictionary_encode()
            first = np.unique(np.asarray(encoded.indices), return_index=True)[1]
            self._loaded[origin] = KeyLookup(encoded.dictionary), flat(table.column(COMMIT_TIME)).take(pa.array(first))
        return self._loaded[origin]


def find_origins(
    state: WindowState, slices: Iterable[FileSlice], found: WindowWrites
) -> dict[GroupKey, tuple[Origin, ...]]:
    """What went into the table services of a window whose rows these slices of a state may hold, by slice (pure).

    Into log compactions: the logs of earlier slices; those of the slices themselves are read without log compactions.
    Into clusterings: the last slices of the file groups of the same partition that they replaced.
    """
    if not found.compacted_logs and not found.clusterings:
        return {}
    groups, own = state.view.by_key(), {one.key: one.base_instant for one in slices}
    replaced: defaultdict[str, defaultdict[str, list[FileGroup]]] = defaultdict(lambda: defaultdict(list))
    for key, instant in state.view.facts.replaced.items():
        if instant in found.clusterings and key in groups:
            replaced[key[0]][instant].append(groups[key])
    shared: dict[str, list[Origin]] = {}
    for partition, clustered in replaced.items():
        shared[partition] = [one for taken in clustered.values() for g in taken for one in _logs_of(g, found)]
        for instant, taken in clustered.items():
            last = (latest_slice(group, state.as_of) for group in taken)
            origin = Origin(stamps=frozenset({instant}), slices=tuple(s for s in last if s is not None))
            shared[partition].append(origin)
    origins = {k: (*_logs_of(groups[k], found, before=own[k]), *shared.get(k[0], ())) for k in own}
    return {key: those for key, those in origins.items() if those}


def _logs_of(group: FileGroup, found: WindowWrites, before: str | None = None) -> Iterator[Origin]:
    """What went into the log compactions of a file group's slices; `before`: of those below this base instant."""
    for one in group.slices:
        stamps = frozenset(found.compacted_logs[log.path] for log in one.logs if log.path in found.compacted_logs)
        if stamps and (before is None or one.base_instant < before):
            yield Origin(stamps=stamps, slices=(replace(one, base=None),))
