"""The payload classes of partial updates and change capture: Hudi and we read, merge, compact and write alike.

Rows in blocks written by hand, late and in time, with values that mean "not given", rows marked deleted and deletes;
then both write and compact."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.codec.columns import Ordering
from phantombase.timeline.format.log_encode import LogFormat, Parts, data_block, delete_block
from phantombase.timeline.table.table import TableSchema
from phantombase.timeline.view.view import FileSlice
from tests.hudi.cases.hand_written import commit, with_meta
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import BUCKET, COMMIT_TIME, EVENT_TIME, PARQUET_LOGS, SharedTable
from tests.hudi.judge.client import Judge
from tests.support.builders import IS_PARTIAL, avro_block
from tests.support.selection import deep

MODEL = "org.apache.hudi.common.model."
KEYS = 60


@dataclass(frozen=True, kw_only=True)
class Payload:
    """A payload class. `absent`: chance that a column is not given, as `text`; `marker`: column and value that delete.
    `coarse`: a column of text that is compared before `ordering`. `typed`: deletes may have an ordering value."""

    name: str
    ordering: str = "ts"
    coarse: str | None = None
    absent: float = 0.0
    text: str | None = None
    marker: tuple[str, tuple[str | None, ...]] | None = None
    typed: bool = True
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, object]:
        """What its writers say."""
        return {
            "hoodie.datasource.write.payload.class": f"{MODEL}{self.name}",
            "hoodie.datasource.write.precombine.field": ",".join(filter(None, (self.coarse, self.ordering))),
            **self.more,
        }

    def rows(self, rng: random.Random, numbers: list[int], mark: str, *, deletes: bool = True) -> pa.Table:
        """Rows whose values say where they come from."""
        made = [self._row(rng, n, mark, deletes) for n in numbers]
        kinds = {"n": pa.int32(), self.ordering: pa.int64()}
        names = list(made[0])
        return pa.Table.from_pylist(made, pa.schema([(name, kinds.get(name, pa.string())) for name in names]))

    def _row(self, rng: random.Random, number: int, mark: str, deletes: bool) -> dict[str, object]:
        row: dict[str, object] = {"id": f"k{number:02d}", "p": ""}
        for name in ("a", "b", "n"):
            value: object = rng.randrange(1000) if name == "n" else f"{mark}.{name}.{number}"
            if rng.random() < self.absent:
                value = None if self.text is None or name == "n" or rng.random() < 0.2 else self.text
            row[name] = value
        if self.marker is not None:
            field_, (value_, *others) = self.marker[0], self.marker[1]
            row[field_] = value_ if deletes and rng.random() < 0.3 else rng.choice(others)
        if self.coarse is not None:
            row[self.coarse] = f"file.{rng.randrange(2)}"
        row[self.ordering] = rng.randrange(5)
        return row


PAYLOADS = {
    "partial": Payload(name="PartialUpdateAvroPayload", absent=0.5),
    "non_defaults": Payload(name="OverwriteNonDefaultsWithLatestAvroPayload", absent=0.5, typed=False),
    "dms": Payload(name="AWSDmsAvroPayload", marker=("Op", ("D", "I", "U", None)), typed=False),
    "mysql": Payload(
        name="debezium.MySqlDebeziumAvroPayload",
        ordering="_event_pos",
        coarse="_event_bin_file",
        marker=("_change_operation_type", ("d", "c", "u")),
    ),
    "postgres": Payload(
        name="debezium.PostgresDebeziumAvroPayload",
        ordering="_event_lsn",
        absent=0.4,
        text="__debezium_unavailable_value",
        marker=("_change_operation_type", ("d", "c", "u")),
    ),
}


def blocks(
    payload: Payload, rows: pa.Table, gone: list[str], late: tuple[pa.Array, ...], hudi_0x: bool,
    slice_: FileSlice, time: str, schema: TableSchema,
) -> Iterator[Parts]:  # fmt: skip
    """A data block, then a delete block."""
    full = with_meta(rows, slice_, time, schema)
    yield data_block(full, instant=time, schema_text=schema.file_text, log_format=LogFormat.AVRO)
    paths, ordering = pa.array([""] * len(gone)), late if payload.typed else ()
    yield delete_block(pa.array(gone), paths, ordering, instant=time, schema_text=schema.file_text, hudi_0x=hudi_0x)


USUAL = ((9, "partial"), (6, "partial"))
REFUSED = {(6, "mysql"), (8, "mysql"), (8, "postgres")}
ALL = [(version, name) for version in (9, 8, 6) for name in PAYLOADS if (version, name) not in REFUSED]
CASES = [one if one in USUAL else deep(*one) for one in ALL]


@pytest.mark.interop
@pytest.mark.parametrize(("version", "name"), CASES, indirect=["version"], ids=str)
def test_hudi_merges_as_we_do(judge: Judge, version: int, name: str, tmp_path: Path) -> None:
    """Every column, meta columns included, after each step."""
    payload, rng = PAYLOADS[name], random.Random(f"{version} {name}")
    table = SharedTable(
        judge=judge, path=tmp_path / "table", version=version, options=payload.options, partition_field=None
    )
    table.create(payload.rows(rng, list(range(0, KEYS, 2)), "base", deletes=False))
    # Both write the same rows to a small base file, which is then written anew.
    fails = (version, name) == (6, "dms")  # 0.15, on a deleted key without a base row
    both = payload.rows(rng, list(range(0, KEYS, 3)), "both", deletes=not fails)
    ours = table.copy()
    ours.writer(both).upsert(str(ours.path))
    table.upsert(both)
    same(_data(ours.agree()), _data(table.agree()))
    for number in range(4):
        known = range(0, KEYS, 2) if fails else range(KEYS)
        numbers = rng.sample(known, len(known) * 2 // 3)
        # Writers make deletes of marked rows; on version 8 Hudi may fail to read such a row.
        rows = payload.rows(rng, numbers[6:], f"w{number}", deletes=version != 8)
        gone = [f"k{n:02d}" for n in numbers[:6]]
        late = [pa.array([rng.randrange(5) for _ in gone], pa.int64())]
        if payload.coarse is not None:
            late.insert(0, pa.array([f"file.{rng.randrange(2)}" for _ in gone]))
        commit(table, partial(blocks, payload, rows, gone, tuple(late), version == 6))
        table.agree()
    table.upsert(payload.rows(rng, [*range(0, KEYS, 5), *range(0, KEYS, 10)], "hudi"))
    table.agree()
    mine = payload.rows(rng, [*range(0, KEYS, 3), *range(0, KEYS, 9)], "ours")
    table.writer(mine).upsert(str(table.path))
    table.agree()
    if version > 6:
        merged = table.copy()
        assert merged.we_merge_logs()
        merged.agree()
    if payload.coarse is not None:  # Hudi's procedures do not know tables with two ordering fields
        table.we_schedule()
        table.we_compact()
        table.agree()
        return
    table.hudi_schedules()
    table.compact_beside_hudi(snapshot_kept=version > 6)


def _data(rows: pa.Table) -> pa.Table:
    """Without the meta columns."""
    return rows.select([name for name in rows.column_names if not name.startswith("_hoodie_")])


# Flink's default payload on version 6: EventTimeAvroPayload, whose rows marked deleted delete any base row.


PAYLOAD = {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.EventTimeAvroPayload"}


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


@pytest.mark.interop
@pytest.mark.parametrize("version", [6], indirect=True, ids="v{}".format)
def test_event_time_payload_hudi_merges_as_we_do(judge: Judge, version: int, tmp_path: Path) -> None:
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
            text = schema.file_text
            yield delete_block(pa.array(gone), paths, (late,), instant=time, schema_text=text, hudi_0x=True)

        commit(table, blocks)
    table.agree()
    table.upsert(rows_of(rng, list(range(0, KEYS, 5)), "hudi", deletes=True))
    table.agree()
    table.writer(rows_of(rng, list(range(0, KEYS, 3)), "ours", deletes=True)).upsert(str(table.path))
    table.agree()
    table.hudi_schedules()
    table.compact_beside_hudi(snapshot_kept=False)


# Partial updates, in blocks as Hudi's MERGE INTO writes them: Hudi and we merge them alike.


PARTIAL_UPDATES_KEYS = 150
SETS = (("a",), ("b",), ("a", "c"), ("b", "c"), None, None)
"""Columns that a write sets, besides the ordering column; None: all."""


def partial_updates_rows_of(rng: random.Random, numbers: list[int], mark: str) -> list[dict[str, Any]]:
    """Rows whose values say where they come from."""
    return [
        {"id": f"k{n:03d}", **{name: f"{mark}.{name}.{n}" for name in "abc"}, "ts": rng.randrange(4)} for n in numbers
    ]


def partial_block(rows: list[dict[str, Any]], columns: tuple[str, ...] | None, time: str, schema: TableSchema) -> bytes:
    """A data block of these columns, the ordering column and the meta columns."""
    whole = json.loads(schema.file_text)
    if columns is not None:
        names = {"ts", *columns}
        whole["fields"] = [f for f in whole["fields"] if f["name"] in names or f["name"].startswith("_hoodie")]
    kept = [f["name"] for f in whole["fields"]]
    meta = {"_hoodie_commit_time": time, "_hoodie_partition_path": "", "_hoodie_file_name": "f"}
    given = [
        {**row, **meta, "_hoodie_record_key": row["id"], "_hoodie_commit_seqno": f"{time}_0_{i}"}
        for i, row in enumerate(rows)
    ]
    headers = {} if columns is None else {IS_PARTIAL: "true"}
    return avro_block(time, json.dumps(whole), [{n: row[n] for n in kept} for row in given], headers)


def partial_updates_blocks(
    rows: list[dict[str, Any]], columns: tuple[str, ...] | None, gone: pa.Array, ordering: Ordering,
    slice_: FileSlice, time: str, schema: TableSchema,
) -> Iterator[Parts]:  # fmt: skip
    """Rows of some columns, then deletes."""
    yield [partial_block(rows, columns, time, schema)]
    paths = pa.array([slice_.partition] * len(gone))
    yield delete_block(gone, paths, ordering, instant=time, schema_text=schema.file_text, hudi_0x=False)


@pytest.mark.interop
@pytest.mark.parametrize("mode", ["event", "commit"])
@pytest.mark.parametrize("version", [9, deep(8)], indirect=True, ids="v{}".format)
def test_partial_updates_hudi_merges_as_we_do(judge: Judge, version: int, mode: str, tmp_path: Path) -> None:
    """Random writes of some columns, of all, and deletes, late and in time, of keys with and without a base row."""
    rng = random.Random(f"{version} {mode}")
    options = EVENT_TIME if mode == "event" else COMMIT_TIME
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options, partition_field=None)
    table.create(pa.Table.from_pylist(partial_updates_rows_of(rng, list(range(0, PARTIAL_UPDATES_KEYS, 2)), "base")))
    deleted: set[int] = set()
    for number in range(4):
        numbers = rng.sample(range(PARTIAL_UPDATES_KEYS), PARTIAL_UPDATES_KEYS * 3 // 5)
        cut, columns = rng.randrange(1, PARTIAL_UPDATES_KEYS // 4), rng.choice(SETS)
        # Hudi's readers fail on a partial row without a base row, and by commit time on a row behind a delete.
        written = [n for n in numbers[cut:] if (n % 2 == 0 or columns is None) and n not in deleted]
        rows = partial_updates_rows_of(rng, written, f"w{number}")
        gone = pa.array([f"k{n:03d}" for n in numbers[:cut]])
        typed = mode == "event" and rng.random() < 0.7
        ordering = (pa.array([rng.randrange(4) for _ in gone], pa.int64()),) if typed else ()

        if mode == "commit":
            deleted.update(numbers[:cut])
        commit(table, partial(partial_updates_blocks, rows, columns, gone, ordering))
    table.agree()
    merged = table.copy()
    assert merged.we_merge_logs()
    merged.agree()
    table.hudi_schedules()
    before = table.agree()
    copy = table.copy()
    copy.hudi_compacts()
    table.we_compact()
    assert table.agree().num_rows == copy.agree().num_rows == before.num_rows


# `merge_into` of ours on tables of real Hudi: Hudi reads the same rows, writes on top of them and compacts them.


OUR_MERGE_INTO_KEYS = 90
NO_SMALL_FILES: Mapping[str, object] = {"hoodie.parquet.small.file.limit": "0"}
OUR_MERGE_INTO_CASES = {
    "9 event": (9, {**EVENT_TIME, **NO_SMALL_FILES}),
    "9 commit bucket": deep(9, {**COMMIT_TIME, **BUCKET}),
    "9 event bucket parquet": deep(9, {**EVENT_TIME, **BUCKET, **PARQUET_LOGS}),
    "9 commit": deep(9, {**COMMIT_TIME, **NO_SMALL_FILES}),
    "8 event parquet": deep(8, {**EVENT_TIME, **NO_SMALL_FILES, **PARQUET_LOGS}),
    "8 commit bucket": deep(8, {**COMMIT_TIME, **BUCKET}),
    "8 event bucket": deep(8, {**EVENT_TIME, **BUCKET}),
}


def our_merge_into_rows_of(numbers: list[int], ts: int, mark: str) -> pa.Table:
    """Rows whose values say where they come from."""
    return pa.Table.from_pylist(
        [
            {"id": f"k{n:03d}", "p": f"p{n % 2}", "ts": ts, "n": 100 * ts + n, **{c: f"{mark}.{c}.{n}" for c in "ab"}}
            for n in numbers
        ]
    )


@pytest.mark.interop
@pytest.mark.parametrize(
    ("version", "options"), OUR_MERGE_INTO_CASES.values(), ids=OUR_MERGE_INTO_CASES, indirect=["version"]
)
def test_hudi_goes_on(judge: Judge, version: int, options: dict[str, object], tmp_path: Path) -> None:
    """Updates in time and late, inserts, deletes; between them upserts of Hudi, at last compactions.

    By commit time no row comes behind a delete: there Hudi's own upserts make a log with such updates unreadable."""
    random, event = Random(f"{version} {options}"), "Default" in str(options)
    table = SharedTable(judge=judge, path=tmp_path / "table", version=version, options=options)
    table.create(our_merge_into_rows_of(list(range(0, OUR_MERGE_INTO_KEYS, 2)), 5, "base"))

    deleted: set[int] = set()

    def merge(ts: int, mark: str, columns: list[str], *, insert: bool = False, deleting: float = 0.0) -> None:
        numbers = random.sample(range(OUR_MERGE_INTO_KEYS), OUR_MERGE_INTO_KEYS // 2)
        gone = [random.random() < deleting for _ in numbers]
        deleted.update(n for n, deletes in zip(numbers, gone, strict=True) if deletes and not event)
        source = our_merge_into_rows_of(numbers, ts, mark).append_column("gone", pa.array(gone))
        table.writer(source).option(small_file_bytes=0).merge_into(
            str(table.path), update=[*columns, *["ts"] * event], insert=insert, delete="gone"
        )
        table.agree()

    merge(6, "m1", ["a"])
    merge(6, "m2", ["b", "n"], insert=True)
    table.upsert(our_merge_into_rows_of(random.sample(range(OUR_MERGE_INTO_KEYS), 20), 7, "u1"))
    table.agree()
    merge(4, "late", ["a"])
    merge(8, "m3", ["a"], insert=True)
    table.hudi_schedules()
    merge(9, "m4", ["a", "n"], deleting=0.2)
    compacted = table.copy()
    before = table.agree()
    table.compact_beside_hudi()
    compacted.we_merge_logs()
    same(compacted.agree(), before)
    table.upsert(our_merge_into_rows_of(random.sample(sorted(set(range(OUR_MERGE_INTO_KEYS)) - deleted), 20), 10, "u2"))
    merge(11, "m5", ["b"], insert=event)
    table.hudi_schedules()
    table.compact_beside_hudi()
