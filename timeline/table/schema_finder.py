"""Finds a table's schema in its completed writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from ..avro.schema import arrow_schema, with_meta_columns, without_meta_columns
from ..errors import MalformedError, UnsupportedError
from ..format.commit_metadata import SERVICE_OPERATIONS
from ..instants.instant_files import InstantFiles
from ..instants.timeline import Timeline

_EVOLVED_SCHEMA = "latest_schema"


@dataclass(frozen=True)
class TableSchema:
    """`commit_text`: as recorded in commits; `file_text`: as stored in data files (Avro JSON)."""

    commit_text: str
    file_text: str

    @staticmethod
    def of(text: str, *, populate_meta_fields: bool) -> TableSchema:
        """The schema of a table whose commits record `text`: with meta columns in its files if it has them."""
        own = without_meta_columns(text)  # version 6 delete_partition commits record the meta columns too
        return TableSchema(commit_text=own, file_text=with_meta_columns(own) if populate_meta_fields else own)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The data files' schema."""
        return arrow_schema(self.file_text)


def find_schema(files: InstantFiles, timeline: Timeline) -> str:
    """The table's Avro schema without meta columns: the schema of the newest completed write that records one.

    Newest by requested time. Table services come last, since they repeat the schema that they found. Where no active
    write is completed, archived ones count: all active ones may be rolled back. After them comes the schema of CREATE
    TABLE. MalformedError: the table has none. UnsupportedError: columns may have other names in older files, which only
    Hudi's own schema beside it shows (`hoodie.schema.on.read.enable`).
    """
    fallback = ""
    for requested, recorded, operation in _recorded(files, timeline):
        if recorded.get(_EVOLVED_SCHEMA):
            raise UnsupportedError(
                "schema evolution on read is not supported",
                path=files.storage.base_path,
                instant=requested,
                expected="commits without a schema of Hudi's own",
                found=_EVOLVED_SCHEMA,
                todo="Use Hudi for this table.",
            )
        text = recorded.get("schema", "")
        if text and operation not in SERVICE_OPERATIONS:
            return text
        fallback = fallback or text
    text = fallback or files.config.create_schema or ""
    if not text:
        raise MalformedError("no commit of the table records its schema", path=files.storage.base_path)
    return text


def _recorded(files: InstantFiles, timeline: Timeline) -> Iterator[tuple[str, Mapping[str, str], str | None]]:
    """What writes record beside their files, the newest first: time, entries, operation."""
    for requested in sorted(timeline.completed_writes, reverse=True):
        metadata = files.commit_metadata(timeline.completed_writes[requested])
        yield requested, metadata.extra_metadata, metadata.operation_type
    if not timeline.completed_writes:
        from ..instants.archived_extras import archived_extras  # late: few reads need it

        yield from archived_extras(files.storage, files.config, timeline.archived)
