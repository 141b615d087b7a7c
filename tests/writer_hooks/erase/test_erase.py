"""Erasure: no file of the table holds the keys afterwards, all other rows are the same, and a certificate says so."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import AttemptOptions, Erased, EraseOptions, Table, erase, read, schedule, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.undo.savepoint import create_savepoint, delete_savepoint
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.codec.output_options import Codec, OutputOptions
from phantombase.timeline.errors import PhantombaseError, UnsupportedError, UsageError
from phantombase.timeline.format.log_encode import LogFormat
from phantombase.timeline.format.table_config import save_table_config
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.merge.table_rules import slice_rules
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.read.pins import PinOptions, pinned
from phantombase.timeline.read.table_read import ReadOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.erase.erase import CERTIFICATES, erase_keys
from phantombase.writer_hooks.erase.key_list import KeyList, Searched, read_keys, search
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.archived_tables import forget_heartbeats
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import Faults
from tests.support.golden_tables import DAMAGES, LOCK, one_of, unzip_golden
from tests.support.golden_tables import put as damaged
from tests.support.places import traces
from tests.support.record_indexes import check_index

PLAIN = OutputOptions(codec=Codec.NONE)
"""Keys can be seen in the bytes of base files."""
WRITES = {"output": PLAIN, "log_format": LogFormat.AVRO, "slots": 1}
SECRET = "secret-of-a-person"
Rows = dict[tuple[str, str], int]


def batch(ts: int, *ids: str, day: str = "mon") -> pa.Table:
    return pa.table({"id": list(ids), "day": [day] * len(ids), "ts": pa.array([ts] * len(ids), pa.int64())})


def put(path: Path, rows: pa.Table, version: int = 9, **options: Any) -> None:
    described = writer(rows).table("people", version=version).key("id").partition("day").ordering("ts")
    described.option(**{**WRITES, **options}).upsert(str(path))


def rows_of(path: Path) -> Rows:
    found = read(str(path)).to_arrow().to_pylist()
    assert len({(row["day"], row["id"]) for row in found}) == len(found)
    return {(row["day"], row["id"]): row["ts"] for row in found}


def erased(path: Path, keys: Any, **options: Any) -> Erased:
    return erase(str(path), keys, **{"sole_writer": True, "output": PLAIN, **options})


def holders(path: Path, text: str = SECRET) -> list[str]:
    """The files, of any kind, in whose bytes it is."""
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(str(file.relative_to(path)) for file in files if text.encode() in file.read_bytes())


def keys_of(*keys: str) -> pa.Table:
    return pa.table({"id": list(keys)})


def certificate(path: Path, done: Erased) -> dict[str, Any]:
    assert done.certificate is not None
    found: dict[str, Any] = json.loads((path / done.certificate).read_text())
    return found


# --- what is erased ---------------------------------------------------------------------------------------------------


def with_logs(path: Path, version: int) -> None:
    put(path, batch(1, SECRET, "a", "b"), version)
    put(path, batch(1, "c", day="tue"))
    put(path, batch(2, SECRET, "a"))


def without_logs(path: Path, version: int) -> None:
    put(path, batch(1, SECRET, "a", "b"), version)


def deleted_before(path: Path, version: int) -> None:
    """Only a log names it as deleted, and an older base file holds it."""
    put(path, batch(1, SECRET, "a"), version)
    writer(batch(1, SECRET)).option(**WRITES).delete(str(path))


def in_old_slices(path: Path, version: int) -> None:
    deleted_before(path, version)
    plan(path)
    CliRunner().invoke(app, ["compact", str(path), "--executor", "local"])


def in_a_replaced_group(path: Path, version: int) -> None:
    put(path, batch(1, SECRET, "a"), version)
    writer(batch(2, "a", "b")).option(**WRITES).insert_overwrite(str(path))


def in_a_pending_plan(path: Path, version: int) -> None:
    """The delete comes behind the plan, so its log stays on the new base file."""
    with_logs(path, version)
    plan(path)


def of_a_dead_writer(path: Path, version: int) -> None:
    """Its files are of a write that no reader sees."""
    put(path, batch(1, "a"), version)
    put(path, batch(2, SECRET))
    table = open_table(path)
    timeline = table.load_timeline()
    table.storage.delete(table.instant_path(timeline.completed_writes[timeline.latest_completed]))


def plan(path: Path) -> None:
    assert schedule(str(path), sole_writer=True).instant is not None


CASES = [
    with_logs,
    without_logs,
    deleted_before,
    in_old_slices,
    in_a_replaced_group,
    in_a_pending_plan,
    of_a_dead_writer,
]


@one_of("version", 9, 6, 8)
def test_no_file_holds_the_key_and_no_other_row_changes(version: int, tmp_path: Path) -> None:
    for case in CASES:
        check_erased(tmp_path / case.__name__, case, version)


def check_erased(path: Path, case: Callable[[Path, int], None], version: int) -> None:
    case(path, version)
    rows = {key: ts for key, ts in rows_of(path).items() if key[1] != SECRET}
    assert holders(path)
    done = erased(path, keys_of(SECRET))
    assert done.left == ()
    assert holders(path) == []
    assert rows_of(path) == rows
    assert certificate(path, done)["no_data_file_holds_keys"] is True
    put(path, batch(9, "a", "new"))
    assert rows_of(path) == rows | {("mon", "a"): 9, ("mon", "new"): 9}
    assert all(audit(open_table(path), instant).good for instant in audited_instants(open_table(path)))


@one_of("version", 9, 6, 8)
def test_other_file_groups_are_left_alone(version: int, tmp_path: Path) -> None:
    """Nor do they lose the states that a read of the past needs."""
    path = tmp_path / "t"
    with_logs(path, version)
    put(path, batch(3, "c", day="tue"))
    plan(path)
    assert CliRunner().invoke(app, ["compact", str(path), "--executor", "local"]).exit_code == 0
    put(path, batch(4, "c", day="tue"))
    before = {file: stamp for file, stamp in traces(path / "tue").items() if file.is_file()}
    done = erased(path, keys_of(SECRET))
    assert {file: stamp for file, stamp in traces(path / "tue").items() if file.is_file()} == before
    assert [group.partition("/")[0] for group in done.touched] == ["mon"]
    assert len(done.deleted) == len(done.compacted) == len(done.cleaned) == 1
    assert len(list((path / "tue").glob("*.parquet"))) == 2


def test_a_key_that_no_file_holds(tmp_path: Path) -> None:
    """The certificate says that all files were read."""
    path = tmp_path / "t"
    with_logs(path, 9)
    rows, data = rows_of(path), sorted(path.glob("*/*"))
    done = erased(path, keys_of("nobody"))
    assert (done.rows, done.deleted, done.compacted, done.cleaned, done.left) == (0, (), (), (), ())
    assert len(done.checked) == 3
    assert (rows_of(path), sorted(path.glob("*/*"))) == (rows, data)
    assert certificate(path, done)["no_data_file_holds_keys"] is True


@one_of("version", 9, 6)
def test_a_key_in_two_partitions(version: int, tmp_path: Path) -> None:
    """It leaves both, or the one that the list names."""
    path = tmp_path / "t"
    put(path, batch(1, SECRET, "a"), version)
    put(path, batch(1, SECRET, "c", day="tue"))
    done = erased(path, pa.table({"id": [SECRET], "day": ["mon"]}))
    assert done.left == ()
    assert rows_of(path) == {("mon", "a"): 1, ("tue", SECRET): 1, ("tue", "c"): 1}
    assert {name.partition("/")[0] for name in holders(path)} == {"tue"}
    assert erased(path, keys_of(SECRET)).left == ()
    assert rows_of(path) == {("mon", "a"): 1, ("tue", "c"): 1}
    assert holders(path) == []


def test_a_bucket_index(tmp_path: Path) -> None:
    path = tmp_path / "t"
    put(path, batch(1, SECRET, "a", "b"), buckets=2)
    with pytest.raises(UsageError, match="bucket index"):
        erased(path, keys_of(SECRET))
    assert erased(path, keys_of(SECRET), writes=WriteOptions(buckets=2)).left == ()
    assert holders(path) == []
    assert set(rows_of(path)) == {("mon", "a"), ("mon", "b")}


@one_of("name", "v9", "v8", "v6")
def test_the_record_index_of_the_metadata_table(name: str, tmp_path: Path) -> None:
    """It does not name the key any more; what its older slices keep is told."""
    path = unzip_golden(f"more/{name}_record_index", tmp_path)
    before = set(check_index(path))
    key = sorted(before)[0][0] if isinstance(sorted(before)[0], tuple) else sorted(before)[0]
    lines = tmp_path / "keys"
    lines.write_text(f"{key}\n")
    done = erased(path, lines)
    assert done.left == ()
    assert done.rows == 1
    assert "record_index" in done.metadata
    assert "0 of the keys in its newest state" in done.metadata
    assert len(check_index(path)) == len(before) - 1


def test_an_index_that_was_dropped_is_named(tmp_path: Path) -> None:
    """A write that cannot keep it switches it off, and its files stay."""
    path = unzip_golden("more/v9_record_index", tmp_path)
    key = sorted(check_index(path))[0]
    table = open_table(path)
    save_table_config(table.storage, table.config.without_metadata_partitions(["record_index"]))
    lines = list_of(tmp_path, key[0] if isinstance(key, tuple) else key)
    done = erased(path, lines)
    assert [one.path for one in done.left] == [".hoodie/metadata/record_index"]
    assert certificate(path, done)["no_data_file_holds_keys"] is False
    drop_metadata_table(open_table(path), LOCK)
    assert erased(path, lines).left == ()


def test_what_a_dead_write_staged_goes(tmp_path: Path) -> None:
    """No base or log file holds the key."""
    path = tmp_path / "t"
    put(path, batch(1, "a"))

    def dies(call: Call) -> object:
        if call.name == "place":
            raise ProcessDied(call.path)
        return call.do()

    what = Write(operation=Operation.UPSERT, options=WriteOptions(output=PLAIN, log_format=LogFormat.AVRO, slots=1))
    table = open_table(path, HookedStorage(open_table(path).storage, dies))
    with pytest.raises(ProcessDied):
        write(table, LocalEngine(batch(2, SECRET), slots=1), what)
    forget_heartbeats(path)
    assert erased(path, keys_of(SECRET)).left == ()
    assert holders(path) == []


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_savepoint_is_named_and_the_next_run_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_logs(path, 9)
    kept = create_savepoint(open_table(path), LOCK, None, user="", comment="")
    words = ["erase", str(path), "--keys", str(list_of(tmp_path, SECRET)), "--sole-writer", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert {one["why"] for one in said["left"]} == {f"savepoint {kept.instant} keeps it"}
    assert ("mon", SECRET) not in rows_of(path)
    assert holders(path) == [one["path"] for one in said["left"]]
    delete_savepoint(open_table(path), LOCK, kept.instant)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert holders(path) == []


def test_a_pin_is_named_and_the_next_run_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_logs(path, 9)
    with pinned(lambda: open_table(path), ReadOptions(), PinOptions.of("nightly", "2h")):
        done = erased(path, keys_of(SECRET))
        assert {one.path for one in done.left} == set(holders(path))
        assert all("pin nightly holds" in one.why for one in done.left)
        assert certificate(path, done)["no_data_file_holds_keys"] is False
    assert erased(path, keys_of(SECRET)).left == ()
    assert holders(path) == []


def test_a_pending_write_is_named(tmp_path: Path) -> None:
    """Of a live writer; what it has placed may hold any key."""
    path = tmp_path / "t"
    with_logs(path, 9)
    put(path, batch(3, SECRET, "z"))
    table = open_table(path)
    timeline = table.load_timeline()
    pending = timeline.completed_writes[timeline.latest_completed]
    table.storage.delete(table.instant_path(pending))
    owner = asdict(Process.current())
    table.storage.overwrite(heartbeat_path(pending.requested_time), b"phantombase\n" + json.dumps(owner).encode())
    done = erased(path, keys_of(SECRET), attempt=AttemptOptions(barrier_s=0))
    assert f"deltacommit {pending.requested_time} is pending" in {one.why for one in done.left}
    named = {one.path for one in done.left}
    assert {name for name in named if not name.startswith(".hoodie")} == {n for n in holders(path) if n in named}
    assert set(holders(path)) <= named
    forget_heartbeats(path)
    assert erased(path, keys_of(SECRET)).left == ()
    assert holders(path) == []


def test_rows_that_a_query_may_need_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_logs(path, 9)
    done = erased(path, keys_of(SECRET), options=EraseOptions(floor_s=3600))
    assert done.left
    assert holders(path) == [one.path for one in done.left]
    assert ("mon", SECRET) not in rows_of(path)
    assert erased(path, keys_of(SECRET)).left == ()


def test_tables_that_it_does_not_take(tmp_path: Path) -> None:
    path = tmp_path / "t"
    writer(batch(1, "a")).table("t").key().partition("day").insert(str(path))
    with pytest.raises(UnsupportedError, match="keyless"):
        erased(path, keys_of("a"))
    path = unzip_golden("v6_plain", tmp_path)
    properties = path / ".hoodie/hoodie.properties"
    properties.write_text(properties.read_text().replace("MERGE_ON_READ", "COPY_ON_WRITE"))
    with pytest.raises(UnsupportedError, match="COPY_ON_WRITE"):
        erased(path, list_of(tmp_path, "a"))
    with pytest.raises(UsageError, match="which other processes write"):
        erase(str(path), keys_of("a"))


# --- a run that dies --------------------------------------------------------------------------------------------------


@one_of("version", 9, 6)
def test_a_run_that_died_anywhere_is_continued(version: int, tmp_path: Path) -> None:
    """By the same call; before that all other rows are there, and the key is there whole or gone."""
    origin = tmp_path / "origin"
    with_logs(origin, version)
    before = rows_of(origin)
    rows = {key: ts for key, ts in before.items() if key[1] != SECRET}

    def work(storage: Storage) -> Erased:
        table = open_table(Path(storage.base_path), storage)
        return erase_keys(table, KeyList.of(pa.array([SECRET])), lock=None, options=WriteOptions(slots=1, output=PLAIN))

    deaths = 0
    for _, path in Faults.of(origin, work, share=(0, 2)).deaths():
        assert rows_of(path) in (before, rows)
        forget_heartbeats(path)
        assert work(LocalStorage(str(path))).left == ()
        assert holders(path) == []
        assert rows_of(path) == rows
        deaths += 1
    assert deaths > 10


# --- the search -------------------------------------------------------------------------------------------------------


def searched(path: Path, known: dict[str, int]) -> Searched:
    table = open_table(path)
    timeline = table.load_timeline()
    rules = slice_rules(table.with_timeline(timeline), table.with_timeline(timeline).newest_schema())
    return search(table, rules, KeyList.of(pa.array([SECRET])), known)


def test_a_file_that_has_grown_is_read_again(tmp_path: Path) -> None:
    """Hudi 0.15 appends to log files."""
    path = tmp_path / "t"
    with_logs(path, 9)
    sizes = {str(file.relative_to(path)): file.stat().st_size for file in path.glob("mon/*[!a]")}
    assert {one.path for one in searched(path, {}).held} <= sizes.keys()
    assert searched(path, sizes).held == ()
    grown = {name: size - 1 for name, size in sizes.items()}
    assert searched(path, grown).held == searched(path, {}).held


def test_a_block_that_cannot_be_read_may_hold_any_key(tmp_path: Path) -> None:
    """It is named, until the compaction of its file group."""
    path = tmp_path / "t"
    put(path, batch(1, "a"))
    put(path, batch(2, "a"))
    (log,) = path.glob("mon/.*.log.*")
    with log.open("ab") as file:
        file.write(b"#HUDI#" + (500).to_bytes(8, "big") + b"torn")
    (held,) = searched(path, {}).held
    assert (held.path, held.keys) == (str(log.relative_to(path)), 0)
    assert "may hold any key" in held.why
    assert erased(path, keys_of(SECRET)).left == ()
    assert rows_of(path) == {("mon", "a"): 2}


@one_of("version", 9, 6)
def test_a_lost_or_damaged_file_may_hold_the_key(version: int, tmp_path: Path) -> None:
    """No certificate is written: it may come back, as of a disk that is not mounted. What is of older states goes,
    or is named."""
    whole = tmp_path / "t"
    in_old_slices(whole, version)
    of_now = {base.path for g in open_table(whole).load_view().groups if (base := g.slices[-1].base) is not None}
    for number, file in enumerate(sorted(whole.glob("mon/*.parquet"))):
        for what, damage in DAMAGES.items():
            path = shutil.copytree(whole, tmp_path / f"{number} {what}")
            mine = path / file.relative_to(whole)
            data = mine.read_bytes()
            damaged(mine, damage(data))
            refusal, left = None, ""
            try:
                left = str(erased(path, keys_of(SECRET)).left)
            except PhantombaseError as error:
                refusal = str(error)
            if refusal is not None:
                assert file.name in refusal
            else:
                assert str(file.relative_to(whole)) not in of_now
                assert not mine.exists() or file.name in left
            mine.write_bytes(data)
            assert rows_of(path) == rows_of(whole)


# --- lists and certificates -------------------------------------------------------------------------------------------


def list_of(folder: Path, *lines: str, name: str = "keys") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def numbered(path: Path) -> Table:
    rows = pa.table({"n": pa.array([1, 2], pa.int64()), "m": ["x", "y"], "day": ["mon", "tue"]})
    writer(rows).table("t").key("n", "m").partition("day").upsert(str(path))
    return open_table(path)


def test_lists_of_every_kind(tmp_path: Path) -> None:
    """With the types of the table, and the partition or none."""
    table = numbered(tmp_path / "t")
    columns = pa.table({"other": [7], "m": ["x"], "n": [1]})
    pq.write_table(columns, tmp_path / "k.parquet")
    pa.csv.write_csv(columns, tmp_path / "k.csv")
    with_day = columns.append_column("day", pa.array(["mon"]))
    pa.csv.write_csv(with_day, tmp_path / "d.csv")
    json_ = list_of(tmp_path, '{"n": 1, "m": "x", "other": [1]}', name="k.json")
    lines = list_of(tmp_path, "n:1,m:x", "", "n:1,m:x")
    for file in (tmp_path / "k.parquet", tmp_path / "k.csv", json_, lines):
        assert read_keys(file, table).rows.to_pylist() == [{"key": "n:1,m:x"}], file
    assert read_keys(tmp_path / "d.csv", table).rows.to_pylist() == [{"key": "n:1,m:x", "partition": "mon"}]
    assert read_keys(tmp_path / "d.csv", table).of_partition("tue") is None


@pytest.mark.parametrize(
    "end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", " ", "\t", ",", '"']
)
def test_a_key_with_a_character_that_may_separate(end: str, tmp_path: Path) -> None:
    table, key = numbered(tmp_path / "t"), f"n:1,m:x{end}y"
    lines = list_of(tmp_path, key, "n:2,m:x")
    assert sorted(read_keys(lines, table).rows["key"].to_pylist()) == sorted([key, "n:2,m:x"])
    columns = pa.table({"n": [1], "m": [f"x{end}y"]})
    pa.csv.write_csv(columns, tmp_path / "k.csv")
    assert read_keys(tmp_path / "k.csv", table).rows.to_pylist() == [{"key": key}]


def test_a_list_as_other_systems_write_it(tmp_path: Path) -> None:
    """A byte order mark and CR LF are no part of a key."""
    table, path = numbered(tmp_path / "t"), tmp_path / "k"
    path.write_bytes(b"\xef\xbb\xbfn:1,m:x\r\nn:2,m:x\r\n\r\n")
    assert sorted(read_keys(path, table).rows["key"].to_pylist()) == ["n:1,m:x", "n:2,m:x"]


def test_a_csv_of_keys_with_line_breaks(tmp_path: Path) -> None:
    """Longer than the blocks in which it is read."""
    table = numbered(tmp_path / "t")
    names = [f"{'x' * 100}\n{number}" for number in range(20_000)]
    pa.csv.write_csv(pa.table({"n": [1] * len(names), "m": names}), tmp_path / "k.csv")
    assert len(read_keys(tmp_path / "k.csv", table)) == len(names)


NO_LISTS = (
    ("k.csv", b"n,other\n1,2\n", "lack a key or partition column"),
    ("k.csv", b"n,m\none,x\n", "cannot be read"),
    ("k.csv", b"n,m\n", "no keys to erase"),
    ("k.json", b"[1", "cannot be read"),
    ("k.parquet", b"PAR", "cannot be read"),
    ("keys", b"", "no keys to erase"),
    ("keys", b"\n\n", "no keys to erase"),
    ("keys", b"\xff\xfe\x00", "cannot be read"),
)


def test_a_list_that_is_none(tmp_path: Path) -> None:
    table = numbered(tmp_path / "t")
    for name, content, said in NO_LISTS:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UsageError, match=said):
            read_keys(path, table)
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "none.csv", table)


def test_the_certificate_names_no_key_and_whoever_has_the_list_can_check_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_logs(path, 9)
    done = erased(path, keys_of(SECRET, "b", SECRET))
    found = certificate(path, done)
    lines = "".join(f"{key}\n" for key in sorted((SECRET, "b")))
    assert found["sha256"] == hashlib.sha256(found["salt"].encode() + lines.encode()).hexdigest()
    assert (found["keys"], found["rows"], found["name"], found["version"]) == (2, 2, "people", 9)
    assert found["deleted"] + found["compacted"] + found["cleaned"] == [*done.deleted, *done.compacted, *done.cleaned]
    assert SECRET not in (path / str(done.certificate)).read_text()
    again = erased(path, keys_of(SECRET, "b"))
    assert again.sha256 != found["sha256"], "another salt"
    assert len(list((path / CERTIFICATES).iterdir())) == 2


def test_a_dry_run_shows_the_files_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_logs(path, 9)
    before, held = traces(path), [name for name in holders(path) if not name.startswith(".hoodie")]
    words = ["erase", str(path), "--keys", str(list_of(tmp_path, SECRET, "nobody")), "--dry-run"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["keys"], said["rows"], [one["path"] for one in said["left"]]) == (2, 1, held)
    shown = CliRunner().invoke(app, words)
    assert "2 keys: 1 row would be deleted; 1 file group" in shown.stdout
    assert traces(path) == before
