"""The rules for merging a table's slices: its schema, keys, merge mode, and the instants that a reader sees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from ..codec.conform import Defaults
from ..errors import MalformedError, UnsupportedError
from ..format.commit_metadata import TableSchema
from ..format.layout import Slicing
from ..format.merge_settings import USE_HUDI, DeleteMarker, NotGiven
from ..format.record_key import KeySource
from ..format.table_config import PROPERTIES, MergeMode, TableConfig
from ..instants.table_clock import TimelineLoader
from ..instants.timeline import Timeline
from ..view.log_blocks import visibility_of
from .gaps import Unset
from .rule import IS_DELETED, MergeRule, SliceRules

_DELETES_FORGET_SINCE = 9
"""The table version from which rows marked deleted give no columns to later rows."""


class RuleSource(Protocol):
    """What the rules are made of: a snapshot of a table has it. To merge, a slice and its rules are enough."""

    @property
    def timeline(self) -> Timeline:
        """The instants that the snapshot shows."""

    @property
    def timelines(self) -> TimelineLoader:
        """Loads its archive; has the settings of the table."""


def slice_rules(
    table: RuleSource,
    schema: TableSchema,
    *,
    as_of: str | None = None,
    every_duplicate: bool = False,
    merging: bool = True,
    batch_rows: int = 65_536,
) -> SliceRules:
    """The rules for merging this table's slices for one reader. `merging`: False if only base files are read, so that
    the merge rules of log files are irrelevant. UnsupportedError: log files would be merged wrongly."""
    timeline, loader = table.timeline, table.timelines
    config, base_path = loader.config, loader.storage.base_path
    _check_names(schema.arrow, base_path)
    by_name = config.layout.slicing is Slicing.BY_BASE_INSTANT
    if merging and by_name and timeline.may_be_archived_later and not timeline.archived:
        timeline = loader.with_its_archive(timeline)  # only the blocks have the instants of their writes
    rules = SliceRules(
        schema=schema.arrow,
        keys=_key_source(config, schema.arrow),
        ordering_fields=(),
        merge=MergeRule(mode=MergeMode.COMMIT_TIME, ordering_types=()),
        visibility=visibility_of(timeline, as_of=as_of),
        # Hudi 0.15.0 converts floats in logs through text, too, if columns evolve on read.
        float_text_in_logs=config.merges_as_1x or schema.evolved is not None,
        batch_rows=batch_rows,
        names=schema.names,
        # Avro's rule holds on version 6: Hudi 0.15.0 follows it in logs and when it compacts, 1.2.0 fails.
        defaults=Defaults(values=schema.defaults, filled=not config.layout.has_completion_times),
    )
    if not merging:
        return rules
    try:
        config.check_mergeable()
    except UnsupportedError as error:
        raise error.below(base_path) from error
    fields = _ordering_fields(config.ordering_fields, schema.arrow)
    if not rules.keys.fields or not set(rules.keys.fields) <= set(schema.arrow.names):
        what = "the table's record key is not among its columns"
        found = f"hoodie.table.recordkey.fields={','.join(rules.keys.fields)}"
        raise MalformedError(what, path=PROPERTIES, expected=", ".join(schema.arrow.names), found=found)
    if IS_DELETED in schema.arrow.names and schema.arrow.field(IS_DELETED).type != pa.bool_():
        # Hudi 0.15 ignores such a column, 1.2 fails.
        what = f"a column {IS_DELETED} of another type than boolean is not supported"
        raise UnsupportedError(what, path=base_path, found=str(schema.arrow.field(IS_DELETED).type))
    settings = config.merge_settings
    if settings.not_given is not None:
        _check_not_given(settings.not_given, schema, config.version)
    _check_marker(settings.marker, schema.arrow)
    ordering = fields if settings.mode is not MergeMode.COMMIT_TIME else ()
    rule = MergeRule(
        mode=settings.mode,
        ordering_types=tuple(schema.arrow.field(name).type for name in ordering),
        every_duplicate=every_duplicate,
        deletes_win=settings.deletes_win,
        unset=None if settings.not_given is None else Unset(values=settings.not_given),
        marker=settings.marker if settings.marker is not None and settings.marker.in_logs else None,
    )
    return replace(rules, ordering_fields=ordering, merge=rule)


def _named(name: str, schema: pa.Schema) -> str:
    """The column that a setting names; case is ignored, as on Spark."""
    if name in schema.names:
        return name
    alike = [column for column in schema.names if column.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _check_names(schema: pa.Schema, base_path: str) -> None:
    """UnsupportedError: columns that differ by case only, which are one column for Hudi on Spark."""
    if len({name.lower() for name in schema.names}) == len(schema.names):
        return
    count = Counter(name.lower() for name in schema.names)
    what = "columns whose names differ by case only are not supported"
    expected = "names that differ in other letters, as Spark needs them"
    found = ", ".join(name for name in schema.names if count[name.lower()] > 1)
    raise UnsupportedError(what, path=base_path, expected=expected, found=found)


def _key_source(config: TableConfig, schema: pa.Schema) -> KeySource:
    """How keys are derived from rows.
    With virtual keys of one field, Hudi 1.x's COMPLEX generator puts `f:v` into log blocks that delete. Its readers
    compare `v`: they find the row only by its position in the base file, if the block has positions in that file."""
    named = tuple(_named(name, schema) for name in config.record_key_fields)
    keys = KeySource.of(config.populate_meta_fields, named)
    has_two_forms = config.key_generator == "COMPLEX" and len(config.record_key_fields) == 1
    virtual = not config.populate_meta_fields
    return replace(keys, other_in_deletes=virtual and has_two_forms and config.layout.has_completion_times)


def _ordering_fields(names: Sequence[str], schema: pa.Schema) -> tuple[str, ...]:
    """Ordering fields that are columns. A field without a column has no values: Hudi then merges by commit time."""
    names, there = [_named(name, schema) for name in names], frozenset(schema.names)
    nested = [name for name in names if "." in name and name not in there]
    if nested:
        raise UnsupportedError("ordering fields inside records are not supported", found=", ".join(nested))
    found = tuple(name for name in names if name in there)
    unordered = [str(schema.field(name)) for name in found if pa.types.is_nested(schema.field(name).type)]
    if unordered:
        raise UnsupportedError(
            "values of ordering fields that have no order", found=", ".join(unordered), todo=USE_HUDI
        )
    return found


def _check_marker(marker: DeleteMarker | None, schema: pa.Schema) -> None:
    """UnsupportedError: a column of another type than text, since Hudi compares the marker with the value's text."""
    if marker is not None and marker.field in schema.names and schema.field(marker.field).type != pa.string():
        what = f"a delete marker in a column that is no text is not supported: {marker.field}"
        raise UnsupportedError(what, path=PROPERTIES, found=str(schema.field(marker.field).type), todo=USE_HUDI)


def _check_not_given(given: NotGiven, schema: TableSchema, version: int) -> None:
    """UnsupportedError: Hudi treats other values as "not given", or gives columns of rows that delete.
    Hudi treats a column's default as "not given", by identity of objects. Payload classes keep the columns of rows
    marked deleted for later rows. 1.2 looks for a text in columns of bytes only where it merges Avro records."""
    if given.text is not None:
        bytes_ = next((f.name for f in schema.arrow if f.type == pa.binary()), None)
        if bytes_ is not None and not given.in_bytes:
            what = f"a table with columns of bytes are not supported: {bytes_}"
            raise _no_partial_updates(what, "columns of other types", f"values that are {given.text}")
        return
    if version < _DELETES_FORGET_SINCE and IS_DELETED in schema.arrow.names and given.among_logs:
        what = f"a table with the column {IS_DELETED} are not supported on this version"
        raise _no_partial_updates(what, f"version {_DELETES_FORGET_SINCE}", str(version))
    for field in json.loads(schema.file_text)["fields"]:
        if field.get("default") is not None:
            what = f"a column with another default than null are not supported: {field['name']}"
            raise _no_partial_updates(what, "null", str(field["default"]))


def _no_partial_updates(what: str, expected: str, found: str) -> UnsupportedError:
    return UnsupportedError(
        f"partial updates of {what}", path=PROPERTIES, expected=expected, found=found, todo=USE_HUDI
    )
