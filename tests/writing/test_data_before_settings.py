"""An upsert of rows that are there never doubles one, also where keys and folders are not what the settings say.

The tables are written by other generators than their settings name: by clients that make keys and paths themselves,
with options of Hudi that no table stores, by Hudi's SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import UnsupportedError, Writer, writer
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.keys import key_encoding
from phantombase.writer_hooks.keys.key_generator import KeyGenerator, TimestampText
from tests.reading.test_data_before_settings import HIVE, KIND, URL, changed, check_filters

TEXTS = ["north", None, "x y", "2024-01-02"]
MOMENTS = [datetime(2023, 12, 1, 8), datetime(2023, 12, 1, 8, 0, 0, 789000), datetime(1969, 1, 1, 0, 0, 1)]
DATES = ["2024-01-02", None, "2023-12-31"]

FEATURES: Mapping[str, tuple[list[Any], pa.DataType, dict[str, Any]]] = {
    "hive style": (TEXTS, pa.string(), {"hive_style": True}),
    "escaped": ([*TEXTS, "q:r", "a=b", "a/b"], pa.string(), {"url_encode": True}),
    "both": ([*TEXTS, "q:r", "a=b"], pa.string(), {"url_encode": True, "hive_style": True}),
    "timestamps of SQL": (MOMENTS, pa.timestamp("us"), {"timestamps": TimestampText.SQL}),
    "timestamps of SQL, hive": (MOMENTS, pa.timestamp("us"), {"timestamps": TimestampText.SQL, "hive_style": True}),
    "timestamps of Java": (
        MOMENTS,
        pa.timestamp("us"),
        {"timestamps": TimestampText.JAVA, "hive_style": True, "url_encode": True},
    ),
    "dates in three levels": (DATES, pa.string(), {"slashed_dates": True}),
    "old default": (TEXTS, pa.string(), {"null_folder": "default"}),
    "labelled keys": (TEXTS, pa.string(), {"labelled": True}),
    "labelled keys, hive": (TEXTS, pa.string(), {"labelled": True, "hive_style": True}),
}


def described(rows: pa.Table, version: int) -> Writer:
    return writer(rows).table("t", version=version).key("id").partition("p").ordering("ts")


def rows(values: list[Any], kind: pa.DataType, ts: int) -> pa.Table:
    ids = [f"k{number}" for number in range(len(values))]
    return pa.table({"id": ids, "p": pa.array(values, kind), "ts": [ts] * len(values)})


def as_others(monkeypatch: pytest.MonkeyPatch, change: Callable[[KeyGenerator], KeyGenerator]) -> None:
    """Writes go by another generator than that of the table, until undone."""
    usual = key_encoding.generator_of
    changing = lambda *args, **named: change(usual(*args, **named))  # noqa: E731
    monkeypatch.setattr("phantombase.writer_hooks.write.rows.generator_of", changing)


@pytest.mark.parametrize("version", [6, 9])
@pytest.mark.parametrize("feature", FEATURES)
def test_no_row_is_doubled(feature: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, kind, how = FEATURES[feature]
    path = str(tmp_path)
    with monkeypatch.context() as patch:
        as_others(patch, lambda usual: replace(usual, **how))
        described(rows(values, kind, 1), version).upsert(path)
    key_encoding._known.clear()
    before = Table.open(path).partitions()
    described(rows(values, kind, 2), version).upsert(path)
    found = read_table(Table.open(path))
    assert sorted(found["id"].to_pylist()) == [f"k{n}" for n in range(len(values))]
    assert set(found["ts"].to_pylist()) == {2}
    assert Table.open(path).partitions() == before
    if kind == pa.string():
        check_filters(tmp_path, ("p", "id"))
    described(rows(values[:1], kind, 3), version).delete(path)
    assert read_table(Table.open(path)).num_rows == len(values) - 1


@pytest.mark.parametrize("settings", [{HIVE: "true"}, {URL: "true"}, {HIVE: "true", URL: "true"}, {KIND: "COMPLEX"}])
def test_no_row_is_doubled_under_other_settings(settings: Mapping[str, str], tmp_path: Path) -> None:
    """The other way round: folders and keys are plain, and the settings ask for more."""
    values = [*TEXTS, "a%2Fb"]
    path = str(tmp_path)
    described(rows(values, pa.string(), 1), 9).upsert(path)
    changed(tmp_path, settings)
    key_encoding._known.clear()
    writer(rows(values, pa.string(), 2)).upsert(path)
    found = read_table(Table.open(path))
    assert (found.num_rows, set(found["ts"].to_pylist())) == (len(values), {2})
    check_filters(tmp_path, ("p", "id"))


def test_what_nobody_knows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that a client made, folders of two forms, keys of two forms or of another column: nothing is written."""

    def tried(name: str, error: type[Exception], match: str, *changes: Callable[[KeyGenerator], KeyGenerator]) -> None:
        path = str(tmp_path / name)
        for number, change in enumerate(changes):
            with monkeypatch.context() as patch:
                as_others(patch, change)
                patch.setattr(key_encoding, "_samples", lambda *args: ())
                made = rows(["2024-01-02"], pa.string(), 1).set_column(0, "id", pa.array([f"k{number}"]))
                described(made.append_column("q", pa.array(["other"])), 9).upsert(path)
        key_encoding._known.clear()
        there = read_table(Table.open(path))
        with pytest.raises(error, match=match):
            writer(rows(["2024-01-02"], pa.string(), 2)).upsert(path)
        assert read_table(Table.open(path)).equals(there)

    def other_column(usual: KeyGenerator) -> KeyGenerator:
        return replace(usual, partition_fields=(replace(usual.partition_fields[0], name="q"),))

    folders = r"partition folders of this table.*would double its rows"
    tried("made", UnsupportedError, folders, other_column)
    tried("two", UnsupportedError, folders, lambda usual: usual, lambda usual: replace(usual, hive_style=True))
    tried(
        "keys",
        MalformedError,
        "encoding",
        lambda usual: usual,
        lambda usual: replace(usual, labelled=True, hive_style=True),
    )
    tried("column", MalformedError, "encoding", lambda usual: replace(usual, key_fields=("q",)))


def test_moved_keys_and_damaged_files_do_not_stop_a_write(tmp_path: Path) -> None:
    """Under an index over all partitions a row may be in another folder than its own; and what cannot be read tells
    nothing."""
    path = str(tmp_path)
    described(rows(["a", "b"], pa.string(), 1), 9).upsert(path)
    described(rows(["c", "d"], pa.string(), 2), 9).global_keys(move=False).upsert(path)
    key_encoding._known.clear()
    described(rows(["e", "f"], pa.string(), 3), 9).global_keys(move=False).upsert(path)
    assert sorted(read_table(Table.open(path))["p"].to_pylist()) == ["e", "f"]
    for file in (tmp_path / "a").glob("*.parquet"):
        file.write_bytes(b"PAR1")
    key_encoding._known.clear()
    described(rows(["x"], pa.string(), 4).set_column(0, "id", pa.array(["new"])), 9).upsert(path)
    assert read_table(Table.open(path), ReadOptions(partition="x")).num_rows == 1
