"""`timeline audit`: what it proves, what it says of files a cleaner took, and that it sees every kind of wrong."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping
from phantombase.compactor_daemon.execution.run_compactions import run_compactions
from phantombase.compactor_daemon.options import AttemptOptions, ExecuteOptions, Executor
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.audit.audit import InstantAudit, Verdict, audit, audited_instants
from phantombase.timeline.audit.clusterings import audit_clustering, clustered_instants
from phantombase.timeline.audit.ledgers import audit_path, kept_ledgers
from phantombase.timeline.cli.main import app
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import MissingFileError, UsageError
from phantombase.timeline.format.commit_metadata import LEDGER, decode, encode
from phantombase.timeline.format.ledger import CLUSTERED, GroupLedger, decode_ledgers
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import is_replaced
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import (
    ONE,
    SMALL,
    TWO,
    built_upon,
    cluster,
    long_table,
    one_row,
    overwrite,
    small_files,
)
from tests.support.archived_tables import compact as compact_small
from tests.support.archived_tables import upsert as upsert_small
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.moved_tables import schedule, upsert
from tests.support.selection import ALL, deep
from tests.support.trips import rows
from tests.support.written_tables import read_rows, written_table


def compact(path: Path) -> list[str]:
    """Executes what is pending; the instants."""
    done = run_compactions(
        str(path),
        drop_metadata=True,
        output=OutputOptions(),
        execute=ExecuteOptions(executor=Executor.LOCAL),
        attempt=AttemptOptions(),
    )
    return [d.instant for d in done.done]


def compacted(name: str, folder: Path) -> tuple[Path, str]:
    path = unzip_golden(name, folder)
    return path, compact(path)[0]


@pytest.fixture(params=["v9_pending", deep("v6_pending")])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A compacted table and the instant of its first compaction."""
    return compacted(request.param, tmp_path)


def snapshot(path: Path, instant: str) -> InstantAudit:
    return audit(Table.open(str(path)), instant)


def ledgers_of(path: Path, instant: str) -> list[GroupLedger]:
    entry = json.loads((path / audit_path(instant)).read_bytes())
    return decode_ledgers(entry["ledger"], "audit log")


def problem(path: Path, instant: str) -> str:
    found = snapshot(path, instant)
    assert not found.good
    return " | ".join([*found.problems, *(p for g in found.groups for p in g.problems)])


def test_everything_is_there(table: tuple[Path, str]) -> None:
    """The repeated merge gives the same ledger, hashes included."""
    path, instant = table
    found = snapshot(path, instant)
    assert found.good
    assert found.groups
    assert not found.leftovers
    assert {g.verdict for g in found.groups} == {Verdict.PROVED}
    assert all(b.ledger.identity is not None for b in ledgers_of(path, instant))


@pytest.mark.parametrize("name", ["v9_virtual_keys", "v9_parquet_log", "v6_types", "v9_types"])
def test_other_tables(name: str, tmp_path: Path) -> None:
    """Tables without meta columns, other log blocks, every column type."""
    path = unzip_golden(name, tmp_path)
    if not list(path.glob(".hoodie/**/*.compaction.requested")):
        from phantombase.timeline.locks.table_lock import ProcessLock
        from phantombase.timeline.metadata_table.create import drop_metadata_table
        from phantombase.timeline.planning.schedule import schedule_compaction

        lock = ProcessLock(str(path))
        schedule_compaction(drop_metadata_table(Table.open(str(path)), lock), lock)
    done = compact(path)
    assert done
    assert all(snapshot(path, instant).good for instant in done)


@one_of("table", "v6_pending", "v9_pending", indirect=True)
def test_cleaned_inputs(table: tuple[Path, str]) -> None:
    """The output still proves itself."""
    path, instant = table
    for recorded in ledgers_of(path, instant):
        for name in recorded.inputs:
            (path / recorded.path(name)).unlink()
    found = snapshot(path, instant)
    assert found.good
    assert {g.verdict for g in found.groups} == {Verdict.OUTPUT_PROVED}


def test_a_lost_base_file_is_wrong(table: tuple[Path, str]) -> None:
    """Nothing newer has taken its place: rows are lost."""
    path, instant = table
    (first, *_) = [b for b in ledgers_of(path, instant) if b.output is not None]
    assert first.output is not None
    (path / first.path(first.output)).unlink()
    assert first.output in problem(path, instant)


def rewrite(path: Path, change: Any) -> None:
    """Another Parquet file of the same size on disk is not needed: the size is distinguished on its own."""
    file = pq.ParquetFile(path)
    rows, metadata = file.read(), file.metadata.metadata
    changed = change(rows)
    with pq.ParquetWriter(path, changed.schema, store_schema=False) as writer:
        writer.write_table(changed)
        writer.add_key_value_metadata(metadata)


def other_sequence_numbers(rows: pa.Table) -> pa.Table:
    name = "_hoodie_commit_seqno"
    column = rows.column(name)
    return rows.set_column(rows.schema.get_field_index(name), name, pc.utf8_reverse(column))


def test_another_row_shows(table: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows, one of them another one: only the hash tells."""
    path, instant = table
    (first, *_) = [b for b in ledgers_of(path, instant) if b.output is not None]
    assert first.output is not None
    target = path / first.path(first.output)
    rewrite(target, other_sequence_numbers)
    assert "size of the written file" in problem(path, instant)
    entry = path / audit_path(instant)
    entry.write_text(entry.read_text().replace(f'\\"size\\":{first.size}', f'\\"size\\":{target.stat().st_size}'))
    for commit in path.glob(".hoodie/**/*.commit"):
        commit.unlink() if LEDGER.encode() in commit.read_bytes() else None
    assert "hash of the rows" in problem(path, instant)


@one_of("table", "v6_pending", "v9_pending", indirect=True)
def test_a_second_base_file_shows(table: tuple[Path, str]) -> None:
    """Readers would take either."""
    path, instant = table
    (first, *_) = [b for b in ledgers_of(path, instant) if b.output is not None]
    assert first.output is not None
    second = first.output.replace(f"_{instant}", f"x_{instant}")
    shutil.copy(path / first.path(first.output), path / first.path(second))
    found = problem(path, instant)
    assert f"{second}: a second base file of the instant" in found


def test_a_log_that_was_left_out_shows(tmp_path: Path) -> None:
    """A writer without the lock put a log under the plan after the compaction had looked."""
    path, instant = compacted("v6_pending", tmp_path)
    (first, *_) = [b for b in ledgers_of(path, instant) if len(b.inputs) > 1]
    log = first.inputs[-1]
    head, _, tail = log.partition(".log.")
    late = f"{head}.log.9{tail[1:]}"
    shutil.copy(path / first.path(log), path / first.path(late))
    assert f"{late} belongs to the compacted slice but was not merged" in problem(path, instant)


def test_a_changed_ledger_shows(table: tuple[Path, str]) -> None:
    """The audit log and the commit must say the same; each equation must hold."""
    path, instant = table
    entry = path / audit_path(instant)
    whole = entry.read_text()
    entry.write_text(whole.replace('\\"rows_out\\":', '\\"rows_out\\":1', 1))
    assert "different ledgers" in problem(path, instant)
    entry.unlink()
    assert "no entry" in problem(path, instant)
    entry.write_text("{}")
    assert "unreadable entry of the audit log" in problem(path, instant)


def change_ledger(path: Path, instant: str, name: str) -> None:
    """One more of a count, in the only copy of the ledger."""
    for commit in path.glob(f".hoodie/**/{instant}*.commit"):
        commit.unlink()
    entry = path / audit_path(instant)
    document = json.loads(entry.read_bytes())
    ledger = json.loads(document["ledger"])
    for group in ledger["file_groups"].values():
        group[name] += 1
    entry.write_text(json.dumps({**document, "ledger": json.dumps(ledger)}))


def test_a_ledger_that_does_not_balance_shows(table: tuple[Path, str]) -> None:
    """Also when the inputs are gone and the merge cannot be run again."""
    path, instant = table
    for recorded in ledgers_of(path, instant):
        for name in recorded.inputs:
            (path / recorded.path(name)).unlink()
    change_ledger(path, instant, "kept")
    assert "does not balance" in problem(path, instant)


@one_of("table", "v6_pending", "v9_pending", indirect=True)
def test_a_wrong_ledger_that_balances_shows(table: tuple[Path, str]) -> None:
    """One log entry more, superseded: only the repeated merge shows it."""
    path, instant = table
    change_ledger(path, instant, "log_entries")
    assert "ledger of the repeated merge" in problem(path, instant)


def test_the_audit_log_outlives_the_commit(table: tuple[Path, str]) -> None:
    """Hudi archives commits; the ledger stays, and the table is audited as before."""
    path, instant = table
    for commit in path.glob(f".hoodie/**/{instant}*.commit"):
        ledger = json.loads(json.loads((path / audit_path(instant)).read_bytes())["ledger"])
        assert ledger["total"]["identity"]
        assert commit.is_file()
    assert audited_instants(Table.open(str(path)), instant) == (instant,)


def test_leftovers_are_listed(table: tuple[Path, str]) -> None:
    """Staged data that a killed run left: no fault of the table."""
    path, instant = table
    left = path / f".hoodie/.phantombase/{instant}/1/0-abc.parquet"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(b"x")
    found = snapshot(path, instant)
    assert found.good
    assert found.leftovers == (f".hoodie/.phantombase/{instant}/1/0-abc.parquet",)


@one_of("table", "v6_pending", "v9_pending", indirect=True)
def test_the_command(table: tuple[Path, str]) -> None:
    """Exit code 0 when all is well, 1 when not; JSON; an instant without a ledger is refused by name."""
    path, instant = table
    run = CliRunner().invoke
    good = run(app, ["audit", str(path), "--json"])
    assert good.exit_code == 0
    document = json.loads(good.stdout)
    assert document["good"]
    assert instant in [i["instant"] for i in document["instants"]]
    shown = run(app, ["audit", str(path), instant])
    assert shown.exit_code == 0
    assert "proved" in shown.stdout
    (path / audit_path(instant)).unlink()
    bad = run(app, ["audit", str(path), instant])
    assert bad.exit_code == 1
    assert "wrong:" in bad.stdout
    with pytest.raises(UsageError, match="no ledger of this instant"):
        audited_instants(Table.open(str(path)), "20200101000000000")


@pytest.mark.parametrize("version", [6, 9])
def test_a_log_that_was_not_merged_is_noticed_without_a_base_file_too(version: int, tmp_path: Path) -> None:
    """As where an index puts new keys into logs: a write whose clock was behind completes under the compaction."""
    path = tmp_path / "t"
    written_table(path, version, rows((0, 1, 1.0), (3, 1, 1.0)), WriteOptions(buckets=1, slots=1))
    upsert(LocalStorage(str(path)), rows((0, 2, 2.0)))
    upsert(LocalStorage(str(path)), rows((3, 7, 7.0)))
    (base,) = path.glob("*/*.parquet")
    base.unlink()
    folder = path / open_table(path).config.timeline_folder
    times = sorted({f.name[:17] for f in folder.iterdir() if f.name[:17].isdigit()})
    for file in folder.glob(f"{times[0]}*"):
        file.unlink()
    encoding = open_table(path).layout.encoding
    for file in folder.glob("*.deltacommit"):  # they name the base file of their slice
        commit = decode(file.read_bytes(), str(file))
        stats = {
            at: tuple(replace(s, base_file=None) for s in all_) for at, all_ in commit.partition_to_write_stats.items()
        }
        file.write_bytes(encode(replace(commit, partition_to_write_stats=stats), encoding))
    late = max(path.glob("*/.*.log.*"))
    unseen = {file: file.read_bytes() for file in (late, *folder.glob(f"{times[-1]}*"))}
    for file in unseen:
        file.unlink()
    instant = schedule(path).instant
    assert instant is not None
    run_all(open_table(path))
    assert audit(open_table(path), instant).good
    for file, content in unseen.items():
        file.write_bytes(content)
    found = audit(open_table(path), instant)
    assert not found.good
    assert late.name in str(found.groups[0].problems)


# An audit beside table services: at whichever of its calls they run, it raises no false alarm.


@pytest.mark.parametrize("version", [9, deep(8), deep(6)])
def test_a_newer_compaction_and_a_clean(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They remove the file that is audited, which was the newest when the audit began."""
    serial_pools(monkeypatch)
    made, path = tmp_path / "made/trips", tmp_path / "audited/trips"
    made.parent.mkdir()
    long_table(made, version, 4)
    (instant,) = audited_instants(open_table(made))
    for at in count(2, 1 if ALL else 3):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(made, path)
        hit: list[Call] = []

        def hook(call: Call, at: int, hit: list[Call]) -> Any:
            if call.number == at:
                hit.append(call)
                compact_small(path)
                upsert_small(path, one_row("k1", 100))
                clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
            return call.do()

        found = audit(open_table(path, HookedStorage(LocalStorage(str(path)), partial(hook, at=at, hit=hit))), instant)
        assert found.good, f"services at call {at}: {found}"
        if not hit:
            assert at > 10
            break


# Audits of clusterings: what is right is proved as far as files exist, what is wrong is found.


Found = tuple[InstantAudit, Verdict]


def audited(path: Path) -> Found:
    """The audit of the only clustering, which made one file."""
    table = open_table(path)
    (instant,) = clustered_instants(table)
    found = audit_clustering(table, instant)
    (group,) = found.groups
    return found, group.verdict


@one_of("version", 9, 8, 6)
def test_proved_and_cleaned(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, version)
    cluster(path)
    assert audited(path)[1] is Verdict.PROVED
    upsert_small(path, one_row("k1", 100))
    upsert_small(path, one_row("k1", 101))
    clean_table(open_table(path), ONE, LOCK)
    assert audited(path)[1] is Verdict.OUTPUT_PROVED
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exit_code == 0, done.output
    assert "output proved" in done.output
    overwrite(path, one_row("k1", 102))
    upsert_small(path, one_row("k1", 103))
    clean_table(open_table(path), ONE, LOCK)
    assert audited(path)[1] is Verdict.CLEANED
    for number in range(3):
        upsert_small(path, one_row("k1", 104 + number))
    compact_small(path)
    clean_table(open_table(path), ONE, LOCK)
    archive_table(open_table(path), SMALL, LOCK)
    assert not [i for i in open_table(path).load_timeline().completed if i.family == "replacecommit"]
    assert audited(path)[1] is Verdict.CLEANED  # nothing on the timeline shows that the overwrite replaced its file


def test_another_file_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    small_files(path, 9)
    cluster(path)
    view = open_table(path).load_view()
    (base,) = (g.slices[-1].base for g in view.groups if not is_replaced(g, view.facts))
    assert base is not None
    data = path / base.path
    shutil.copy(next(p for p in (path / "a").glob("*.parquet") if p != data), data)
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert not found.good
    data.unlink()
    _, verdict = audited(path)
    assert verdict is Verdict.WRONG
    with pytest.raises(MissingFileError, match="a completed write names a base file"):  # readers fail, too
        read_table(open_table(path))


_SORTED = ClusterOptions(grouping=Grouping.SIZE, target_size=400_000, sort_by=("ts",), wait_s=0)


@pytest.mark.usefixtures("default_filters")  # it goes by the sizes of files
def test_two_files_that_are_swapped(tmp_path: Path) -> None:
    """Of one group, and of one size: all rows are there, each file has those of the other."""
    path = tmp_path / "trips"
    rows = small_files(path, 9)
    done = cluster(path, options=_SORTED).done
    assert done is not None
    assert audited(path)[1] is Verdict.PROVED
    table = open_table(path)
    (recorded,) = kept_ledgers(table, done.instant).groups
    by_size: dict[int, list[Path]] = {}
    for name, size in recorded.outputs:
        by_size.setdefault(size, []).append(path / recorded.path(name))
    one, other, *_ = max(by_size.values(), key=len)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    assert read_rows(path) == rows
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert "hash of the rows in the written file" in found.groups[0].problems[0]


@one_of("version", 9, 6)
def test_the_audit_log_has_clusterings(version: int, tmp_path: Path) -> None:
    """It is compared with the commit, and has the ledger when that is archived, or rolled back."""
    path = tmp_path / "trips"
    small_files(path, version)
    done = cluster(path).done
    assert done is not None
    entry, table = path / audit_path(done.instant), open_table(path)
    (commit,) = (i for i in table.load_timeline().completed if i.family == "replacecommit")
    logged = json.loads(entry.read_bytes())
    assert logged["ledger"] == table.commit_metadata(commit).extra_metadata[CLUSTERED]
    assert (logged["instant"], logged["completed"]) == (done.instant, table.instant_path(commit))
    assert audited_instants(table) == ()  # of compactions
    undone = shutil.copytree(path, tmp_path / "undone")
    for text, problem in (('"rows_out": 4', "different ledgers"), ("", "unreadable entry"), (None, "has no entry")):
        if text is None:
            entry.unlink()
        else:
            changed = json.dumps({**logged, "ledger": logged["ledger"].replace('"rows_out":4', '"rows_out":5')})
            entry.write_text(changed if text else "")
        found, _ = audited(path)
        assert problem in found.problems[0]
        assert not found.good
    entry.write_text(json.dumps(logged))
    upsert_small(path, one_row("k1", 100))
    clean_table(open_table(path), ONE, LOCK)
    for number in range(3):
        upsert_small(path, one_row("k1", 101 + number))
    compact_small(path)
    clean_table(open_table(path), ONE, LOCK)
    archive_table(open_table(path), SMALL, LOCK)
    assert not [i for i in open_table(path).load_timeline().completed if i.family == "replacecommit"]
    assert audited(path)[1] in (Verdict.OUTPUT_PROVED, Verdict.CLEANED)
    roll_back_newest(open_table(undone), LOCK, done.instant)
    assert audited(undone)[1] is Verdict.UNDONE
    assert CliRunner().invoke(app, ["audit", str(undone), done.instant]).exit_code == 0


@pytest.mark.usefixtures("default_filters")  # it goes by the sizes of files
@pytest.mark.parametrize("each", [True, False])
def test_other_rows_than_recorded(each: bool, tmp_path: Path) -> None:
    """The inputs are gone; the ledger agrees with itself, but not with the files. `each`: it has a hash of each."""
    path = tmp_path / "trips"
    small_files(path, 6)
    cluster(path, options=TWO if each else _SORTED)
    table = open_table(path)
    (commit,) = (i for i in table.load_timeline().completed if i.family == "replacecommit")
    file, text = path / table.instant_path(commit), table.commit_metadata(commit).extra_metadata[CLUSTERED]
    (recorded,) = decode_ledgers(text, "test")
    assert recorded.ledger.identity is not None
    hashed = recorded.ledger.identity.out
    content = file.read_text().replace(f"{hashed:016x}", f"{hashed ^ 1:016x}")
    if not each:
        assert len(recorded.more) > 0
        content = re.sub(r'(more_hashes\\":\[)[^]]*', r"\1", content)
    file.write_text(content)
    for name in recorded.inputs:
        (path / recorded.path(name)).unlink()
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert f"hash of the rows in the written file{'' if each else 's'}" in found.groups[0].problems[0]


def test_another_number_of_rows_than_recorded(tmp_path: Path) -> None:
    """The same of a ledger without hashes."""
    path = tmp_path / "trips"
    small_files(path, 6)
    cluster(path)
    table = open_table(path)
    (commit,) = (i for i in table.load_timeline().completed if i.family == "replacecommit")
    file = path / table.instant_path(commit)
    (recorded,) = decode_ledgers(table.commit_metadata(commit).extra_metadata[CLUSTERED], "test")
    content = re.sub(r'(\\"(?:rows_out|base_rows|untouched)\\":)4', r"\g<1>5", file.read_text())
    file.write_text(re.sub(r',\\"identity\\":\{[^}]*\}', "", content))
    for name in recorded.inputs:
        (path / recorded.path(name)).unlink()
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert "number of rows in the written files" in found.groups[0].problems[0]


def test_a_file_that_was_written_again(tmp_path: Path) -> None:
    """By another tool: with the same rows, but it is not the file that was proved."""
    path = tmp_path / "trips"
    small_files(path, 9)
    before = set(path.glob("a/*.parquet"))
    cluster(path)
    (file,) = set(path.glob("a/*.parquet")) - before
    pq.write_table(pq.ParquetFile(file).read(), file, compression="none")
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    assert "size of the written file" in found.groups[0].problems[0]


@pytest.mark.parametrize("logs", [True, False])
def test_an_input_with_other_rows(logs: bool, tmp_path: Path) -> None:
    """As long as the inputs are there, they are merged again."""
    path = tmp_path / "trips"
    small_files(path, 9)
    files = {str(pq.ParquetFile(file).read()["id"][0]): file for file in path.glob("a/*.parquet")}
    if logs:
        upsert_small(path, one_row("k0", 50))
    cluster(path)
    assert audited(path)[1] is Verdict.PROVED
    shutil.copy(files["k1"], files["k2"])
    found, verdict = audited(path)
    assert verdict is Verdict.WRONG
    what = "ledger of the repeated merge" if logs else "hash of the rows in the files that were joined"
    assert what in found.groups[0].problems[0]


@one_of("version", 6, 9, 8)
def test_rows_that_came_back(version: int, tmp_path: Path) -> None:
    """The commit came late, and others had built upon it."""
    path = tmp_path / "trips"
    small_files(path, version)
    built_upon(path, lambda: overwrite(path, one_row("new", 100)), lambda: upsert_small(path, one_row("k3", 300)))
    found, _ = audited(path)
    assert "its rows are visible again" in found.groups[0].problems[0]
    assert CliRunner().invoke(app, ["audit", str(path)]).exit_code == 1


@one_of("version", 9, 8, 6)
def test_a_log_on_a_file_that_was_joined(version: int, tmp_path: Path) -> None:
    """As of a writer that asks for no plan, while the clustering slept: its row is in no base file."""
    path = tmp_path / "trips"
    small_files(path, version)
    built_upon(path, lambda: upsert_small(path, one_row("k1", 100)), lambda: upsert_small(path, one_row("k2", 200)))
    assert "belongs to a clustered file" in audited(path)[0].groups[0].problems[0]
