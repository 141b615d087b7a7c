"""Entries of the metadata table to the bytes that HFiles store (pure)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import fastavro

from .keys import MetadataRecord


def encoder(schema_text: str) -> Callable[[tuple[str, MetadataRecord]], tuple[str, bytes]]:
    """Makes of (key, record) the key and the record in Avro. HFiles store the key beside the record."""
    schema = fastavro.parse_schema(json.loads(schema_text))

    def encoded(keyed: tuple[str, MetadataRecord]) -> tuple[str, bytes]:
        key, record = keyed
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {**record, "key": ""})
        return key, out.getvalue()

    return encoded
