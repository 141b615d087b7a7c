"""A completed file of many megabytes of JSON on a local disk: what stays of it, and what is read again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.timeline.errors import MalformedError, TableChangedError
from phantombase.timeline.format.commit_metadata import CommitMetadata, WriteStat, decode_summary, encode
from phantombase.timeline.format.layout import MetadataEncoding
from phantombase.timeline.instants.instant_files import _large_summary
from phantombase.timeline.storage import local
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.view import witness
from phantombase.timeline.view.facts import LargeFiles, named_files_of
from phantombase.timeline.view.witness import Witness, named_files

COMMIT = {
    "partitionToWriteStats": {
        part: [
            {
                "fileId": f"{part}-{n}",
                "path": f"{part}/.{part}-{n}_20260101000000000.log.1_0-1-0",
                "fileSizeInBytes": 9 + n,
                "baseFile": f"{part}-{n}_0-1-0_20260101000000000.parquet",
                "partitionPath": part,
                "unknown": {"ü": [n]},
            }
            for n in range(count)
        ]
        for part, count in (("ä", 2), ("b", 3), ("none", 0))
    },
    "extraMetadata": {"schema": "{}"},
    "operationType": "UPSERT",
}


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LARGE_BYTES", 1)


def on_disk(folder: Path, data: bytes) -> LocalStorage:
    (folder / "c").write_bytes(data)
    os.utime(folder / "c", ns=(10**18, 10**18))
    return LocalStorage(str(folder))


@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_same_files_are_named_as_by_a_parse_of_all(tmp_path: Path, ascii_only: bool) -> None:
    data = json.dumps(COMMIT, ensure_ascii=ascii_only).encode()
    found, all_ = named_files_of(on_disk(tmp_path, data), "c"), named_files(data, "c")
    assert type(found) is LargeFiles
    assert dict(found) == dict(all_)
    for group in ("b-1", "ä-0", "b-9"):
        assert list(found.of_group("b", group)) == list(all_.of_group("b", group))
    one, every = (Witness.of([("20260101000000000", named)]).of_one_group("b") for named in (found, all_))
    assert one.writes == every.writes != ()


def test_a_file_is_parsed_once_and_read_partition_by_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, read = on_disk(tmp_path, json.dumps(COMMIT).encode()), list[str]()

    def noted(self: LocalStorage, path: str) -> bytes:
        read.append(path)
        return (tmp_path / path).read_bytes()

    monkeypatch.setattr(LocalStorage, "read", noted)
    for _ in range(2):
        assert [file.size for file in named_files_of(storage, "c")["b"] if not file.is_below] == [9, 10, 11]
    assert read == ["c"]


def test_nothing_large_stays_of_avro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from version 8 on: where its partitions stand only a parse of all shows."""
    monkeypatch.setattr(witness, "_KEPT_EACH_BYTES", 0)
    stats = (WriteStat(file_id="b-1", path="b/.b-1_20260101000000000.log.1_0-1-0", file_size_in_bytes=9),)
    data = encode(CommitMetadata(partition_to_write_stats={"b": stats}, operation_type="UPSERT"), MetadataEncoding.AVRO)
    storage = on_disk(tmp_path, data)
    first, again = named_files_of(storage, "c"), named_files_of(storage, "c")
    assert dict(first) == dict(again) == dict(named_files(data, "c"))
    assert first is not again
    entry = storage.find("c")
    assert entry is not None
    found = _large_summary(storage, "c", entry)
    assert (found.partition_to_write_stats, found.operation_type) == ({}, "UPSERT")


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda data: data[:-9],
    "a number for a path": lambda data: data.replace(b'"path": "b/.b-2', b'"path": 7, "x": "'),
    "not UTF-8": lambda data: data.replace(b"b-2", b"\xff-2"),
    "empty": lambda data: b"",
    "a list": lambda data: b"[1]",
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_found_at_once_wherever_it_is(tmp_path: Path, kind: str) -> None:
    """Not when the partition is asked for that it is in."""
    data = DAMAGED[kind](json.dumps(COMMIT).encode())
    with pytest.raises(MalformedError) as usual:
        named_files(data, "c")
    with pytest.raises(MalformedError) as found:
        named_files_of(on_disk(tmp_path, data), "c")
    assert str(found.value) == str(usual.value)


def test_a_file_that_was_replaced_since_is_read_again_or_an_error(tmp_path: Path) -> None:
    data = json.dumps(COMMIT).encode()
    found = named_files_of(on_disk(tmp_path, data), "c")
    (tmp_path / "c").write_bytes(data[9:])
    with pytest.raises(TableChangedError):
        found["b"]
    (tmp_path / "c").write_bytes(data.replace(b"b-2", b"b-7"))
    assert "b-7" in named_files_of(LocalStorage(str(tmp_path)), "c")["b"][-1].path
    assert decode_summary(data, "c").operation_type == "UPSERT"
