"""The encoding of a table's keys and folders as its rows show it, which overrides its settings.

A COMPLEX key of one field has two encodings, `v` and `f:v`. Hudi changed it twice: releases 0.14.1 to 1.0.2 write `v`,
those before and after write `f:v`. Release 1.2.0 refuses to write such a table of version 6 or 8, unless its check is
switched off. So the table's rows decide. A table without rows gets the encoding of the Hudi release that is the
reference for its version: 0.15.0 writes `v` in version 6, 1.2.0 writes `f:v` in versions 8 and 9.

Clients that make keys and paths themselves, options that no table stores, and Hudi's SQL make tables whose settings
differ from their rows: `f:v` under SIMPLE, folders of another style, dates in folders of three levels, timestamps as
text. A write by the settings would not find the existing rows, and would double them. So some rows of each kind of
folder are read once in a process, and the generator that gives them their keys and folders is chosen.

With virtual keys no row has its key, so readers take `v`. Versions 8 and 9 are refused then: see `schema/virtual_keys`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc

from phantombase.timeline.codec.avro_schema import RECORD_KEY
from phantombase.timeline.codec.columns import flat
from phantombase.timeline.errors import MalformedError, MissingFileError, PhantombaseError, UnsupportedError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.format.record_key import has_text, labelled_keys, value_text
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.merge.rule import SliceRules
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.read.pruning import some_rows
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.view.grouping import file_groups
from phantombase.timeline.view.view import FileSlice, latest_slice

from .key_generator import DEFAULT_PARTITION, KeyGenerator, TimestampText, field_values, has_one_field_complex_key

_log = get_logger()
_TRIES = 3
"""The number of partitions of a kind that are read: the files of one may be damaged, or removed."""
_OLD_DEFAULT = "default"
"""The folder of rows without a value in Hudi before 0.12."""
_KNOWN_MAX = 256
_known: dict[object, KeyGenerator] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    partition: str
    rows: pa.Table


def generator_of(table: Table, times: Mapping[str, str], *, moves: bool = False) -> KeyGenerator:
    """The key generator of the writes of a table. `times`: see `KeyGenerator.of`. `moves`: keys are unique over all
    partitions, so that a row may be in another partition than its own. MalformedError: the encoding of keys cannot be
    determined. UnsupportedError: the rows' keys or folders are not those that the table's settings give, nor known ones
    of Hudi. Other errors as `KeyGenerator.of`."""
    config = table.config
    prefixed = config.layout.has_completion_times if has_one_field_complex_key(config) else None
    usual = KeyGenerator.of(config, one_field_prefixed=prefixed, writer=times)
    timeline = table.load_timeline()
    if not timeline.has_rows:
        return usual
    first = min((i.requested_time for i in timeline.completed), default="")
    name = (table.storage.location, config.dump(), first, tuple(sorted(times.items())), moves)
    if name in _known:
        return _known[name]
    samples = list(_samples(table.with_timeline(timeline), usual))
    found = _with_their_folders(table, _with_their_keys(config, usual, samples), samples, moves=moves)
    if samples:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[name] = found
    return found


def one_field_prefixed(table: Table) -> bool | None:
    """Whether the keys of this table are `f:v`; None if it has no one-field COMPLEX key. Errors as `generator_of`."""
    if not has_one_field_complex_key(table.config):
        return None
    if not table.config.populate_meta_fields:
        return False
    return generator_of(table, {}).labelled


def _samples(table: Snapshot, usual: KeyGenerator) -> Iterator[_Sample]:
    """Some rows of each kind of folder. Files that cannot be read are left out."""
    fields = (*usual.key_fields, *(field.name for field in usual.partition_fields))
    schema = table.newest_schema()
    there = frozenset(schema.arrow.names)
    names = {f if f in there else f.partition(".")[0] for f in fields}
    meta = [RECORD_KEY] if table.config.populate_meta_fields else []
    wanted = [*meta, *sorted(names & there)]
    rules, facts = slice_rules(table, schema), table.load_facts()
    done: dict[object, int] = {}
    for partition, entries in _partitions(table, usual):
        kind = tuple(_kind(folder) for folder in partition.split("/"))
        if done.get(kind, 0) >= _TRIES:
            continue
        try:
            groups = file_groups(partition, entries, table.timeline, facts)
            slices = [
                s for group in groups if (s := latest_slice(group)) is not None and group.key not in facts.replaced
            ]
            rows = _first_rows(table, slices, rules, wanted)
        except PhantombaseError as error:
            _log.warning("rows_not_asked_for_their_folder", partition=partition, error=str(error))
            rows = None
        done[kind] = _TRIES if rows is not None else done.get(kind, 0) + 1
        if rows is not None:
            yield _Sample(partition=partition, rows=rows)


def _partitions(table: Table, usual: KeyGenerator) -> Iterable[tuple[str, Sequence[Entry]]]:
    """All partitions, also where the settings name no partition columns: a client may have made folders itself."""
    found = table.listing.below(table.storage, table.config, "")
    if usual.partition_fields or (found := list(found)):
        return found
    try:
        return table.listing.exactly(table.storage, table.config, [""])
    except MissingFileError:
        return ()


def _kind(folder: str) -> tuple[bool, bool, bool, bool]:
    named, value = "=" in folder, folder.rpartition("=")[2]
    return named, "%" in value, value in (DEFAULT_PARTITION, _OLD_DEFAULT), value.isdecimal()


def _first_rows(
    table: Table, slices: Sequence[FileSlice], rules: SliceRules, columns: Sequence[str]
) -> pa.Table | None:
    """The first rows of a slice with a base file, else of one without; None: there are none."""
    for slice_ in sorted(slices, key=lambda s: s.base is None):
        rows = some_rows(table.storage, slice_, rules, columns)
        if rows.num_rows:
            return rows
    return None


def _with_their_keys(config: TableConfig, usual: KeyGenerator, samples: Sequence[_Sample]) -> KeyGenerator:
    if not config.populate_meta_fields:
        return replace(usual, labelled=False) if has_one_field_complex_key(config) else usual
    if not samples or not usual.key_fields:
        return usual
    rows = pa.concat_tables([sample.rows for sample in samples])
    if not all(has_text(field_values(rows, name).type) for name in usual.key_fields):
        return usual  # refused by name when its own rows come
    if len(usual.key_fields) == 1:
        return replace(usual, labelled=is_prefixed(config, rows))
    parts = [value_text(field_values(rows, name), name) for name in usual.key_fields]
    keys = flat(rows.column(RECORD_KEY))
    wrong = pc.invert(pc.fill_null(pc.equal(keys, labelled_keys(usual.key_fields, parts)), False))
    if pc.any(wrong).as_py():
        raise UnsupportedError(
            "the keys of this table are not made of its key fields: a write would double its rows",
            expected=",".join(f"{name}:value" for name in usual.key_fields),
            found=repr(keys.filter(wrong)[0].as_py()),
            todo="Write this table with its own writers.",
        )
    return usual


def _with_their_folders(table: Table, usual: KeyGenerator, samples: Sequence[_Sample], *, moves: bool) -> KeyGenerator:
    """The generator that gives the rows of the samples their folders. A row of a key that is unique over all partitions
    may be in another folder than its own, so the usual generator is chosen if it is right for some row of each sample.
    Another one must be right for all rows."""
    if all(_right(usual, sample) is not _NONE for sample in samples):
        return usual
    for other in _others(usual):
        if all(_right(other, sample) is _ALL for sample in samples):
            _log.warning("folders_contradict_settings", table=table.storage.base_path, example=samples[0].partition)
            return other
    if moves:
        return usual
    wrong = next(sample for sample in samples if _right(usual, sample) is _NONE)
    raise UnsupportedError(
        "the partition folders of this table are not those that its settings give: a write would double its rows",
        path=f"{table.storage.base_path}/{wrong.partition}",
        expected=_shown(usual, wrong),
        found=f"{', '.join(sorted({s.partition for s in samples})[:3])}",
        todo="Write this table with its own writers, or give it settings that fit its folders.",
    )


_NONE, _SOME, _ALL = "none", "some", "all"


def _right(generator: KeyGenerator, sample: _Sample) -> str:
    """Whether a generator gives the folder of a sample for all, some or none of its rows."""
    try:
        same = pc.equal(generator.partition_paths(sample.rows), sample.partition)
    except PhantombaseError:
        return _NONE
    return _ALL if pc.all(same).as_py() else _SOME if pc.any(same).as_py() else _NONE


def _shown(generator: KeyGenerator, sample: _Sample) -> str:
    try:
        return str(generator.partition_paths(sample.rows.slice(0, 1))[0].as_py()) or "no folders, as no column is named"
    except PhantombaseError as error:
        return f"({error})"


def _others(usual: KeyGenerator) -> Iterator[KeyGenerator]:
    """Generators that name folders in other ways that Hudi has, those first that differ least."""
    one_field = len(usual.partition_fields) == 1
    ways = product(
        (usual.hive_style, not usual.hive_style),
        (usual.url_encode, not usual.url_encode),
        TimestampText,
        (False, True) if one_field else (False,),
        (DEFAULT_PARTITION, _OLD_DEFAULT),
    )
    found = [
        replace(usual, hive_style=hive, url_encode=url, timestamps=text, slashed_dates=slashed, null_folder=null)
        for hive, url, text, slashed, null in ways
    ]
    own = asdict(usual)
    return iter(sorted(found, key=lambda other: sum(own[name] != value for name, value in asdict(other).items())))


def is_prefixed(config: TableConfig, stored: pa.Table) -> bool:
    """Whether the keys of a table with one key field are `f:v`, not `v`. `stored`: rows with the key and its meta
    column. MalformedError: keys of neither form or of both, or no rows."""
    name = config.record_key_fields[0]
    keys = flat(stored.column(RECORD_KEY))
    text = value_text(field_values(stored, name), name)
    prefixed, plain = (
        pc.all(pc.equal(keys, form), skip_nulls=False).as_py()
        for form in (pc.binary_join_element_wise(f"{name}:", text, ""), text)
    )
    if not len(keys) or prefixed is plain or None in (prefixed, plain):
        raise MalformedError(
            "the encoding of the table's keys cannot be determined",
            expected=f"{name}:value, or value, in every row",
            found=", ".join(str(key) for key in keys.slice(0, 3)) or "no rows",
        )
    return bool(prefixed)
