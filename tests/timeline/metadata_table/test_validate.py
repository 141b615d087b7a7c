"""`timeline validate` and `--listing`: the metadata table compared with storage, and files listed through it."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import read, writer
from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.metadata_services.due import MetadataOptions
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.timeline.audit.validate import all_files, repair_times
from phantombase.timeline.cli.main import app
from phantombase.timeline.errors import MissingFileError, PhantombaseError, TableChangedError
from phantombase.timeline.format.table_config import save_table_config
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table import validate as validation
from phantombase.timeline.metadata_table.read import read_files
from phantombase.timeline.metadata_table.validate import Difference, validate
from tests.support.archived_tables import SMALL
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.metadata_tables import ADDED, Indexed, entry
from tests.support.selection import ALL, deep

MISSING, EXTRA, SIZE = "missing in the metadata table", "only in the metadata table", "other size"
PENDING = "20261202000000000"


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Indexed:
    """A golden table of each version; unpacking it has changed the files' times, which count on version 6."""
    found = Indexed.golden(request.param, tmp_path)
    repair_times(found.open(), all_files(found.open()))
    return found


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def invoke(*args: str | Path) -> tuple[int, str]:
    """Exit code and stdout."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if isinstance(result.exception, PhantombaseError):
        raise result.exception
    return result.exit_code, result.stdout


def differences(table: Indexed) -> list[tuple[str, str | None, str]]:
    """(partition, file, what), after the exit code."""
    code, text = invoke("validate", table.path, "--json")
    data = json.loads(text)
    assert code == (0 if data["good"] else 1)
    assert data["good"] is not bool(data["differences"] or data["mistimed"])
    return [(d["partition"], d["file"], d["what"]) for d in data["differences"]]


def base_of(table: Indexed, partition: str = "north") -> Path:
    """A partition's base file."""
    (path,) = (table.path / partition).glob("*.parquet")
    return path


def log_of(table: Indexed) -> Path:
    """A log file."""
    return min(p for p in (table.path / "north").glob(".*.log.*") if p.suffix != ".crc")


# --- what differs, and what does not


def test_good(table: Indexed) -> None:
    """As Hudi left it."""
    assert differences(table) == []
    code, text = invoke("validate", table.path)
    assert code == 0
    assert re.fullmatch(
        r"good: 2 partitions, 6 files; the metadata table has [46] delta commits since its last compaction\n", text
    )


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_missing_in_the_metadata_table(table: Indexed) -> None:
    """A file of a completed write."""
    name = base_of(table).name
    table.commit(table.avro([entry("north", {name: None})]))
    assert differences(table) == [("north", name, MISSING)]


def test_only_in_the_metadata_table(table: Indexed) -> None:
    """A log file that is gone, and one that never was."""
    gone = log_of(table)
    gone.unlink()
    never = f".{'f' * 36}_{ADDED}.log.1_0-0-0"
    table.commit(table.avro([entry("north", {never: 9})]))
    assert differences(table) == sorted([("north", gone.name, EXTRA), ("north", never, EXTRA)])


def test_another_size(table: Indexed) -> None:
    """Said in bytes."""
    base = base_of(table)
    size = base.stat().st_size
    table.commit(table.avro([entry("north", {base.name: size + 1})]))
    code, text = invoke("validate", table.path, "--json")
    assert code == 1
    assert json.loads(text)["differences"] == [
        {"partition": "north", "file": base.name, "what": SIZE, "storage_bytes": size, "metadata_bytes": size + 1}
    ]


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_partitions(table: Indexed) -> None:
    """One that is not named although its files are; one that is named and not there."""
    table.commit(table.avro([entry("__all_partitions__", {"north": None, "east": 0})]))
    assert differences(table) == [("east", None, EXTRA), ("north", None, MISSING)]
    shutil.rmtree(table.path / "south")
    found = differences(table)
    assert ("south", None, EXTRA) in found
    assert len([d for d in found if d[0] == "south"]) == 4


def test_a_whole_partition_that_it_does_not_know(table: Indexed) -> None:
    """The partition and each of its files."""
    files = {p.name: None for p in (table.path / "north").iterdir() if p.suffix != ".crc" and "metadata" not in p.name}
    table.commit(table.avro([entry("__all_partitions__", {"north": None}), entry("north", files)]))
    assert differences(table) == [("north", None, MISSING), *(("north", name, MISSING) for name in sorted(files))]


def test_files_of_pending_writes(table: Indexed) -> None:
    """A base file, a log file on a new file group, a new partition: nobody sees them yet."""
    timeline = table.path / table.open().config.timeline_folder
    (timeline / f"{PENDING}.deltacommit.requested").touch()
    new = table.path / "east"
    shutil.copytree(table.path / "north", new)
    for path in new.iterdir():
        if not path.name.startswith(".hoodie"):
            path.unlink()
    for folder in (new, table.path / "north"):
        (folder / f"{'e' * 36}-0_0-0-0_{PENDING}.parquet").write_bytes(b"PAR1")
        (folder / f".{'e' * 36}-0_{PENDING}.log.1_0-0-0").write_bytes(table.avro([], PENDING))
    assert differences(table) == []


def test_log_files_of_version_6(tmp_path: Path) -> None:
    """Their names have the base file's instant: only blocks tell whose they are."""
    table = Indexed.golden("v6", tmp_path)
    log = log_of(table)
    sound, block = log.read_bytes(), table.avro([], PENDING)
    (table.path / f".hoodie/{PENDING}.deltacommit.requested").touch()
    other = log.with_name(log.name.replace(".log.1_", ".log.7_"))
    other.write_bytes(block)  # only the pending write's
    log.write_bytes(sound + block)  # a committed file that it has appended to
    assert differences(table) == []
    log.write_bytes(sound[:-1])
    assert differences(table) == [("north", log.name, SIZE)]
    for size in range(0, len(sound), 7 if ALL else 61):  # cut off anywhere, also empty
        log.write_bytes(sound[:size])
        assert differences(table) == [("north", log.name, SIZE)]
    log.write_bytes(sound)
    (table.path / f".hoodie/{PENDING}.deltacommit").touch()
    assert differences(table) == [("north", other.name, MISSING)]


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_the_table_may_change_meanwhile(table: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference counts when the timeline is the same before and after; a table that never rests is an error."""
    looks: list[int] = []
    compare = validation._compare

    def busy(*args: Any) -> Any:
        looks.append(1)
        if len(looks) < rests_after:
            instant = str(int(ADDED) + 9 * len(looks))
            table.commit(table.avro([entry("north", {f"{len(looks)}.parquet": 1})], instant), instant)
        return compare(*args)

    monkeypatch.setattr(validation, "_compare", busy)
    rests_after = 4
    found = validate(table.open())
    assert (len(looks), len(found.differences)) == (4, 3)
    assert found.differences[0] == Difference(partition="north", name="1.parquet", storage_bytes=None, metadata_bytes=1)
    rests_after = 99
    with pytest.raises(TableChangedError, match="every try"):
        validate(table.open())


@pytest.mark.parametrize("missing", [True, False])
def test_the_metadata_table_may_be_taken_out_meanwhile(
    missing: bool, table: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it while its folder goes is no finding, nor what it does not know since."""
    compare, opened = validation._compare, table.open()

    def taken_out(*args: Any) -> Any:
        save_table_config(opened.storage, opened.config.without_metadata_table())
        newest = max((table.folder / ".hoodie").rglob("*.deltacommit"), key=lambda path: path.name)
        if missing:
            newest.unlink()
        found = compare(*args)
        assert missing or found.differences
        return found

    if not missing:
        table.commit(table.avro([entry("north", {"unknown.parquet": 1})], ADDED), ADDED)
        opened = table.open()

    monkeypatch.setattr(validation, "_compare", taken_out)
    with pytest.raises(TableChangedError, match="settings changed"):
        validate(opened)


# --- the commands


def test_differences_on_a_terminal(table: Indexed) -> None:
    """A table, a verdict, exit code 1."""
    name = base_of(table).name
    table.commit(table.avro([entry("north", {name: None}), entry("__all_partitions__", {"east": 0})]))
    code, text = invoke("validate", table.path)
    assert code == 1
    assert re.search(rf"north +{re.escape(name)} +missing in the metadata table +\d+\.\d KiB +–", text)
    assert re.search(r"east +– +only in the metadata table +– +–", text)
    assert "WRONG: 3 partitions, 6 files" in text


@one_of("table", "v6", "v9", "v8", indirect=True)
def test_validate_without_a_metadata_table(tmp_path: Path, table: Indexed) -> None:
    """It is off; or said to be on and not there."""
    shutil.rmtree(table.folder)
    with pytest.raises(MissingFileError, match="metadata"):
        invoke("validate", table.path)


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
@pytest.mark.parametrize("command", ["slices", "read"])
def test_listing_option(table: Indexed, command: str, tmp_path: Path) -> None:
    """Through the metadata table: what it does not name is not read."""
    out = ["--output", str(tmp_path / "rows.parquet"), "--overwrite"] if command == "read" else []
    args: list[str | Path] = [command, table.path, "--json", *out]

    def slices(*more: str) -> int:
        code, text = invoke(*args, *more)
        assert code == 0
        found = json.loads(text)["slices"]
        return found if isinstance(found, int) else len(found)

    whole = slices()
    assert slices("--listing", "metadata") == slices("--listing", "storage") == whole
    half = slices("--listing", "metadata", "--partition", "north")
    assert half == slices("--partition", "north") == whole // 2
    table.commit(table.avro([entry("__all_partitions__", {"south": None})]))
    if table.open().layout.has_completion_times:  # on version 6 the added delta commit is no matter either
        assert slices("--listing", "storage") == whole
    if not table.open().layout.has_completion_times:
        return  # log files lie on the plan: without it they are in no slice, and the writes name those of south
    plan = table.path / table.open().config.timeline_folder
    for path in plan.glob("*.compaction.requested"):
        path.unlink()  # it names files of south
    assert 2 * slices("--listing", "metadata") == slices()


def test_a_planned_partition_that_is_not_named(table: Indexed) -> None:
    """Without its folder its rows would just not be there."""
    table.commit(table.avro([entry("__all_partitions__", {"south": None})]))
    assert "south" in invoke("slices", table.path, "--listing", "metadata")[1]


@pytest.mark.parametrize("table", ["v6", "v8", "v9"], indirect=True)
def test_show(table: Indexed) -> None:
    """How much there is to compact; an unreadable one does not hide the rest."""
    count = 4 if table.open().config.version == 6 else 6
    assert f"; {count} delta commits since its last compaction" in invoke("show", table.path)[1]
    facts = json.loads(invoke("show", table.path, "--json")[1])["table"]
    assert (facts["metadata_commits_since_compaction"], facts["metadata_problem"]) == (count, None)
    shutil.rmtree(table.folder)
    code, text = invoke("show", table.path)
    assert code == 0
    assert re.search(r"metadata table +on \(.*\); the metadata table has no settings", text)


def test_a_table_without_metadata_table_is_good(tmp_path: Path) -> None:
    """There is nothing to compare."""
    result = CliRunner().invoke(app, ["validate", str(unzip_golden("v9_plain", tmp_path))], catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (0, "good: no metadata table\n")


def archived(path: Path, version: int, *, metadata_table: bool = False) -> None:
    """20 keys in two partitions, whose first write is archived, and one key of each partition written again."""
    batches = [range(20), *[range(2)] * 5]
    for ts, keys in enumerate(batches, 1):
        columns = {"id": [f"k{k}" for k in keys], "p": ["ab"[k % 2] for k in keys], "ts": [ts] * len(keys)}
        if ts == 2:  # other keys in other files: nothing of an active write lies on the first ones
            columns["id"] = [f"n{k}" for k in keys]
        one = writer(pa.table(columns)).table("t", version=version, metadata_table=metadata_table)
        one = one.key("id").partition("p").ordering("ts").option(small_file_bytes=0)
        (one.insert if ts <= 2 else one.upsert)(str(path))
    if metadata_table:
        serve_metadata(open_table(path), MetadataOptions(max_delta_commits=1), ProcessLock("test"))
    assert archive_table(open_table(path), SMALL, ProcessLock("test")).archived


@pytest.mark.parametrize("version", [9, 6, deep(8)])
def test_a_lost_base_file_of_an_archived_write(version: int, tmp_path: Path) -> None:
    """Nothing on the active timeline names it; the archive does."""
    path = tmp_path / "t"
    archived(path, version)
    assert invoke("validate", path, "--json")[0] == 0
    file = min(path.glob("a/*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    data = file.read_bytes()
    for content in (b"", data[:-9], None):
        file.unlink() if content is None else file.write_bytes(content)
        code, text = invoke("validate", path, "--json")
        assert (code, [row["file"] for row in json.loads(text)["lost"]]) == (1, [f"a/{file.name}"])
    code, text = invoke("validate", path)
    assert f"lost: a/{file.name} is not there" in " ".join(text.split())


@pytest.mark.parametrize("version", [9, deep(8), deep(6)])
@pytest.mark.parametrize("query", ["snapshot", "read-optimized"])
def test_a_read_misses_a_file_of_an_archived_write_by_the_metadata_table(
    version: int, query: str, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    archived(path, version, metadata_table=True)
    whole = read(str(path)).to_arrow().num_rows
    for file in [*path.glob("a/*.parquet"), *(path.glob("a/.*.log.*") if version > 6 and query == "snapshot" else ())]:
        data = file.read_bytes()
        file.unlink()
        for where in (None, "a"):
            with pytest.raises(MissingFileError, match=re.escape(file.name)):
                read(str(path), query=query, partition=where).to_arrow()
        assert read(str(path), query=query, partition="b").to_arrow().num_rows == whole // 2
        file.write_bytes(data)
    shutil.rmtree(path / "a")
    with pytest.raises(MissingFileError):
        read(str(path), query=query).to_arrow()


@pytest.mark.parametrize("version", [9, deep(8), deep(6)])
def test_a_file_that_no_write_names_and_whose_rows_count(version: int, tmp_path: Path) -> None:
    """Behind archiving nothing but its name is asked; Hudi does not, either."""
    path = tmp_path / "t"
    archived(path, version)
    (first,) = (i for i in [open_table(path).load_timeline(archived=True).archived[0]])
    file = min(path.glob("a/*.parquet"), key=lambda file: file.name.rpartition("_")[2])
    gone = f"{int(first.requested_time) + 1:017d}"
    more = path / "a" / f"00000000-0000-4000-8000-000000000000-0_0-1-2_{gone}.parquet"
    shutil.copy(file, more)
    assert read(str(path), partition="a").to_arrow().num_rows == 21
    code, text = invoke("validate", path, "--json")
    assert (code, json.loads(text)["unnamed"]) == (1, [f"a/{more.name}"])
    assert f"unnamed: a/{more.name}" in " ".join(invoke("validate", path)[1].split())


@pytest.mark.parametrize("version", [9, 6, deep(8)])
def test_a_delta_commit_of_the_metadata_table_without_its_completed_file(version: int, tmp_path: Path) -> None:
    """The table has completed it, and does so last. Each of them; a listing would have other files without it."""
    path = tmp_path / "t"
    columns = {"id": [f"k{k}" for k in range(4)], "p": ["a", "b"] * 2, "ts": [1] * 4}
    for ts in (1, 2, 3):
        one = writer(pa.table({**columns, "ts": [ts] * 4})).table("t", version=version, metadata_table=True)
        one.key("id").partition("p").ordering("ts").upsert(str(path))
    writes = {i.requested_time for i in open_table(path).load_timeline().completed}
    folder = path / ".hoodie/metadata/.hoodie" / ("timeline" if version > 6 else "")
    files = [f for f in folder.glob("*.deltacommit") if f.name[:17] in writes]
    assert len(files) == 3
    whole = read_files(open_table(path))
    for file in files:
        data = file.read_bytes()
        file.unlink()
        with pytest.raises(MissingFileError, match="completed file of a delta commit of the metadata table is missing"):
            read_files(open_table(path))
        with pytest.raises(MissingFileError):
            invoke("read", path, "--listing", "metadata")
        with suppress(MissingFileError):  # or it waits
            serve_metadata(open_table(path), MetadataOptions(max_delta_commits=1), ProcessLock("test"))
        assert read(str(path)).to_arrow().num_rows == 4
        file.write_bytes(data)
        assert read_files(open_table(path)) == whole
