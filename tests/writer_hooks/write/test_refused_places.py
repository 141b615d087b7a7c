"""Where no write of ours opens a bucket or a partition, because Hudi beside it would double or miss rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import BuildOptions, UnsupportedError, Writer, build_metadata, read, writer
from phantombase.timeline.format.record_key import is_nonblocking_bucket
from phantombase.writer_hooks.index import bucket_step


def write(*partitions: str, metadata_table: bool | None = None) -> Writer:
    rows = pa.table({"id": [f"{n}" for n in range(len(partitions))], "p": partitions, "ts": [1] * len(partitions)})
    return writer(rows).table("t", metadata_table=metadata_table).key("id").partition("p").ordering("ts")


def test_buckets_of_writers_without_conflict_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t")

    def opened(_instant: str, _partition: str, bucket: int) -> str:
        return f"{bucket:08d}-0000-0000-0000-000000000000-0"

    write("b").buckets(2).upsert(path)
    with monkeypatch.context() as patched:
        patched.setattr(bucket_step, "bucket_file_id", opened)
        write("a", "a").buckets(2).upsert(path)
    write("a", "a").buckets(2).upsert(path)
    write("b").buckets(2).upsert(path)
    before = read(path).to_arrow()
    for refused, do in [
        ("opening a bucket", write("c").buckets(2).upsert),
        ("opening a bucket", write("b", "b").buckets(2).upsert),  # the partition has no bucket of such a writer yet
        ("replacing file groups", write("a").buckets(2).insert_overwrite),
        ("replacing file groups", write("b").buckets(2).insert_overwrite),
    ]:
        with pytest.raises(UnsupportedError, match=refused):
            do(path)
        assert read(path).to_arrow() == before
    assert not is_nonblocking_bucket("00000000-04d9-4282-a6d3-0f90d926cd03-0")
    assert not is_nonblocking_bucket("f7bf8f4d-0000-0000-0000-000000000000-0")


def test_partitions_that_hudi_would_not_list(tmp_path: Path) -> None:
    with_one, without, high = str(tmp_path / "with"), str(tmp_path / "without"), "\U00020bb7"
    with pytest.raises(UnsupportedError, match="above U"):
        write("\uffee", high, metadata_table=True).upsert(with_one)
    assert not Path(with_one).exists()
    write("\uffee", metadata_table=True).upsert(with_one)
    with pytest.raises(UnsupportedError, match="above U"):
        write(high).upsert(with_one)
    assert not Path(with_one, high).exists()
    write("\uffee", high).upsert(without)
    shutil.copytree(Path(without, high), Path(with_one, high))
    for path, rebuild, dry_run in [(without, False, True), (without, False, False), (with_one, True, False)]:
        with pytest.raises(UnsupportedError, match="above U"):
            build_metadata(path, BuildOptions(indexes=("files",)), sole_writer=True, rebuild=rebuild, dry_run=dry_run)
    assert not Path(without, ".hoodie/metadata").exists()
    assert Path(with_one, ".hoodie/metadata").exists()
