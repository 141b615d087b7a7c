"""Each file of a metadata table, damaged in each way: never a wrong answer, and a way out that works."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase import writer
from phantombase.compactor_daemon.metadata_services.build import build_metadata
from phantombase.compactor_daemon.metadata_services.chosen import BuildOptions
from phantombase.timeline.audit.validate import validated
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.filter.tree import parse_filter
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.read import MetadataListing
from phantombase.timeline.metadata_table.validate import damaged_partitions
from phantombase.timeline.read import table_read
from phantombase.timeline.read.table_read import ReadOptions, read_table
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.metadata_tables import entries, rows, serve
from tests.support.selection import ALL, deep

COMMAND = "metadata TABLE --rebuild"
FILTERS = ("id = 'k003'", "ts > 1000")
SAMPLE = None if ALL else 3
SHARES = 5


def names_the_way_out(error: PhantombaseError) -> None:
    assert COMMAND in str(error)


def damages(data: bytes) -> Iterator[tuple[str, bytes | None]]:
    yield "deleted", None
    yield "emptied", b""
    yield from ((f"cut at {size}", data[:size]) for size in (1, len(data) // 2, len(data) - 1) if size < len(data))
    for at in {7, len(data) // 5, len(data) // 2, len(data) - 2}:
        if 0 <= at < len(data):
            yield f"flipped at {at}", data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]


def read(path: Path, text: str, *, listed: bool, skipping: bool) -> list[str]:
    table = open_table(path)
    table = replace(table, listing=MetadataListing()) if listed else table
    found = read_table(table, ReadOptions(filter=parse_filter(text), data_skipping=skipping))
    return sorted(found["id"].to_pylist())


def check_reads(path: Path) -> None:
    """By the metadata table what a listing of the storage gives, or an error with the way out."""
    for text in FILTERS:
        expected = read(path, text, listed=False, skipping=False)
        assert read(path, text, listed=False, skipping=True) == expected
        try:
            assert read(path, text, listed=True, skipping=True) == expected
        except PhantombaseError as error:
            names_the_way_out(error)


def check_found(path: Path, before: dict[str, list[str]]) -> None:
    """A validation names the damage, or every entry is as before."""
    try:
        good = validated(open_table(path)).good
    except PhantombaseError as error:
        names_the_way_out(error)
        return
    if good:
        assert {name: set(of) for name, of in entries(open_table(path)).items()} == {
            n: set(o) for n, o in before.items()
        }


def check_written(path: Path) -> None:
    try:
        writer(rows(range(6), 10**8)).upsert(str(path))
    except PhantombaseError as error:
        names_the_way_out(error)
    else:
        check_reads(path)


@pytest.mark.parametrize("share", [0, *map(deep, range(1, SHARES))])
@one_of("version", "v9", "v6", "v8")
def test_each_damage_of_each_file(share: int, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_read, "LEAST_FILES", 0)
    path = unzip_golden(f"{version}_with_metadata_table", tmp_path)
    run_all(open_table(path))
    serve(open_table(path))
    for ts in (10**6, 10**6 + 1):
        writer(rows(range(6), ts)).upsert(str(path))
    before, folder = entries(open_table(path)), path / ".hoodie/metadata"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".crc"]
    cases = [(file.relative_to(path), *damage) for file in files for damage in damages(file.read_bytes())]
    for name, what, content in random.Random(3).sample(cases, SAMPLE or len(cases))[share :: SHARES if ALL else 1]:
        print("damaged:", name, what)
        copy = shutil.copytree(path, tmp_path / "copy" / path.name)
        damaged = copy / name
        (damaged.parent / f".{damaged.name}.crc").unlink(missing_ok=True)
        damaged.unlink() if content is None else damaged.write_bytes(content)
        check_reads(copy)
        check_found(copy, before)
        check_written(shutil.copytree(copy, tmp_path / "written" / path.name))
        build_metadata(open_table(copy), BuildOptions(pending_wait_s=0), ProcessLock("x"), again=True)
        assert validated(open_table(copy)).metadata.differences == ()
        assert damaged_partitions(open_table(copy), contents=True) == {}
        check_reads(copy)
        shutil.rmtree(tmp_path / "copy")
        shutil.rmtree(tmp_path / "written")


def test_a_damaged_schema_of_a_log_block_is_found(tmp_path: Path) -> None:
    """No checksum covers it, and a validation wants no entry."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    name = b'"name":"HoodieMetadataRecord"'
    logs = [log for log in path.glob(".hoodie/metadata/column_stats/.*.log.*") if name in log.read_bytes()]
    logs[-1].write_bytes(logs[-1].read_bytes().replace(name, name[:-2] + b'\x01"'))
    assert "column_stats" in damaged_partitions(open_table(path), contents=True)


def test_a_filter_needs_no_settings_of_the_metadata_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only skips files by it."""
    monkeypatch.setattr(table_read, "LEAST_FILES", 0)
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    (path / ".hoodie/metadata/.hoodie/hoodie.properties").unlink()
    check_reads(path)
