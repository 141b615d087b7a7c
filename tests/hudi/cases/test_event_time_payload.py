"""Flink's default payload on version 6: EventTimeAvroPayload, whose rows marked deleted delete any base row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.log.encode import LogFormat, Parts, data_block, delete_block
from phantombase.timeline.table.table import TableSchema
from phantombase.timeline.view.view import FileSlice
from tests.hudi.cases.hand_written import commit
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge

pytestmark = [pytest.mark.interop, pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)]

PAYLOAD = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.EventTimeAvroPayload"}
KEYS = 60


def rows_of(rng: random.Random, numbers: list[int], mark: str, *, deletes: bool) -> pa.Table:
    """Rows whose values say where they come from."""
    rows: list[dict[str, Any]] = [
        {
            "id": f"k{n:02d}",
            "a": f"{mark}{n}",
            "ts": rng.randrange(5),
            "_hoodie_is_deleted": deletes and rng.random() < 0.4,
        }
        for n in numbers
    ]
    return pa.Table.from_pylist(rows)


def test_hudi_merges_as_we_do(judge: Judge, version: int, tmp_path: Path) -> None:
    """Rows, rows marked deleted and delete-block entries, late and in time; then both write and compact."""
    rng = random.Random(6)
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=PAYLOAD, partition_field=None)
    table.create(rows_of(rng, list(range(0, KEYS, 2)), "base", deletes=False))
    for number in range(3):
        numbers = rng.sample(range(KEYS), KEYS * 2 // 3)
        rows, gone = rows_of(rng, numbers[8:], f"w{number}-", deletes=True), [f"k{n:02d}" for n in numbers[:8]]
        late = pa.array([rng.randrange(5) for _ in gone], pa.int64())

        def blocks(
            slice_: FileSlice, time: str, schema: TableSchema, rows: pa.Table = rows, gone: list[str] = gone,
            late: pa.Array = late,
        ) -> Iterator[Parts]:  # fmt: skip
            count = rows.num_rows
            seqno = [f"{time}_0_{i}" for i in range(count)]
            meta = [[time] * count, seqno, rows["id"], [""] * count, [slice_.file_id] * count]
            columns = [*meta, *(rows[name] for name in schema.arrow.names[5:])]
            full = pa.table(dict(zip(schema.arrow.names, columns, strict=True)), schema=schema.arrow)
            yield data_block(full, instant=time, schema_text=schema.file_text, log_format=LogFormat.AVRO)
            paths = pa.array([""] * len(gone))
            head = {"instant": time, "schema_text": schema.file_text}
            yield delete_block(pa.array(gone), paths, (late,), hudi_0x=True, **head)

        commit(table, blocks)
    table.agree()
    table.upsert(rows_of(rng, list(range(0, KEYS, 5)), "hudi", deletes=True))
    table.agree()
    table.writer(rows_of(rng, list(range(0, KEYS, 3)), "ours", deletes=True)).upsert(str(table.path))
    table.agree()
    table.hudi_schedules()
    table.compact_beside_hudi(snapshot_kept=False)
