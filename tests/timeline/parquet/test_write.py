"""What our Parquet files say of themselves in their footers."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq

from phantombase.timeline.parquet.write import open_parquet_writer

NUMBERS = [1.0, math.nan, 2.0]


def test_floats_have_no_statistics() -> None:
    """Arrow's would leave out the NaN: `x > 5`, true of NaN in Spark, would pass over the rows."""
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "x": NUMBERS,
            "y": pa.array(NUMBERS, pa.float32()),
            "s": [{"x": x, "name": "n"} for x in NUMBERS],
            "l": [[x] for x in NUMBERS],
            "m": pa.array([[("k", x)] for x in NUMBERS], pa.map_(pa.string(), pa.float64())),
        }
    )
    sink = pa.BufferOutputStream()
    with open_parquet_writer(sink, rows.schema, "zstd", rows) as writer:
        writer.write(rows)
    group = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    with_statistics = {chunk.path_in_schema for chunk in chunks if chunk.statistics is not None}
    assert with_statistics == {"id", "s.name", "m.key_value.key"}
