"""What a schema is read into."""

from __future__ import annotations

import json

from phantombase.timeline.avro.schema import changelog, parse_avro

ONE = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]})


def test_a_schema_is_parsed_once() -> None:
    """Thousands of blocks and commits have the same."""
    assert parse_avro(ONE) is parse_avro(ONE)


def test_each_refusal_of_a_changelog_is_an_error_of_its_own() -> None:
    """An error that is raised again would carry the trace of where it was raised first."""
    assert changelog("rides") is not changelog("rides")
