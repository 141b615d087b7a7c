"""A first write makes its table in a folder of its own, and a refused one leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import UsageError, Writer, read, writer
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.new_table.create import create_table

ROWS = pa.table({"id": ["a", "b"], "zone": ["x", None], "ts": pa.array([1, None], pa.int64()), "lines": ["u", "v\n"]})


def described(key: str = "id") -> Writer:
    return writer(ROWS).table("t").key(key)


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (lambda: described("zone"), "rows without a record key"),
        (lambda: described().ordering("ts"), "rows without an ordering value"),
        (lambda: described().partition("lines"), "not paths inside the table"),
        (lambda: described().buckets(10**8), "impossible number of buckets"),
        (lambda: described().option(lock="file:here"), "relative path"),
        (lambda: described().option(lock="flie:/x"), "unknown lock provider"),
    ],
)
@pytest.mark.parametrize("made", [False, True])
def test_a_refused_first_write_leaves_nothing(
    refused: Callable[[], Writer], match: str, made: bool, tmp_path: Path
) -> None:
    """Else there would be a table that refuses the right one."""
    path = tmp_path / "t"
    if made:
        path.mkdir()
    with pytest.raises(UsageError, match=match):
        refused().upsert(str(path))
    assert list(tmp_path.rglob("*")) == ([path] if made else [])
    described().upsert(str(path))
    assert len(read(str(path)).to_arrow()) == 2


@pytest.mark.parametrize(
    ("there", "path", "found"),
    [
        ("t/.hoodie/hoodie.properties", "t/x", "in the table"),
        ("t/.hoodie/hoodie.properties", "t/x/y/z", "in the table"),
        ("t/.hoodie/hoodie.properties", "t/.hoodie/x", "in the table"),
        ("lake/a/.hoodie/hoodie.properties", "lake", "the table a below it"),
        ("lake/a/b/c/.hoodie/hoodie.properties", "lake", "the table a/b/c below it"),
        ("d/_delta_log/0.json", "d", "a Delta table"),
        ("lake/d/_delta_log/0.json", "lake", "a Delta table at d"),
        ("i/metadata/v1.metadata.json", "i", "an Iceberg table"),
        ("lake/i/metadata/v1.metadata.json", "lake", "an Iceberg table at i"),
    ],
)
def test_no_table_is_made_in_or_above_another(there: str, path: str, found: str, tmp_path: Path) -> None:
    """One typing error in a path would stop the next start of a fleet."""
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"a table cannot be made here.*{found}"):
        described().upsert(str(tmp_path / path))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_other_files_may_become_a_table(tmp_path: Path) -> None:
    (tmp_path / "t" / "notes").mkdir(parents=True)
    (tmp_path / "t" / "README").write_text("x")
    described().upsert(str(tmp_path / "t"))
    assert len(read(str(tmp_path / "t")).to_arrow()) == 2


@pytest.mark.parametrize("version", [6, 9])
def test_a_partition_below_another_one_is_refused(version: int, tmp_path: Path) -> None:
    """Readers of folders look for none below a partition, so an acknowledged row would be in no read."""
    path = str(tmp_path / "t")

    def made(*zones: str) -> Writer:
        ids = [f"k{number}" for number in range(len(zones))]
        return writer(pa.table({"id": ids, "zone": zones})).table("t", version=version).key("id").partition("zone")

    made("a", "c/d").upsert(path)
    for zones in (("a/b",), ("c",), ("c/d/e/f",), ("x", "x/y")):
        with pytest.raises(UsageError, match="a partition below another one would not be read"):
            made(*zones).upsert(path)
    made("a", "c/d", "c/e", "x").upsert(path)
    assert sorted(read(path).to_arrow()["zone"].to_pylist()) == ["a", "c/d", "c/e", "x"]


def test_two_first_writes_with_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the second were prepared for a table that had none: they are prepared anew."""
    path, real = str(tmp_path / "t"), create_table

    def overtaken(*given: Any) -> Table:
        monkeypatch.setattr(place, real)
        first = pa.table({"extra": [1], "ts": pa.array([9], pa.int64()), "id": ["z"]})
        writer(first).table("t").key("id").upsert(path)
        return real(*given)

    place = "phantombase.writer_hooks.write.writer.create_table"
    monkeypatch.setattr(place, overtaken)
    described().upsert(path)
    found = {row["id"]: (row["ts"], row["lines"], row["extra"]) for row in read(path).to_arrow().to_pylist()}
    assert found == {"z": (9, None, 1), "a": (1, "u", None), "b": (None, "v\n", None)}
