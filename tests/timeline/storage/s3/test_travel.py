"""What travels from an object store: parts of large files, and what is asked for at the same time."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest

from phantombase.timeline import ranges
from phantombase.timeline.parquet.read import open_parquet, parquet_batches
from phantombase.timeline.parquet.travel import travels_whole
from phantombase.timeline.read.slice_log import check_slice, log_entries
from phantombase.timeline.read.table_read import ReadOptions, plan_read, read_table
from phantombase.timeline.storage import object_files
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.table.table import Table
from phantombase.timeline.view import log_blocks
from tests.support.s3_table import on_s3
from tests.support.servers.s3_server import Asked, Fault, S3Server

_MIB = 1 << 20


def _bytes(asked: Asked, size: int) -> int:
    """What a request asks for of a file of that size."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range", ""))
    if found is None:
        return size
    first, last = found.groups()
    return int(last) - int(first) + 1 if first else min(int(last), size)


def test_of_a_large_base_file_only_the_wanted_columns_travel(s3: S3Server) -> None:
    """The end with the footer by one request, and each row group's columns by another."""
    random = np.random.default_rng(1)
    table = pa.table({f"c{n}": random.integers(0, 1 << 62, 120_000) for n in range(12)})
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    with staged_output(storage, "base.parquet") as file:
        pa.parquet.write_table(table, file, row_group_size=60_000, use_dictionary=False)
    entry = storage.find("base.parquet")
    assert entry is not None
    assert not travels_whole(entry.size, 2, 12)
    first = len(s3.asked)
    with storage.open_input("base.parquet", whole=False) as source:
        batches = list(parquet_batches(source, open_parquet(source), ["c3", "c4"], 10_000))
    assert pa.Table.from_batches(batches).equals(table.select(["c3", "c4"]))
    asked = s3.asked[first:]
    assert len(asked) == 3, asked
    assert sum(_bytes(a, entry.size) for a in asked) < 3 * _MIB + 4 * _MIB // 10


def test_an_end_that_is_the_whole_file(s3: S3Server) -> None:
    """A file shorter than what is asked for, and an empty one."""
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    for name, data in (("short", b"12345"), ("empty", b"")):
        storage.put_if_absent(name, data)
        with storage.open_input(name, whole=False) as file:
            assert (file.size(), file.read()) == (len(data), data)


@contextmanager
def both_at_once(s3: S3Server, *patterns: str) -> Iterator[list[str]]:
    """The first request for each of these waits for those for the others; gives what waited in vain."""
    together, waiting, alone = threading.Barrier(len(patterns)), set(patterns), list[str]()

    def wait(asked: Asked) -> Fault:
        target = f"{asked.method} {asked.path} {unquote(asked.query)}&"
        found = next((p for p in waiting if re.search(p, target)), None)
        if found is not None:
            waiting.discard(found)
            try:
                together.wait(60)
            except threading.BrokenBarrierError:
                alone.append(found)
        return Fault.NONE

    s3.faults = wait
    try:
        yield alone
    finally:
        s3.faults = lambda asked: Fault.NONE
    assert not waiting, f"never asked: {waiting}"


@pytest.mark.parametrize(
    "patterns",
    [
        (r"prefix=tables/t/\.hoodie/timeline/&", r"prefix=tables/t/\.hoodie/&"),
        (r"GET .*\d{17}_\d{17}\.deltacommit", r"GET .*compaction\.requested"),
        (r"GET .*\.log\.\d+_0", r"GET .*\.parquet"),
    ],
)
def test_what_is_independent_is_asked_for_at_the_same_time(
    patterns: tuple[str, ...], s3: S3Server, tmp_path: Path
) -> None:
    table = Table.open(on_s3(s3, "v9_two_pending", tmp_path)[1])
    with both_at_once(s3, *patterns) as alone:
        read_table(table, ReadOptions(threads=1))
    assert alone == []


def test_settings_are_read_while_their_folder_is_listed(s3: S3Server, tmp_path: Path) -> None:
    _, url = on_s3(s3, "v9_two_pending", tmp_path)
    with both_at_once(s3, r"prefix=tables/t/\.hoodie/&", "GET .*/hoodie.properties") as alone:
        Table.open(url)
    assert alone == []


def test_of_large_logs_only_the_headers_travel_where_nothing_else_is_read(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = on_s3(s3, "v9_pending", tmp_path)
    for module, name, limit in (
        (log_blocks, "_WHOLE_LOG_BYTES", 100),
        (object_files, "_END_BYTES", 50),
        (ranges, "_AHEAD_BYTES", 200),
    ):
        monkeypatch.setattr(module, name, limit)
    local, there = plan_read(Table.open(str(path)), ReadOptions()), plan_read(Table.open(url), ReadOptions())
    first = len(s3.asked)
    for mine, theirs in zip(local.slices, there.slices, strict=True):
        before = len(s3.asked)
        counted = log_entries(there.table.storage, theirs, there.rules.visibility)
        fronts = [a.path for a in s3.asked[before:] if re.match(r"bytes=1?\d?\d-", a.headers.get("range", ""))]
        assert len(fronts) == len(set(fronts)) == len(theirs.logs)
        assert counted == log_entries(local.table.storage, mine, local.rules.visibility)
        check_slice(there.table.storage, theirs, there.rules)
    asked = [a for a in s3.asked[first:] if ".log." in a.path]
    sizes = {log.path.rpartition("/")[2]: log.size for s in there.slices for log in s.logs}
    assert len(asked) > 2 * len(sizes)
    assert all("range" in a.headers for a in asked)
