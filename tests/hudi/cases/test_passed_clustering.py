"""A clustering or overwrite that a clean of Hudi has passed while it was pending is made anew.

Its replace commit could be archived while the joined or replaced files are there.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.timeline.errors import ConflictError
from phantombase.writer_hooks.options import WriteOptions
from tests.hudi.cases.shared_table import HUDI
from tests.hudi.judge.java_client import run_java
from tests.support.archived_tables import one_row, overwrite, upsert
from tests.support.cleaned_tables import SMALL_OF_HUDI, VERSIONS_OF_HUDI, change_clean, clean, row
from tests.support.clustered_tables import OUTPUT, TWO, cluster, forget_heartbeats, request, small_files
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.selection import deep
from tests.support.tables import LOCK, one_of
from tests.support.written_tables import read_rows

_REWRITES = WriteOptions(slots=1)


def write(path: Path, number: int) -> None:
    """To another partition, whose base file is written anew."""
    upsert(path, row(f"b{number}", "b", number), _REWRITES)


def cleaned(path: Path, *, passes: bool) -> None:
    """Writes and a clean. `passes`: as Hudi's by hours, whose cutoff takes no notice of a pending clustering."""
    for number in range(4, 7):
        write(path, number)
    assert clean(path).files
    if passes:
        change_clean(path, earliestCommitToRetain=open_table(path).load_timeline().latest_completed)


@pytest.mark.parametrize("passes", [True, False])
@one_of("version", 9, 8, 6)
def test_a_plan_of_a_dead_process(version: int, passes: bool, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    for number in range(4):
        write(path, number)
    planned = request(path)
    cleaned(path, passes=passes)
    forget_heartbeats(path)
    rows = read_rows(path)
    seen = cluster_table(open_table(path), TWO, LOCK, output=OUTPUT, threads=1, dry_run=True)
    assert (seen.taken_back, len(seen.finished)) == (((planned,), 0) if passes else ((), 1))
    done = cluster(path)
    assert done.taken_back == ((planned,) if passes else ())
    assert [one.instant for one in done.finished] == ([] if passes else [planned])
    assert (done.done is not None) == passes
    assert read_rows(path) == rows


@one_of("version", 9, 6, 8)
def test_while_the_files_are_made(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    for number in range(4):
        write(path, number)
    began: list[str] = []

    def hook(call: Call) -> object:
        if call.name == "open_output" and "/writes/" in call.path and not began:
            began.append(call.path)
            cleaned(path, passes=True)
        return call.do()

    with pytest.raises(ConflictError, match="has passed the plan"):
        cluster(path, HookedStorage(open_table(path).storage, hook))
    rows = read_rows(path)
    assert cluster(path).done is not None
    assert read_rows(path) == rows


@pytest.mark.interop
@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_hudi_archives_no_replace_commit_whose_files_are_there(version: int, tmp_path: Path) -> None:
    """Without the rule all rows of the joined files came twice."""
    path = tmp_path / "trips"
    small_files(path, version)
    request(path)
    for number in range(6):
        write(path, number)
    assert "deleted" in run_java(HUDI[version], "clean", path, *VERSIONS_OF_HUDI)[-1]
    forget_heartbeats(path)
    cluster(path)
    for number in range(6, 12):
        write(path, number)
    rows = read_rows(path)
    run_java(HUDI[version], "archive", path, *SMALL_OF_HUDI)
    assert read_rows(path) == rows


@one_of("version", 9, 8, 6)
def test_an_overwrite(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    for number in range(4):
        write(path, number)
    rows, began = read_rows(path), list[str]()

    def hook(call: Call) -> object:
        if call.name == "open_output" and "/writes/" in call.path and not began:
            began.append(call.path)
            cleaned(path, passes=True)
        return call.do()

    with pytest.raises(ConflictError, match="a clean that retained commits"):
        overwrite(path, one_row("new", 100), HookedStorage(open_table(path).storage, hook))
    assert rows.items() < read_rows(path).items()
    overwrite(path, one_row("new", 100))
    assert {key for key in read_rows(path) if not key.startswith("b")} == {"new"}


@pytest.mark.interop
@pytest.mark.parametrize("version", [deep(6), 9])
def test_hudi_archives_no_overwrite_whose_files_are_there(version: int, tmp_path: Path) -> None:
    """Without the rule the replaced rows were back."""
    path = tmp_path / "trips"
    small_files(path, version)
    began = list[str]()

    def hook(call: Call) -> object:
        if call.name == "open_output" and "/writes/" in call.path and not began:
            began.append(call.path)
            for number in range(6):
                write(path, number)
            run_java(HUDI[version], "clean", path, *VERSIONS_OF_HUDI)
        return call.do()

    with suppress(ConflictError):
        overwrite(path, one_row("new", 100), HookedStorage(open_table(path).storage, hook))
    assert began
    for number in range(6, 12):
        write(path, number)
    rows = read_rows(path)
    run_java(HUDI[version], "archive", path, *SMALL_OF_HUDI)
    assert read_rows(path) == rows
