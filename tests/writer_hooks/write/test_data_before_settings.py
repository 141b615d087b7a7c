"""An upsert of rows that are there never doubles one, also where keys and folders are not what the settings say.

The tables are written by other generators than their settings name: by clients that make keys and paths themselves,
with options of Hudi that no table stores, by Hudi's SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from phantombase import UnsupportedError, UsageError, Writer, writer
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.format.record_key import KeySplit, bucket_of
from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.in_progress import BUCKETS_BY_PARTITION
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup
from phantombase.writer_hooks.erase.key_list import keys_of_rows
from phantombase.writer_hooks.index import bucket_step
from phantombase.writer_hooks.schema import key_encoding
from phantombase.writer_hooks.schema.key_generator import KeyGenerator, TimestampText
from tests.support.evolved_tables import HIVE, KIND, URL, changed, check_filters, contents
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.selection import deep

CLASS = "hoodie.table.keygenerator.class"
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
    """Writes go by another generator than that of the table, until undone; those of a first write, too."""
    usual = key_encoding.generator_of
    changing = lambda *args, **named: change(usual(*args, **named))  # noqa: E731
    monkeypatch.setattr("phantombase.writer_hooks.write.rows.generator_of", changing)
    of_first = SimpleNamespace(of=lambda *args, **named: change(KeyGenerator.of(*args, **named)))
    monkeypatch.setattr("phantombase.writer_hooks.write.rows.KeyGenerator", of_first)


USUAL = [
    *((6, "escaped"), (9, "both"), (6, "timestamps of SQL"), (9, "timestamps of Java"), (9, "dates in three levels")),
    *((6, "old default"), (9, "labelled keys")),
]
"""Some on version 6: what a folder or a key is called does not depend on it."""
MORE = sorted({*product((6, 9), FEATURES)} - {*USUAL})


@pytest.mark.parametrize(("version", "feature"), [*USUAL, *(deep(*case) for case in MORE)])
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


@one_of("settings", {HIVE: "true", URL: "true"}, {HIVE: "true"}, {URL: "true"}, {KIND: "COMPLEX"})
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


@pytest.mark.parametrize("version", [6, 9])
def test_folders_without_partition_columns_are_refused(version: int, tmp_path: Path) -> None:
    """Hudi's Java client names no partition columns. Rows would go into the table's own folder: doubled, and all
    others hidden, since no reader looks for partitions below one. Keys without partitions are erased anywhere."""
    path = str(tmp_path)
    described(rows(["a", "b"], pa.string(), 1), version).upsert(path)
    changed(tmp_path, {"hoodie.table.partition.fields": None, KIND: None, CLASS: None})
    key_encoding._known.clear()
    there, again = read_table(Table.open(path)), writer(rows(["a", "b"], pa.string(), 2))
    for write in (again.upsert, again.delete, again.insert):
        with pytest.raises(UnsupportedError, match=r"expected no folders.*found a"):
            write(path)
    with pytest.raises(UsageError, match="below another one"):
        writer(rows(["c"] * 3, pa.string(), 2)).global_keys().upsert(path)
    assert read_table(Table.open(path)).equals(there)
    assert keys_of_rows(there.select(["id"]), Table.open(path)).rows.num_rows == 2


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


def bucketed(ids: list[str], count: int, version: int, partition: str = "x", ts: int = 1) -> Writer:
    data = pa.table({"id": ids, "p": [partition] * len(ids), "ts": [ts] * len(ids)})
    return described(data, version).buckets(count)


@pytest.mark.parametrize("version", [6, 9])
def test_another_number_of_buckets_is_refused(version: int, tmp_path: Path) -> None:
    """Also where all buckets of a batch are there, and in a partition that is new."""
    path, ids = str(tmp_path), [f"k{n}" for n in range(100)]
    bucketed(ids, 4, version).upsert(path)
    split = KeySplit.of(Table.open(path).layout)
    right, wrong = (bucket_of(pa.array(ids), ["id"], count, split) for count in (4, 5))
    moved = [one for one, a, b in zip(ids, right, wrong, strict=True) if a != b and b < 4]
    there, before = read_table(Table.open(path)), contents(Path(path))
    for made in (
        bucketed(moved[:1], 5, version, ts=3),
        bucketed(["new"], 3, version, "y"),
        bucketed(["new"], 5, version, "y"),
    ):
        with pytest.raises(UsageError, match=r"this bucket index|table's bucket index: rows would be doubled"):
            made.upsert(path)
        with pytest.raises(UsageError, match=r"this bucket index|table's bucket index: rows would be doubled"):
            made.delete(path)
    with pytest.raises(UsageError, match="this table has a bucket index"):
        described(rows(["y"], pa.string(), 1), version).upsert(path)
    assert contents(Path(path)) == before
    assert read_table(Table.open(path)).equals(there)
    bucketed(["new"], 4, version, "y").upsert(path)


@pytest.mark.parametrize("version", [6, 9])
def test_another_number_is_refused_where_all_keys_agree(version: int, tmp_path: Path) -> None:
    """Few keys may lie in the same buckets under either number; the next ones would not."""
    path = str(tmp_path)
    split = KeySplit.of(Layout.of(version))
    places = [bucket_of(pa.array([f"k{n}" for n in range(100)]), ["id"], count, split) for count in (8, 16)]
    alike = [f"k{n}" for n, (a, b) in enumerate(zip(*places, strict=True)) if a == b][:2]
    bucketed(alike, 8, version).upsert(path)
    for again in (bucketed(alike, 16, version, ts=2), bucketed(["new"], 16, version, "y")):
        with pytest.raises(UsageError, match=r"table's bucket index.*expected 8 by id.*found 16 by id"):
            again.upsert(path)
    bucketed([f"k{n}" for n in range(90)], 16, version).insert_overwrite_table(path)
    bucketed([f"k{n}" for n in range(80, 100)], 16, version).upsert(path)
    bucketed([f"k{n}" for n in range(100)], 3, version).insert_overwrite_table(path)
    with pytest.raises(UsageError, match=r"expected 3 by id"):
        bucketed(["k1"], 16, version, ts=3).upsert(path)
    assert sorted(read_table(Table.open(path))["id"].to_pylist()) == sorted(f"k{n}" for n in range(100))


def test_half_the_number_is_refused_in_a_new_partition(tmp_path: Path) -> None:
    """Real Hudi says in no commit how many buckets it had. Of 8 buckets the first four have keys of four, too."""
    path = str(tmp_path)
    bucketed([f"k{n}" for n in range(100)], 8, 9).upsert(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_step, "_RECORDED", "another key")
        with pytest.raises(UsageError, match="file ids that begin with 8 digits below 4"):
            bucketed(["new"], 4, 9, "y").upsert(path)


def test_numbers_of_buckets_by_partition_are_left_to_hudi(tmp_path: Path) -> None:
    """In a new partition of such a table Hudi would look for the keys in other buckets, and double the rows."""
    path = str(tmp_path)
    bucketed(["k1"], 4, 9).upsert(path)
    (tmp_path / BUCKETS_BY_PARTITION).mkdir(parents=True)
    bucketed(["k1"], 4, 9, ts=2).upsert(path)
    (tmp_path / BUCKETS_BY_PARTITION / "00000000000000.hashing_config").write_text('{"expressions": "y,8"}')
    with pytest.raises(UnsupportedError, match=r"numbers of buckets by partition.*Use Hudi"):
        bucketed(["k1"], 4, 9, "y").upsert(path)
    assert read_table(Table.open(path))["ts"].to_pylist() == [2]


@pytest.mark.parametrize("name", ["v6_log_only", "v9_log_only"])
def test_file_groups_of_logs_only_are_asked_too(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_step, "latest_base", lambda group: None)
    path = str(unzip_golden(name, tmp_path))
    there = read_table(Table.open(path))
    row = there.slice(0, 1).drop_columns([n for n in there.column_names if n.startswith("_hoodie_")])
    groups = {s.file_id[:8] for s in Table.open(path).load_view().groups}
    most = max(map(int, groups)) + 1
    writer(row).buckets(most).upsert(path)
    with pytest.raises(UsageError, match=r"rows would be doubled"):
        writer(row).buckets(most + 1).upsert(path)
    assert read_table(Table.open(path)).num_rows == there.num_rows


def test_a_file_is_asked_once_for_its_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path)
    bucketed([f"k{n}" for n in range(100)], 4, 9).upsert(path)
    asked: list[object] = []
    plain = bucket_step.BucketStep._some_keys

    def asking(self: bucket_step.BucketStep, group: FileGroup) -> pa.StringArray:
        asked.append(group.key)
        return plain(self, group)

    monkeypatch.setattr(bucket_step.BucketStep, "_some_keys", asking)
    for ts in (2, 3):
        bucketed([f"k{n}" for n in range(100)], 4, 9, ts=ts).upsert(path)
    assert len(asked) == len(set(asked)) == 3


def test_two_file_groups_of_one_bucket_are_named_and_have_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ids = str(tmp_path), [f"k{n}" for n in range(40)]
    bucketed(ids, 2, 9).upsert(path)
    with monkeypatch.context() as patch:
        patch.setattr(bucket_step.BucketStep, "_groups", lambda *args: {})
        bucketed(ids, 2, 9).upsert(path)
    assert read_table(Table.open(path)).num_rows == 80
    for made in (bucketed(ids, 2, 9, ts=2), described(rows(["x"], pa.string(), 2), 9)):
        for write in (made.upsert, made.delete):
            with pytest.raises(UsageError, match=r"two file groups of one bucket.*bucket 0.*insert_overwrite"):
                write(path)
    monkeypatch.setattr(bucket_step, "_RECORDED", "none, as of Hudi")
    bucket_step._held.cache_clear()
    bucketed(ids, 2, 9, ts=3).insert_overwrite(path)
    assert read_table(Table.open(path)).num_rows == 40
    bucketed(ids, 2, 9, ts=4).upsert(path)
    assert set(read_table(Table.open(path))["ts"].to_pylist()) == {4}


def test_custom_keys_of_version_6_have_the_types_of_their_writer(tmp_path: Path) -> None:
    """Hudi 0.15 does not store them: each writer gives them, as it does for Hudi."""
    typed = {"hoodie.datasource.write.partitionpath.field": "n.level:SIMPLE,day:TIMESTAMP"}
    times = {"timestamp.type": "DATE_STRING", "input.dateformat": "yyyy-MM-dd", "output.dateformat": "yyyy/MM"}
    times = {f"hoodie.keygen.timebased.{name}": text for name, text in times.items()}
    kind = {"hoodie.datasource.write.keygenerator.type": "CUSTOM"}

    def made(ts: int) -> Writer:
        data = pa.table({"id": ["a", "b"], "n": [{"level": "x"}, {"level": "y"}], "day": ["2024-03-01"] * 2})
        return writer(data.append_column("ts", pa.array([ts] * 2)))

    new = made(1).table("t", version=9).key("id").ordering("ts").conf({**typed, **times, **kind})
    new.upsert(str(tmp_path))
    fields = {"hoodie.table.partition.fields": "n.level,day"}
    changed(tmp_path, fields)
    with pytest.raises(UnsupportedError, match=r"types the table does not store.*partitionpath\.field=n\.level:SIMPLE"):
        made(2).conf(times).upsert(str(tmp_path))
    made(2).conf({**typed, **times, **kind}).upsert(str(tmp_path))
    found = read_table(Table.open(str(tmp_path)))
    assert (found["ts"].to_pylist(), Table.open(str(tmp_path)).partitions()) == ([2, 2], ["x/2024/03", "y/2024/03"])
    wrong = {"hoodie.datasource.write.partitionpath.field": "n.level:TIMESTAMP,day:TIMESTAMP"}
    changed(tmp_path, {"hoodie.table.partition.fields": "n.level:SIMPLE,day:TIMESTAMP"})
    with pytest.raises(UsageError, match="contradicts the table"):
        made(3).conf({**wrong, **times, **kind}).upsert(str(tmp_path))
