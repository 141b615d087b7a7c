"""A file of a decided compaction that is lost with its staged copy: merged again it is the decided one, or an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.attempt.remerge import merge_again
from phantombase.compactor_daemon.records.fate import Go, find_go
from phantombase.timeline.audit.group_ledger import LEDGER
from phantombase.timeline.errors import StorageError
from phantombase.timeline.format.commit_metadata import decode, encode
from phantombase.timeline.instants.attempt_names import attempt_folder, fate_path
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.parquet.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.storage.staged_file import place_staged
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import decided, open_table, staged
from tests.support.golden_tables import unzip_golden
from tests.support.tables import one_of


def lose(table: Table, go: Go) -> None:
    """Every staged file of the decision; their records stay."""
    for placement in go.placements:
        table.storage.delete(placement.staged)


def left(path: Path, go: Go) -> list[str]:
    """Staged files that are there."""
    return sorted(p.name for p in (path / attempt_folder(go.instant, 1)).parent.glob("*/*.parquet"))


@pytest.mark.parametrize("completed", [False, True])
@one_of("name", "v9_pending", "v6_pending")
def test_each_file_is_made_again_under_its_own_name(name: str, completed: bool, tmp_path: Path) -> None:
    """Also one that was adopted from an earlier attempt: the commit names that attempt's file.

    Also behind the commit, which the view must not believe then.
    """
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    staged(table, instant)
    table.storage.delete(f"{attempt_folder(instant, 1)}/1.ok")
    go = decided(table, instant)
    assert go.attempt == 2
    assert [p.final.count("0-1-99") + p.final.count("1-2-99") for p in go.placements] == [1, 1]
    if completed:
        publish(table, go, ProcessLock("publish"))
    for placement in go.placements:
        table.storage.delete(placement.final)
    lose(table, go)
    for placement in go.placements:
        again = merge_again(table, go, placement)
        assert again != placement.staged
        place_staged(table.storage, again, placement.final, placement.size)


@one_of("name", "v6_pending", "v9_pending")
def test_other_books_under_the_same_size_are_not_the_decided_file(name: str, tmp_path: Path) -> None:
    """An input was changed under its name: as many bytes, other rows. Nothing of it stays."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    go = decided(table, pending_instants(table)[0])
    commit = decode(go.content, go.completed_path)
    books = json.loads(commit.extra_metadata[LEDGER])
    for one in books["file_groups"].values():
        one["base_rows"] += 1
    other = replace(commit, extra_metadata={**commit.extra_metadata, LEDGER: json.dumps(books)})
    lose(table, go)
    with pytest.raises(StorageError, match="gave another file than was decided"):
        merge_again(table, replace(go, content=encode(other, table.layout.encoding)), go.placements[0])
    assert left(path, go) == []


@one_of("name", "v9_pending", "v6_pending")
def test_another_size_is_not_the_decided_file(name: str, tmp_path: Path) -> None:
    """Another library wrote it: the commit's size would be wrong for every reader."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    go = decided(table, pending_instants(table)[0])
    lose(table, go)
    one = go.placements[0]
    with pytest.raises(StorageError, match="gave another file than was decided"):
        merge_again(table, go, replace(one, size=one.size + 1))
    assert left(path, go) == []


@one_of("name", "v9_pending", "v6_pending")
def test_the_schema_is_that_of_the_decision(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that was added since is not in the decided file."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    go = decided(table, pending_instants(table)[0])
    lose(table, go)
    schema = json.loads(table.newest_schema(table.load_timeline()).commit_text)
    schema["fields"].append({"name": "added", "type": ["null", "string"], "default": None})
    monkeypatch.setattr(Table, "newest_schema", lambda self, timeline, **_: self.schema(json.dumps(schema)))
    assert merge_again(table, go, go.placements[0])


@pytest.mark.parametrize("recorded", [True, False])
def test_the_options_are_those_the_file_was_written_with(recorded: bool, tmp_path: Path) -> None:
    """Whatever options the process runs with that finds it lost. A `go` of an earlier release does not tell them: that
    is an error, and the file of the default options is not taken."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    go = decided(table, pending_instants(table)[0], OutputOptions(codec=Codec.NONE, bloom=Bloom.OFF))
    lose(table, go)
    fate = path / fate_path(go.instant, go.attempt)
    if not recorded:
        record = json.loads(fate.read_bytes())
        for placement in record["placements"]:
            del placement["output"]
        fate.write_text(json.dumps(record))
    found = find_go(table.storage, go.instant)
    assert found is not None
    if recorded:
        assert merge_again(table, found, found.placements[0])
    else:
        with pytest.raises(StorageError, match="does not name its options"):
            merge_again(table, found, found.placements[0])
        assert left(path, go) == []


def test_a_decision_of_an_earlier_release_made_under_default_options_is_merged_again(tmp_path: Path) -> None:
    """Its `go` names no options; those are the defaults."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    go = decided(table, pending_instants(table)[0])
    lose(table, go)
    assert merge_again(table, go, replace(go.placements[0], output=None))


def test_an_adopted_file_has_the_options_of_the_attempt_that_wrote_it(tmp_path: Path) -> None:
    """They may be others than those of the attempt that decides."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    staged(table, instant, OutputOptions(codec=Codec.NONE))
    table.storage.delete(f"{attempt_folder(instant, 1)}/1.ok")
    go = decided(table, instant)
    assert [p.output.codec for p in go.placements if p.output is not None] == [Codec.NONE, Codec.ZSTD]
    lose(table, go)
    for placement in go.placements:
        assert merge_again(table, go, placement)
