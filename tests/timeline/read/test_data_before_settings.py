"""What the files of a table show comes before what its settings say: a read with a filter gives the rows that the
filter keeps of a read of everything, also where keys, folders or buckets are not those of hoodie.properties.

Each table is written under other settings than it has afterwards, as by a client that makes keys and paths itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import Writer, writer
from phantombase.timeline.metadata_table.record_index import GLOBAL_KEYS_MARK
from phantombase.timeline.read import pruning
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.evolved_tables import HIVE, KIND, URL, changed, check_filters
from tests.support.selection import deep

VALUES = ["north", "south", None, "x y", "a%2Fb", "q:r", "p=q", "default", ""]


def described(rows: pa.Table, **folders: bool) -> Writer:
    return writer(rows).table("t").key("id").partition("p", **folders).ordering("ts")


def rows(values: list[str | None], ts: int) -> pa.Table:
    ids = [f"k{number}" for number in range(len(values))]
    return pa.table({"id": ids, "p": pa.array(values, pa.string()), "ts": pa.array([ts] * len(values), pa.int64())})


def styles() -> Iterator[Any]:
    """(are folders `p=..`, are they escaped, what the settings say); all but one a saying ask the same again."""
    named = [{HIVE: None}, {HIVE: "true"}, {URL: "true"}, {URL: None}, {HIVE: "true", URL: "true"}]
    usual = [(True, False), (False, True), (False, False), (True, True), (False, False)]
    for says, taken in zip(named, usual, strict=True):
        for hive, url in product([False, True], repeat=2):
            yield (hive, url, says) if (hive, url) == taken else deep(hive, url, says)


@pytest.mark.parametrize(("hive", "url", "named"), styles())
def test_folders_of_another_style(hive: bool, url: bool, named: Mapping[str, str | None], tmp_path: Path) -> None:
    values = [value for value in VALUES if url or value not in ("q:r",)]
    described(rows(values, 1), hive_style=hive, url_encode=url).bulk_insert(str(tmp_path))
    described(rows(values[:3], 2), hive_style=hive, url_encode=url).upsert(str(tmp_path))
    changed(tmp_path, named)
    check_filters(tmp_path, ("p", "id"))


def test_folders_that_are_not_their_rows_values(tmp_path: Path) -> None:
    """Version 6 tables need not name the generator; and a client may make any folder."""
    times = {"timestamp_type": "EPOCHMILLISECONDS", "output_dateformat": "yyyy", "timezone": "UTC"}
    data = pa.table({"id": ["a", "b", "c"], "p": [10**12, 1980, 1975], "ts": [1, 1, 1]})
    described(data).key_generator("TIMESTAMP", **times).upsert(str(tmp_path))
    changed(tmp_path, {KIND: "SIMPLE"})
    table = Table.open(str(tmp_path))
    for value in data["p"].to_pylist():
        assert read_table(table, ReadOptions(filter=f"p = {value}")).num_rows == 1


@pytest.mark.parametrize("marked", [True, False])
def test_rows_that_stay_in_another_folder(marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by default under Hudi's record index. Of other indexes only the rows that are looked at show it."""
    described(rows(["a", "b"], 1)).upsert(str(tmp_path))
    described(rows(["b", "c"], 2)).global_keys(move=False).upsert(str(tmp_path))
    if marked:
        monkeypatch.setattr(pruning, "_SAMPLE_LOG_BYTES", 0)
        (tmp_path / GLOBAL_KEYS_MARK).touch()
    check_filters(tmp_path, ("p", "id"))


@pytest.mark.parametrize("buckets", [None, 5])
@pytest.mark.parametrize("ids", ["text", "number"])
def test_labelled_keys_under_a_plain_generator(buckets: int | None, ids: str, tmp_path: Path) -> None:
    """The log's row was not found by its key, so the filter gave the base file's: the old one."""
    names = [f"k{n}" for n in range(300)] if ids == "text" else list(range(300))
    for ts in (1, 2):
        data = pa.table({"id": names, "p": ["x"] * 300, "ts": [ts] * 300})
        made = described(data.slice(0, 300 if ts == 1 else 200)).key_generator("COMPLEX")
        (made if buckets is None else made.buckets(buckets)).upsert(str(tmp_path))
    changed(tmp_path, {KIND: "SIMPLE"})
    table = Table.open(str(tmp_path))
    for name, ts in ((names[7], 2), (names[250], 1)):
        (found,) = read_table(table, ReadOptions(filter=f"id = {name!r}")).to_pylist()
        assert (found["ts"], found["_hoodie_record_key"]) == (ts, f"id:{name}")


def test_keys_that_are_not_made_of_the_key_fields(tmp_path: Path) -> None:
    """A client may give any key: then the key fields tell nothing of it."""
    for ts in (1, 2):
        data = pa.table({"id": ["a", "b"], "code": ["k1", "k2"], "p": ["x", "x"], "ts": [ts, ts]})
        described(data).key("code").upsert(str(tmp_path))
    changed(tmp_path, {"hoodie.table.recordkey.fields": "id"})
    assert read_table(Table.open(str(tmp_path)), ReadOptions(filter="id = 'a'"))["ts"].to_pylist() == [2]
