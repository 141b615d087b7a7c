"""Whose batches a stream's name stands for: one query, its parts, and what a restore left of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import read, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.timeline.errors import MalformedError, UsageError
from phantombase.timeline.format.commit_metadata import STREAM_CHECKPOINT, STREAM_PART
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.commit.place_files import place_all
from phantombase.writer_hooks.commit.stream_batches import StreamBatch
from phantombase.writer_hooks.options import Operation
from phantombase.writer_hooks.write import write as write_module
from phantombase.writer_hooks.write.writer import Writer
from tests.support.selection import deep

UPSERT, DELETE, INSERT = Operation.UPSERT, Operation.DELETE, Operation.INSERT
_RECORD = ".hoodie/.phantombase/streams/s.json"


def rows(*ids: str) -> pa.Table:
    return pa.table({"id": list(ids), "p": ["x"] * len(ids), "ts": [1] * len(ids)})


def described(version: int = 9) -> Writer:
    return writer().table("t", version=version).key("id").partition("p").ordering("ts")


def ids(path: str) -> list[str]:
    return sorted(read(path).to_arrow()["id"].to_pylist())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t")


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Sets the query, and its run, whose batch this thread writes from now on."""

    def now(query: str, run: str) -> None:
        monkeypatch.setattr("phantombase.writer_hooks.write.writer.streaming_run", lambda _: (query, run))

    return now


def test_another_query_under_the_name_is_refused_until_it_takes_over(path: str, query: Any) -> None:
    query("first", "1")
    sink = described().foreach_batch(path, stream="s")
    sink(rows("a"), 0)
    sink(rows("b"), 1)
    query("second", "2")
    for number in (0, 1, 2):
        with pytest.raises(UsageError, match="another query writes under the name") as error:
            sink(rows("c"), number)
    assert ids(path) == ["a", "b"]
    instant = error.value.instant
    assert f'take_over="{instant}"' in str(error.value)
    described().foreach_batch(f"{path}2", stream="s")(rows("o"), 0)
    taking = described().foreach_batch(path, stream="s", take_over=instant)
    for run, number, key in (("2", 0, "c"), ("2", 1, "d"), ("3", 1, "d")):
        query("second", run)
        taking(rows(key), number)  # the option stays, and changes nothing any more
    query("second", "4")
    own = max(Table.open(path).load_timeline().completed_writes)
    described().foreach_batch(path, stream="s", take_over=own)(rows("o"), 1)
    assert ids(path) == ["a", "b", "c", "d"]
    query("first", "5")
    for one in (sink, taking):
        with pytest.raises(UsageError, match="another query writes under the name"):
            one(rows("e"), 2)


def test_a_try_that_took_over_and_died_takes_over_again(path: str, query: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    query("first", "1")
    described().foreach_batch(path, stream="s")(rows("a"), 5)
    (instant,) = Table.open(path).load_timeline().completed_writes
    query("second", "2")
    sink = described().foreach_batch(path, stream="s", take_over=instant)
    with monkeypatch.context() as patch:
        patch.setattr(write_module, "place_all", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            sink(rows("b"), 0)
    sink(rows("b"), 0)
    sink(rows("b"), 0)
    assert ids(path) == ["a", "b"]
    assert len(Table.open(path).load_timeline().completed_writes) == 2


def _interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_rows_without_spark_are_told_apart_by_themselves(path: str) -> None:
    """A batch that is built again has the same rows, in whatever order; another program has others."""
    described().foreach_batch(path, stream="s")(rows("a", "b"), 0)
    described().foreach_batch(path, stream="s")(rows("b", "a"), 0)
    with pytest.raises(UsageError, match="other rows are written under this number already"):
        described().foreach_batch(path, stream="s")(rows("c"), 0)
    (instant,) = Table.open(path).load_timeline().completed_writes
    described().foreach_batch(path, stream="s", take_over=instant)(rows("c"), 0)
    assert ids(path) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view()])
@pytest.mark.parametrize("first", [(), ("a",)])
def test_other_rows_are_refused_whatever_their_types_and_number(first: Any, kind: pa.DataType, path: str) -> None:
    """Polars gives views; a batch without rows is one, too. The advice is followed."""

    def of(*ids: str) -> pa.Table:
        return pa.table({"id": pa.array(ids, kind), "p": pa.array(["x"] * len(ids), kind), "ts": [1] * len(ids)})

    described().foreach_batch(path, stream="s")(of("z"), 0)
    for _ in range(2):
        described().foreach_batch(path, stream="s")(of(*first), 1)
    with pytest.raises(UsageError, match="other rows are written under this number already") as error:
        described().foreach_batch(path, stream="s")(of("b"), 1)
    described().foreach_batch(path, stream="s", take_over=error.value.instant)(of("b"), 1)
    assert ids(path) == sorted(["z", *first, "b"])
    assert len(Table.open(path).load_timeline().completed_writes) == 3


def test_a_query_that_was_set_back_takes_over_from_itself(
    path: str, query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint has the old id and lower numbers: of an older copy, or without its offsets. The option stays."""
    query("q", "1")
    sink = described().foreach_batch(path, stream="s", operation=INSERT)
    for number in range(3):
        sink(rows(f"a{number}"), number)
    query("q", "2")
    with pytest.raises(UsageError, match="a later batch") as error:
        sink(rows("b0"), 0)
    taking = described().foreach_batch(path, stream="s", operation=INSERT, take_over=error.value.instant)
    taking(rows("a2"), 2)  # that is the one which is written
    with monkeypatch.context() as patch:
        patch.setattr(write_module, "place_all", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            taking(rows("b0"), 0)
    for run in ("3", "4"):
        query("q", run)
        taking(rows("b0"), 0)
    for number in (1, 2, 3):
        taking(rows(f"b{number}"), number)
    with pytest.raises(UsageError, match="a later batch"):
        taking(rows("b0"), 0)
    assert ids(path) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]


@pytest.mark.parametrize("version", [6, 9])
def test_deletes_are_the_first_part_of_a_new_table(version: int, path: str) -> None:
    """As in the guide: the function gives deletes first. Without a table they have nothing to delete."""
    w = described(version)
    for _ in range(2):
        w.foreach_batch(path, stream="s", operation=DELETE)(rows("a").select(["id", "p"]), 0)
        w.foreach_batch(path, stream="s")(rows("b"), 0)
    w.foreach_batch(path, stream="s", operation=DELETE)(rows("b").select(["id", "p"]), 1)
    w.foreach_batch(path, stream="s")(rows("c"), 1)
    assert read(path).to_arrow().select(["id", "p", "ts"]).to_pylist() == rows("c").to_pylist()
    assert Table.open(path).config.ordering_fields == ("ts",)


def test_parts_with_the_same_rows_and_no_query_need_names(path: str) -> None:
    """Deletes, then inserts of one table: they look like one part whose operation was changed. The error says so."""
    for number in range(2):
        described().foreach_batch(path, stream="gone", operation=DELETE)(rows("a"), number)
        described().foreach_batch(path, stream="s")(rows("a"), number)
    described().foreach_batch(path, stream="s", operation=DELETE)(rows("a"), 2)
    with pytest.raises(UsageError, match="Parts with the same rows need a stream's name each"):
        described().foreach_batch(path, stream="s")(rows("a"), 2)
    described().foreach_batch(path, stream="new")(rows("a"), 2)
    assert ids(path) == ["a"]
    described().foreach_batch(path, stream="s", operation=DELETE)(rows("a").slice(0, 0), 3)
    described().foreach_batch(path, stream="s")(rows("a").slice(0, 0), 3)  # no rows are no sign


@pytest.mark.parametrize("with_spark", [True, False])
@pytest.mark.parametrize(("dies_in", "version"), [(1, 6), (2, 9), deep(1, 9), deep(2, 6)])
def test_each_part_of_a_batch_once(
    version: int, dies_in: int, with_spark: bool, path: str, query: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes and upserts of one batch, written by two sinks; the batch is tried again after its n-th part died."""

    def batch(number: int, gone: str, *new: str) -> None:
        w = described(version)
        w.foreach_batch(path, stream="s", operation=DELETE)(rows(gone).select(["id", "p"]), number)
        w.foreach_batch(path, stream="s")(rows(*new), number)

    if with_spark:
        query("q", "1")
    described(version).foreach_batch(path, stream="s")(rows("a", "b"), 0)
    calls: list[int] = []

    def dying(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == dies_in:
            raise KeyboardInterrupt
        return place_all(*given)

    with monkeypatch.context() as patch:
        patch.setattr(write_module, "place_all", dying)
        with pytest.raises(KeyboardInterrupt):
            batch(1, "a", "c", "d")
    for run in ("2", "3"):  # once more when all of it is written
        if with_spark:
            query("q", run)
        batch(1, "a", "c", "d")
    batch(2, "b", "a")
    assert ids(path) == ["a", "c", "d"]
    assert len(Table.open(path).load_timeline().completed_writes) == 5


def test_a_second_part_of_one_operation_is_refused(path: str, query: Any) -> None:
    """In one run of a query; after a restart the same part is known, whatever its plan looks like."""
    query("q", "1")
    sink = described().foreach_batch(path, stream="s")
    sink(rows("a"), 0)
    sink(rows("a"), 0)
    with pytest.raises(UsageError, match="Parts of a batch with one operation need a stream's name each"):
        sink(rows("b"), 0)
    described().foreach_batch(path, stream="s-2")(rows("b"), 0)
    query("q", "2")
    sink(rows("other plan"), 0)
    assert ids(path) == ["a", "b"]


@pytest.mark.parametrize("with_spark", [True, False])
def test_a_changed_operation_is_no_second_part(with_spark: bool, path: str, query: Any) -> None:
    for run, operation in (("1", INSERT), ("2", UPSERT)):
        if with_spark:
            query("q", run)
        sink = described().foreach_batch(path, stream="s", operation=operation)
        if operation is INSERT:
            sink(rows("a"), 0)
        else:
            with pytest.raises(UsageError, match="written already, by another operation"):
                sink(rows("a"), 0)
    sink(rows("b"), 1)
    assert ids(path) == ["a", "b"]


@pytest.mark.parametrize("record", [True, False])
def test_records_of_releases_without_queries_count(record: bool, path: str, query: Any) -> None:
    """Of a record, or of commits alone as Hudi's sink leaves them: the number decides, and the query is kept then."""
    described(6).foreach_batch(path, stream="s")(rows("a"), 3)
    table = Table.open(path)
    (instant,) = table.load_timeline().completed_writes
    commit = Path(path, f".hoodie/{instant}.deltacommit")
    content = json.loads(commit.read_text())
    assert content["extraMetadata"][STREAM_CHECKPOINT] == '{"s": "3"}'
    del content["extraMetadata"][STREAM_PART]
    commit.write_text(json.dumps(content))
    if record:
        table.storage.overwrite(_RECORD, json.dumps({"batch": 3, "instant": instant}).encode())
    else:
        table.storage.delete(_RECORD)
    query("q", "1")
    sink = described(6).foreach_batch(path, stream="s")
    sink(rows("a"), 3)
    with pytest.raises(UsageError, match="a later batch"):
        sink(rows("c"), 2)
    sink(rows("b"), 4)
    query("other", "1")
    with pytest.raises(UsageError, match="another query"):
        sink(rows("b"), 5)
    assert ids(path) == ["a", "b"]


@pytest.mark.parametrize("version", [6, 9])
def test_what_was_restored_away_does_not_count(version: int, path: str, query: Any) -> None:
    query("q", "1")
    sink = described(version).foreach_batch(path, stream="s")
    for number in range(4):
        sink(rows(f"b{number}"), number)
    table = Table.open(path)
    restore_table(table, table_lock(table.storage, None), sorted(table.load_timeline().completed_writes)[1])
    query("q", "2")
    for number in (1, 2, 3):
        sink(rows(f"b{number}"), number)
    assert ids(path) == ["b0", "b1", "b2", "b3"]
    with pytest.raises(UsageError, match="a later batch"):
        sink(rows("b0"), 0)


@pytest.mark.parametrize("version", [6, 9])
def test_restored_below_batches_of_which_the_last_was_archived_since(version: int, path: str, query: Any) -> None:
    """Batch 2 was active when the record was written, and two more came; it is archived when these are taken back."""
    query("q", "1")
    sink = described(version).foreach_batch(path, stream="s", operation=INSERT)
    for number in range(3):
        sink(rows(f"b{number}"), number)
    for _ in range(3):
        writer(rows("other")).upsert(path)
    for number in (3, 4):
        sink(rows(f"b{number}"), number)
    table = Table.open(path)
    options = ArchiveOptions(min_instants=3, max_instants=4, commits_retained=1, compaction_commits=1)
    archive_table(table, options, table_lock(table.storage, None))
    active = sorted(table.load_timeline().completed_writes)
    assert len(active) == 3
    restore_table(table, table_lock(table.storage, None), active[0])
    query("q", "2")
    for number in (2, 3, 4):
        sink(rows(f"b{number}"), number)
    assert ids(path) == ["b0", "b1", "b2", "b3", "b4", "other"]


def test_a_record_that_cannot_be_read_is_removed(path: str, query: Any) -> None:
    """As its error says: the active commits tell what was written."""
    query("q", "1")
    sink = described().foreach_batch(path, stream="s", operation=INSERT)
    for number in range(3):
        sink(rows(f"b{number}"), number)
    Path(path, _RECORD).write_text("{")
    query("q", "2")
    with pytest.raises(MalformedError, match="remove it: then the active commits of the stream say"):
        sink(rows("b2"), 2)
    Path(path, _RECORD).unlink()
    query("other", "1")
    with pytest.raises(UsageError, match="another query"):
        sink(rows("b3"), 3)
    query("q", "2")
    for number in (2, 3):
        sink(rows(f"b{number}"), number)
    assert ids(path) == ["b0", "b1", "b2", "b3"]


def test_batches_that_were_taken_back_and_do_not_come_again_are_a_warning(
    path: str, query: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The table was restored, and the query's checkpoint was not."""
    query("q", "1")
    sink = described().foreach_batch(path, stream="s")
    for number in range(4):
        sink(rows(f"b{number}"), number)
    table = Table.open(path)
    restore_table(table, table_lock(table.storage, None), sorted(table.load_timeline().completed_writes)[1])
    assert "batches_taken_back" not in caplog.text
    query("q", "2")
    sink(rows("b4"), 4)
    assert ids(path) == ["b0", "b1", "b4"]
    (said,) = [record.getMessage() for record in caplog.records if "batches_taken_back" in record.getMessage()]
    assert "gone=[2, 3]" in said
    sink(rows("b5"), 5)
    assert caplog.text.count("batches_taken_back") == 1


def test_hudis_identifier_names_the_stream(path: str) -> None:
    hudi = {"hoodie.datasource.write.streaming.checkpoint.identifier": "from_kafka"}
    described().conf(hudi).foreach_batch(path)(rows("a"), 0)
    assert Table.open(path).storage.find(StreamBatch(name="from_kafka", number=0).path) is not None
    with pytest.raises(UsageError, match="not the name of a stream"):
        described().conf({**hudi, "hoodie.datasource.write.streaming.checkpoint.identifier": "a/b"})
