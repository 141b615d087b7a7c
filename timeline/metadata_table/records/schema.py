"""The Avro schema of the metadata table's records, for a metadata table that has no commit yet (pure).

`record_0x.avsc` is the schema in the commits of Hudi 0.15's metadata tables (version 6), `record_1x.avsc` that of Hudi
1.2's (versions 8 and 9), without descriptions.
"""

from __future__ import annotations

from importlib.resources import files

from ...format.layout import Layout


def new_schema(layout: Layout) -> str:
    """The schema for a new metadata table, without meta columns."""
    name = "record_1x.avsc" if layout.has_completion_times else "record_0x.avsc"
    return files(__package__).joinpath(name).read_text().strip()
