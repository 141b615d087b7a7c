"""Rows of every library that gives them in Arrow's form; and a library that says nothing unless it is asked."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from phantombase import read, writer
from phantombase.timeline.errors import UsageError
from phantombase.writer_hooks.engine.engine import summed
from tests.support.places import ROOT

ROWS: dict[str, list[Any]] = {"id": ["a", "b"], "ts": [1, 2], "zone": ["north", "south"]}
SOURCES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas, filtered": lambda: pd.DataFrame({k: [None, *v] for k, v in ROWS.items()}).iloc[[1, 2]].convert_dtypes(),
    "pandas, a key as index": lambda: pd.DataFrame(ROWS).set_index("id"),
    "polars": lambda: pl.DataFrame(ROWS),
    "polars, categories": lambda: pl.DataFrame(ROWS, schema_overrides={"zone": pl.Categorical}),
    "duckdb": lambda: duckdb.sql("select unnest(['a', 'b']) id, unnest([1, 2]) ts, unnest(['north', 'south']) zone"),
    "record batch": lambda: pa.record_batch(ROWS),
    "record batch reader": lambda: pa.table(ROWS).to_reader(),
    "large strings": lambda: pa.table(ROWS).cast(
        pa.schema([("id", pa.large_string()), ("ts", pa.int64()), ("zone", pa.large_string())])
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_rows_of_other_libraries_are_written(tmp_path: Path, kind: str) -> None:
    writer(SOURCES[kind]()).table("t").key("id").partition("zone").ordering("ts").upsert(str(tmp_path / "t"))
    found = read(str(tmp_path / "t")).to_arrow()
    assert sorted(found.select(sorted(ROWS)).to_pylist(), key=lambda row: row["id"]) == [
        {"id": "a", "ts": 1, "zone": "north"},
        {"id": "b", "ts": 2, "zone": "south"},
    ]
    assert sorted(name for name in found.column_names if not name.startswith("_hoodie")) == sorted(ROWS)


def test_an_unnamed_index_is_no_column(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS, index=[7, 3])
    writer(frame).table("t").key("id").upsert(str(tmp_path / "t"))
    assert "__index_level_0__" not in read(str(tmp_path / "t")).to_arrow().column_names


def test_a_stream_is_read_once_and_written_as_often_as_asked(tmp_path: Path) -> None:
    """A reader that is used up would write nothing, and say nothing."""
    ready = writer(pa.table(ROWS).to_reader()).table("t").key("id")
    for name in ("one", "two"):
        ready.upsert(str(tmp_path / name))
        assert read(str(tmp_path / name)).to_arrow().num_rows == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (pl.DataFrame(ROWS).lazy(), "polars LazyFrame. Collect it first"),
        ({"id": ["a"]}, "found dict. Of columns by their names: pyarrow.table"),
        (pd.DataFrame({"id": ["a", 1]}), "cannot be read as Arrow; found pandas DataFrame"),
    ],
)
def test_what_is_no_rows_is_refused_at_once(rows: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        writer(rows)
    with pytest.raises(UsageError, match="no rows are given"):
        writer().key("id").upsert("somewhere")


_JOB = """
import logging, sys
import pyarrow as pa
if sys.argv[2] == "logging":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
from phantombase import writer
writer(pa.table({"id": ["a"]})).table("t").key("id").upsert(sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["silent", "logging"])
def test_a_job_has_its_own_output_and_the_log_is_that_of_logging(tmp_path: Path, kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _JOB, str(tmp_path / "t"), kind], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""
    if kind == "silent":
        assert ran.stderr == ""
    else:
        assert "phantombase INFO written " in ran.stderr
        assert "rows=1" in ran.stderr


def test_a_record_holds_the_fields_of_its_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "phantombase"):
        writer(pa.table(ROWS)).table("t").key("id").upsert(str(tmp_path / "t"))
    (record,) = [one for one in caplog.records if one.getMessage().startswith("written ")]
    assert record.phantombase["rows"] == 2  # type: ignore[attr-defined]
    assert record.phantombase["operation"] == "UPSERT"  # type: ignore[attr-defined]


# Rows by target, as an engine counts them.


def test_rows_of_the_pieces_of_a_target_add_up() -> None:
    assert summed(["a", "a", "b", "a"], ["x", "x", "x", "y"], [1, 2, 4, 8]) == {
        ("a", "x"): 3,
        ("b", "x"): 4,
        ("a", "y"): 8,
    }
    assert summed([], [], []) == {}
