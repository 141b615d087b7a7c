"""A table's Avro schema with some of its columns."""

from __future__ import annotations

import json

import pytest

from phantombase.timeline.avro.arrow_schema import arrow_schema
from phantombase.timeline.avro.schema import project_text
from phantombase.timeline.errors import UnsupportedError

PRICE = {"type": "fixed", "name": "price", "namespace": "x", "size": 4, "logicalType": "decimal", "precision": 8}
TEXT = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "paid", "type": {**PRICE, "scale": 2}},
            {"name": "owed", "type": "x.price"},
        ],
    }
)


def test_the_named_columns_in_the_order_of_the_schema() -> None:
    """Names that the schema does not have are left out."""
    assert arrow_schema(project_text(TEXT, ["owed", "paid", "none"])).names == ["paid", "owed"]


def test_a_type_that_is_defined_elsewhere() -> None:
    """Without its definition the schema could not be read."""
    with pytest.raises(UnsupportedError, match="share a named type"):
        project_text(TEXT, ["owed"])
