"""Orphan files: what nothing names goes, whatever names a file keeps it, and no row changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.archiving.archive import gone_but_there
from phantombase.compactor_daemon.attempt.finish import finish_completed
from phantombase.compactor_daemon.attempt.outcome import CommitDecision
from phantombase.compactor_daemon.cleaning import orphan_facts
from phantombase.compactor_daemon.cleaning import orphans as remove
from phantombase.compactor_daemon.cleaning.orphan_choice import OrphanOptions
from phantombase.compactor_daemon.cleaning.orphans import OrphanResult, remove_orphans
from phantombase.compactor_daemon.cli.main import app
from phantombase.timeline.errors import (
    ConflictError,
    LockError,
    MalformedError,
    MissingFileError,
    PhantombaseError,
    UnknownStateError,
    UsageError,
)
from phantombase.timeline.format.clean import CleanPlan, Savepoint, encode_clean_plan, encode_savepoint
from phantombase.timeline.format.commit_metadata import encode
from phantombase.timeline.format.compaction_plan import CompactionOperation, CompactionPlan, encode_plan
from phantombase.timeline.format.replace_request import ClusterGroup, ClusterPlan, PlannedSlice, encode_cluster_plan
from phantombase.timeline.format.rollback_plan import RevokedSlice, RollbackPlan, encode_rollback_plan
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path
from phantombase.timeline.metadata_table import read
from phantombase.timeline.metadata_table.read import ListedFiles
from phantombase.timeline.read.pins import HeldPin, PinOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import WRITES, marker_folder
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.facts import HASHING_METADATA
from phantombase.timeline.view.view_loader import folders
from tests.support.archived_tables import archive, clean, compact, data_files, long_table, one_row, overwrite, upsert
from tests.support.builders import AVRO, INSTANT_TIME, SCHEMA, avro_content, avro_schema, block
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import OnObjects
from tests.support.faults import Faults, LockLostAt, make_old
from tests.support.golden_tables import DAMAGES, LOCK, NEWEST_AND_OLDEST, one_of, template, unzip_golden
from tests.support.selection import deep
from tests.support.written_tables import read_rows

DAY_S = 86_400
_ROW = avro_schema(("a", "int"))
_FILE_ID = "00000000-0000-4000-8000-000000000000-0"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A table between two writes of which one was undone, and left files that are four days old. `gone`: its instant;
    `base`, `log`: its files, relative to the table."""

    path: Path
    version: int
    gone: str
    base: str
    log: str

    @property
    def table(self) -> Table:
        """As it is now."""
        return open_table(self.path)

    @property
    def timeline_folder(self) -> Path:
        """Of its active instants."""
        return self.path / self.table.config.timeline_folder

    def put(self, name: str, data: bytes = b"", age_s: float = 4 * DAY_S) -> Path:
        """A file, relative to the table; it is old."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        make_old({file}, age_s)
        return file

    def put_instant(self, name: str, data: bytes = b"") -> None:
        """A file of the timeline."""
        self.put(str((self.timeline_folder / name).relative_to(self.path)), data)

    @property
    def first(self) -> str:
        """The first write."""
        return min(self.table.load_timeline().completed_writes)

    def later(self, more: int = 1) -> str:
        """A time above all others."""
        table = self.table
        return str(int(table.snapshot().next_time()) + more)


def log_of(*instants: str) -> bytes:
    return b"".join(block(AVRO, {INSTANT_TIME: i, SCHEMA: _ROW}, avro_content(_ROW, [{"a": 1}])) for i in instants)


def scene(version: int, tmp_path: Path) -> Scene:
    path = template(
        ("orphans", version), tmp_path / "trips", lambda into: long_table(into, version, 2, compact_at=None)
    )
    gone = str(int(open_table(path).load_timeline().latest_completed) + 1)
    made = Scene(
        path=path, version=version, gone=gone,
        base=f"a/{_FILE_ID}_0-77-777_{gone}.parquet", log=f"a/.{_FILE_ID}_{gone}.log.1_0-77-777",
    )  # fmt: skip
    made.put(made.base, b"base")
    made.put(made.log, log_of(gone))
    upsert(path, one_row("k1", 100))
    return made


def orphans(at: Scene, older_than: str = "3d", *, dry_run: bool = True, storage: Storage | None = None) -> OrphanResult:
    return remove_orphans(open_table(at.path, storage), OrphanOptions(older_than=older_than), LOCK, dry_run=dry_run)


def paths(result: OrphanResult) -> set[str]:
    return {one.path for one in result.orphans}


@pytest.mark.parametrize("version", [6, 8, 9])
def test_files_of_an_undone_write_go_and_no_row_changes(version: int, tmp_path: Path) -> None:
    at = scene(version, tmp_path)
    rows, before = read_rows(at.path), data_files(at.path)
    shown = orphans(at)
    assert paths(shown) == {at.base, at.log}
    assert data_files(at.path) == before
    done = orphans(at, dry_run=False)
    assert (paths(done), done.files, done.bytes) == (paths(shown), 2, 4 + len(log_of(at.gone)))
    assert before - data_files(at.path) == {at.base, at.log}
    assert read_rows(at.path) == rows
    assert orphans(at, dry_run=False).orphans == ()


@one_of("version", 9, 6)
def test_on_an_object_store(version: int, tmp_path: Path) -> None:
    """It has no folders of their own, and answers with names of whole keys."""
    at = scene(version, tmp_path)
    for name in (f"{WRITES}/{at.gone}/0-abc.log", f"{marker_folder(at.gone)}/a/x.parquet.marker.CREATE"):
        at.put(name)
    storage = OnObjects(LocalStorage(str(at.path)), lambda call: call.do())
    assert {at.base, at.log, f"{WRITES}/{at.gone}", marker_folder(at.gone)} == paths(orphans(at, storage=storage))
    assert orphans(at, dry_run=False, storage=storage).files == 4
    assert orphans(at).orphans == ()


def test_a_table_without_partitions(tmp_path: Path) -> None:
    path = unzip_golden("v9_bucket_nonpart", tmp_path)
    first, *_ = sorted(open_table(path).load_timeline().completed_writes)
    gone = str(int(first) + 1)
    at = Scene(path=path, version=9, gone=gone, base=f"x-0_0-7-7_{gone}.parquet", log="")
    at.put(at.base)
    assert paths(orphans(at, dry_run=False)) == {at.base}


# What names a file: each alone keeps it.


def _plan(at: Scene, action: str, data: bytes) -> None:
    at.put_instant(f"{at.later()}.{action}.requested", data)


def _operation(at: Scene) -> bytes:
    base, log = at.base.rpartition("/")[2], at.log.rpartition("/")[2]
    operation = CompactionOperation(
        base_instant_time=at.gone, delta_file_paths=(log,), data_file_path=base, file_id=_FILE_ID, partition_path="a"
    )
    return encode_plan(CompactionPlan(operations=(operation,)))


def _clean(at: Scene) -> bytes:
    names = tuple(path.rpartition("/")[2] for path in (at.base, at.log))
    return encode_clean_plan(CleanPlan(policy="KEEP_LATEST_COMMITS", files={"a": names}), str(at.path))


def _clustering(at: Scene) -> None:
    group = ClusterGroup(
        partition="a", file_id="x", slices=(PlannedSlice(file_id=_FILE_ID, base=at.base.rpartition("/")[2]),)
    )
    data = encode_cluster_plan(ClusterPlan(groups=(group,)), str(at.path))
    _plan(at, "replacecommit" if at.version == 6 else "clustering", data)


def _rollback(at: Scene, target: str, doomed: tuple[tuple[str, str], ...] = ()) -> None:
    _plan(
        at,
        "rollback",
        encode_rollback_plan(RollbackPlan(target=target, action="deltacommit", doomed=doomed), str(at.path)),
    )


def _revoking(at: Scene) -> None:
    logs = {at.log.rpartition("/")[2]: 1}
    revoked = RevokedSlice(partition="a", file_id=_FILE_ID, base_instant=at.gone, logs=logs)
    plan = RollbackPlan(target=str(int(at.gone) + 1), action="deltacommit", revoked=(revoked,))
    _plan(at, "rollback", encode_rollback_plan(plan, str(at.path)))


def _savepoint(at: Scene) -> None:
    names = tuple(path.rpartition("/")[2] for path in (at.base, at.log))
    time_ = at.table.load_timeline().latest_completed
    name = f"{time_}.savepoint" if at.version == 6 else f"{time_}_{int(time_) + 1}.savepoint"
    at.put_instant(name, encode_savepoint(Savepoint(user="", comment="", made_ms=0, files={"a": names})))


def _completed_write(at: Scene) -> None:
    """A write that names the files of another instant, as delta commits of version 6 do."""
    table = at.table
    timeline = table.load_timeline()
    newest = timeline.completed_writes[timeline.latest_completed]
    file = at.path / table.instant_path(newest)
    metadata = table.commit_metadata(newest)
    (partition,) = metadata.partition_to_write_stats
    stats = metadata.partition_to_write_stats[partition]
    more = [replace(stats[0], path=path, file_id=_FILE_ID) for path in (at.base, at.log)]
    changed = replace(metadata, partition_to_write_stats={partition: (*stats, *more)})
    file.write_bytes(encode(changed, table.layout.encoding))


def _built_upon(at: Scene) -> None:
    """Its timeline files were lost, all of them."""
    table = at.table
    timeline = table.load_timeline()
    newest = timeline.completed_writes[timeline.latest_completed]
    metadata = table.commit_metadata(newest)
    ((partition, (stat, *_)),) = metadata.partition_to_write_stats.items()
    changed = replace(metadata, partition_to_write_stats={partition: (replace(stat, prev_commit=at.gone),)})
    (at.path / table.instant_path(newest)).write_bytes(encode(changed, table.layout.encoding))


def _heartbeat(at: Scene, process: Process | None) -> None:
    data = b"" if process is None else b"phantombase\n" + json.dumps(asdict(process)).encode()
    at.put(heartbeat_path(at.gone), data, age_s=30)


def _pin(at: Scene) -> None:
    HeldPin(at.table.storage, PinOptions(name="reader", for_s=3600), at.gone)


def _attempt(at: Scene, outcome: bytes | None) -> None:
    at.put(f".hoodie/.phantombase/{at.gone}/1/open", b"{}")
    if outcome is not None:
        at.put(f".hoodie/.phantombase/{at.gone}/1/outcome", outcome)


def _decision(at: Scene) -> bytes:
    return CommitDecision(
        instant=at.gone, attempt=1, nonce="n", table_version=at.version, completion_time=None, completed_path="c",
        content=b"",
    ).to_json()  # fmt: skip


def _revoked(at: Scene) -> None:
    _attempt(at, _decision(at))
    at.put(f".hoodie/.phantombase/{at.gone}/1/revoked", b"{}")


def _marker(at: Scene, instant: str, path: str, age_s: float = 4 * DAY_S) -> None:
    at.put(f"{marker_folder(instant)}/{path}.marker.CREATE", age_s=age_s)


def _pending_marker(at: Scene, *, listed: bool) -> None:
    time_ = at.later()
    at.put_instant(f"{time_}.deltacommit.requested")
    at.put_instant(f"{time_}.deltacommit.inflight")
    if listed:
        at.put(f"{marker_folder(time_)}/MARKERS.type", b"TIMELINE_SERVER_BASED")
        text = "".join(f"{path}.marker.APPEND\n" for path in (at.base, at.log))
        at.put(f"{marker_folder(time_)}/MARKERS3", text.encode())
    else:
        _marker(at, time_, at.base)
        _marker(at, time_, at.log)


SOURCES: dict[str, Callable[[Scene], object]] = {
    "pending write": lambda at: at.put_instant(f"{at.gone}.deltacommit.inflight"),
    "requested write": lambda at: at.put_instant(f"{at.gone}.deltacommit.requested"),
    "action of a later release": lambda at: at.put_instant(f"{at.gone}.reshaping.inflight"),
    "compaction plan": lambda at: _plan(at, "compaction", _operation(at)),
    "log compaction plan": lambda at: _plan(at, "logcompaction", _operation(at)),
    "clean plan": lambda at: _plan(at, "clean", _clean(at)),
    "clustering plan": _clustering,
    "rollback of it": lambda at: _rollback(at, at.gone),
    "rollback that names it": lambda at: _rollback(
        at, str(int(at.gone) + 1), (("a", at.base.rpartition("/")[2]),)
    ),
    "rollback that revokes blocks of it": _revoking,
    "savepoint": _savepoint,
    "completed write": _completed_write,
    "write that was built upon it": _built_upon,
    "heartbeat of Hudi": lambda at: _heartbeat(at, None),
    "heartbeat of a process here": lambda at: _heartbeat(at, Process.current()),
    "heartbeat of a process elsewhere": lambda at: _heartbeat(at, replace(Process.current(), host="other")),
    "pin": _pin,
    "open attempt": lambda at: _attempt(at, None),
    "decided attempt": lambda at: _attempt(at, _decision(at)),
    "unreadable attempt": lambda at: _attempt(at, b"{"),
    "marker of a pending write": lambda at: _pending_marker(at, listed=False),
    "marker list of a pending write": lambda at: _pending_marker(at, listed=True),
    "young marker": lambda at: _marker(at, at.gone, at.base, 60),
    "young marker of another file of it": lambda at: _marker(at, at.gone, f"a/y-0_0-7-7_{at.gone}.parquet", 60),
    "young marker of another": lambda at: _marker(at, str(int(at.gone) + 1), at.base, 60),
    "age": lambda at: make_old({at.path / at.base, at.path / at.log}, 2 * DAY_S),
    "age of its log": lambda at: make_old({at.path / at.log}, 2 * DAY_S),
    "clock set back": lambda at: make_old({at.path / at.base, at.path / at.log}, -DAY_S),
}  # fmt: skip


def each_once(names: Collection[str]) -> pytest.MarkDecorator:
    """With both versions; a usual run takes them by turns: that both have each source does not depend on it."""
    usual = [(name, (6, 9)[number % 2]) for number, name in enumerate(names)]
    more = [deep(name, 15 - version) for name, version in usual]
    return pytest.mark.parametrize(("source", "version"), [*usual, *more])


@each_once(SOURCES)
def test_each_that_names_a_file_keeps_it(source: str, version: int, tmp_path: Path) -> None:
    """A plan of a compaction names base and log; where only the base is named, its log in the same slice stays too."""
    at = scene(version, tmp_path)
    SOURCES[source](at)
    before = data_files(at.path)
    for dry_run in (True, False):
        assert not paths(orphans(at, dry_run=dry_run)) & {at.base, at.log}
    assert data_files(at.path) == before


def _completed(at: Scene, action: str, data: bytes) -> None:
    time_ = at.later()
    at.put_instant(f"{time_}.{action}.requested", data)
    at.put_instant(f"{time_}.{action}.inflight")
    at.put_instant(f"{time_}.{action}" if at.version == 6 else f"{time_}_{int(time_) + 1}.{action}", data)


def _newest_pin(at: Scene) -> None:
    table = at.table
    timeline = table.load_timeline()
    newest = timeline.moment_of(timeline.completed_writes[timeline.latest_completed])
    HeldPin(table.storage, PinOptions(name="stream", for_s=3600), newest)


def _expired_pin(at: Scene) -> None:
    _pin(at)
    make_old(set((at.path / ".hoodie/.phantombase/pins/reader").iterdir()), 3601)


NO_SOURCES: dict[str, Callable[[Scene], object]] = {
    "heartbeat of a process that has ended": lambda at: _heartbeat(at, replace(Process.current(), started=1)),
    "old heartbeat": lambda at: make_old({at.put(heartbeat_path(at.gone))}, 4 * DAY_S),
    "pin of a later state": _newest_pin,
    "expired pin": _expired_pin,
    "dead attempt": lambda at: _attempt(at, b'{"outcome": "dead", "nonce": "n", "by": "x"}'),
    "revoked decision": _revoked,
    "tombstone": lambda at: at.put(f".hoodie/.phantombase/{at.gone}/reserved-0-{at.gone}"),
    "old markers": lambda at: _marker(at, at.gone, at.base),
    "completed clean": lambda at: _completed(at, "clean", _clean(at)),
    "completed rollback": lambda at: _completed(at, "rollback", _clean(at)),
}


@each_once(NO_SOURCES)
def test_what_does_not_need_a_file_does_not_keep_it(source: str, version: int, tmp_path: Path) -> None:
    """Streams put their pins again and again, each for a later state."""
    at = scene(version, tmp_path)
    NO_SOURCES[source](at)
    assert {at.base, at.log} <= paths(orphans(at, dry_run=False))
    assert not data_files(at.path) & {at.base, at.log}


def _without_a_plan(at: Scene) -> None:
    name = f"{at.later()}.clean.inflight"
    at.put_instant(name, _clean(at) if at.version == 6 else b"")


UNKNOWN: dict[str, tuple[Callable[[Scene], object], type[PhantombaseError]]] = {
    "torn compaction plan": (lambda at: _plan(at, "compaction", b""), MalformedError),
    "half a clean plan": (lambda at: _plan(at, "clean", _clean(at)[:100]), MalformedError),
    "clean without a plan": (_without_a_plan, MissingFileError),
    "torn rollback plan": (lambda at: _plan(at, "rollback", b""), ConflictError),
    "restore": (lambda at: _plan(at, "restore", b"x"), ConflictError),
    "pin": (lambda at: at.put(".hoodie/.phantombase/pins/a/1.json", b"{"), MalformedError),
    "marker": (lambda at: at.put(f"{marker_folder(at.later())}/x", age_s=1), MalformedError),
    "savepoint": (
        lambda at: at.put_instant(f"{at.first}.savepoint" if at.version == 6 else f"{at.first}_{at.gone}.savepoint"),
        MalformedError,
    ),
}


@one_of("version", 9, 6)
@pytest.mark.parametrize("record", UNKNOWN)
def test_what_cannot_be_read_is_an_error(record: str, version: int, tmp_path: Path) -> None:
    at = scene(version, tmp_path)
    do, error = UNKNOWN[record]
    do(at)
    before = data_files(at.path)
    for dry_run in (True, False):
        with pytest.raises(error) as caught:
            orphans(at, dry_run=dry_run)
        assert caught.value.todo
    assert data_files(at.path) == before


PLANS = ("compaction plan", "log compaction plan", "clean plan", "clustering plan", "rollback of it", "savepoint")


@one_of("version", 9, 6)
@pytest.mark.parametrize("source", [*PLANS, "completed write"])
def test_a_damaged_file_of_the_timeline_removes_nothing(source: str, version: int, tmp_path: Path) -> None:
    """An empty completed write is one of an old Flink job: its files are known by their names."""
    at = scene(version, tmp_path)
    before = {p: p.read_bytes() for p in at.timeline_folder.iterdir() if p.is_file()}
    SOURCES[source](at)
    (file,) = (p for p in at.timeline_folder.iterdir() if p.is_file() and before.get(p) != p.read_bytes())
    data = file.read_bytes()
    deep = b"[" * 100_000
    damages: dict[str, Callable[[bytes], bytes | None]] = {
        **DAMAGES,
        "deep": lambda _: deep,
        "no UTF-8": lambda _: b"{\xff}",
    }
    for name, damage in damages.items():
        damaged = damage(data)
        if damaged is None or (name == "empty" and source == "completed write"):
            continue
        file.write_bytes(damaged)
        try:
            found = paths(orphans(at, dry_run=False))
        except PhantombaseError:
            found = set()
        assert not found & {at.base, at.log}, name
    assert {at.base, at.log} <= data_files(at.path)


@one_of("version", 6, 9)
def test_a_damaged_archive_is_an_error(version: int, tmp_path: Path) -> None:
    at = archived_scene(version, tmp_path)
    folder = at.path / at.table.config.history_folder
    for file in folder.glob("*.parquet" if version == 9 else ".commits*"):
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(UnknownStateError):
        orphans(at)


def archived_scene(version: int, tmp_path: Path) -> Scene:
    """A table of which some instants are archived, and files of an undone write after them."""
    path = tmp_path / "trips"
    long_table(path, version, 8)
    assert archive(path).archived
    gone = str(int(open_table(path).load_timeline().latest_completed) + 1)
    at = Scene(path=path, version=version, gone=gone, base=f"a/{_FILE_ID}_0-77-777_{gone}.parquet", log="")
    at.put(at.base, b"base")
    upsert(path, one_row("k1", 100))
    assert paths(orphans(at)) == {at.base}
    return at


@pytest.mark.parametrize("version", [6, 9])
def test_files_of_instants_that_may_be_archived_stay(version: int, tmp_path: Path) -> None:
    """Readers count them; whoever removed the archive's files, they still do."""
    at = archived_scene(version, tmp_path)
    start = at.table.load_timeline().start
    older = at.put(f"a/{_FILE_ID}_0-77-777_{int(start) - 1}.parquet")
    files = data_files(at.path)
    orphans(at, dry_run=False)
    assert files - data_files(at.path) == {at.base}
    for file in (at.path / at.table.config.history_folder).glob("*"):
        file.unlink()
    make_old({at.path / file for file in data_files(at.path)}, 10 * DAY_S)
    assert paths(orphans(at)) == set()
    assert older.exists()


@one_of("version", 9, 6)
def test_where_no_write_is_active_nothing_is_gone(version: int, tmp_path: Path) -> None:
    """Archived ones may be lost, and nothing shows which."""
    at = scene(version, tmp_path)
    for file in at.timeline_folder.glob("2*.deltacommit*"):
        file.unlink()
    plan = encode_clean_plan(CleanPlan(policy="KEEP_LATEST_COMMITS", files={}), str(at.path))
    at.put_instant(f"{at.later()}.clean.requested", plan)
    assert paths(orphans(at)) == set()
    at.put_instant(f"{int(at.gone) - 1}.deltacommit.inflight")
    assert paths(orphans(at)) == set()
    at.put_instant(f"{at.later()}.deltacommit.inflight")  # the files are no longer those of the newest instant
    assert paths(orphans(at)) == set()


@one_of("version", 9, 6)
def test_a_pending_write_of_a_slow_clock_makes_no_archived_instant_gone(version: int, tmp_path: Path) -> None:
    """It is the first active one, and earlier than what is archived; also if the archive is lost."""
    at = archived_scene(version, tmp_path)
    early = min(i.requested_time for i in at.table.with_archive(at.table.load_timeline()).archived if i.is_write)
    at.put_instant(f"{int(early) - 5}.deltacommit.inflight")
    assert paths(orphans(at)) == {at.base}
    for file in (at.path / at.table.config.history_folder).glob("*"):
        file.unlink()
    make_old({at.path / file for file in data_files(at.path)}, 10 * DAY_S)
    assert paths(orphans(at)) == {at.base}


def test_a_table_in_a_folder_of_the_table_is_left_alone(tmp_path: Path) -> None:
    at = scene(9, tmp_path)
    inner = f"b/c/d/{at.base.rpartition('/')[2]}"
    at.put(inner)
    at.put("b/c/.hoodie/hoodie.properties")
    at.put("b/c/.hoodie/timeline/x")
    found = orphans(at)
    assert paths(found) == {at.base, at.log}
    assert found.foreign == ("b/c",)


@pytest.mark.parametrize(
    "name", ["daily_report_{}.parquet", "x_1-2-3_{}.csv", "x_1-2-3_1{}.parquet", ".x_{}.log", "x_1-2_{}.parquet"]
)
def test_a_name_that_only_looks_like_one_of_a_data_file_is_foreign(name: str, tmp_path: Path) -> None:
    at = scene(9, tmp_path)
    at.put(other := f"a/{name.format(at.gone)}")
    found = orphans(at, dry_run=False)
    assert found.foreign == (other,)
    assert (at.path / other).exists()


@one_of("version", 9, 6)
def test_an_instant_later_than_all_others_may_be_one_that_just_began(version: int, tmp_path: Path) -> None:
    at = scene(version, tmp_path)
    time_ = at.later()
    at.put(newer := f"a/{_FILE_ID}_0-77-777_{time_}.parquet")
    found = orphans(at)
    assert newer not in paths(found)
    assert next(kept.why for kept in found.kept if kept.path == newer).endswith("a writer may have just begun")


def test_behind_savepoints_hudi_counts_what_phantombase_does_not(tmp_path: Path) -> None:
    """Archiving may pass a savepoint: for Hudi the timeline then begins at the first write without one."""
    at = scene(9, tmp_path)
    at.put(behind := f"a/{_FILE_ID}_0-77-777_{int(at.first) + 1}.parquet")
    assert paths(orphans(at)) == {at.base, at.log, behind}
    at.put_instant(
        f"{at.first}_{at.gone}.savepoint", encode_savepoint(Savepoint(user="", comment="", made_ms=0, files={}))
    )
    assert paths(orphans(at)) == {at.base, at.log}


@one_of("version", 9, 6)
def test_what_the_metadata_table_lists_stays(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unzip_golden(f"v{version}_with_metadata_table", tmp_path)
    table = open_table(path)
    first, *_, newest = sorted(table.load_timeline().completed_writes)
    gone = str(int(first) + 1)
    at = Scene(path=path, version=version, gone=gone, base=f"{table.partitions()[0]}/x-0_0-7-7_{gone}.parquet", log="")
    assert gone < newest
    at.put(at.base)
    assert paths(orphans(at)) == {at.base}
    partition, _, name = at.base.rpartition("/")
    listed = ListedFiles(partitions={}, unnamed={partition: {name: 1}})
    monkeypatch.setattr(read, "read_files", lambda table: listed)
    assert paths(orphans(at)) == set()


def test_a_file_of_an_undone_write_in_a_replaced_file_group_goes(tmp_path: Path) -> None:
    """No clean takes it, and it stops archiving before the replace commit."""
    at = scene(9, tmp_path)
    overwrite(at.path, one_row("k0", 500))
    for number in range(6):
        upsert(at.path, one_row("k0", 600 + number))
    rows = read_rows(at.path)
    table = at.table
    replaced = next(file_id for _, file_id in table.facts.replaced_groups(table.load_timeline()))
    at.put(left := f"a/{replaced}_0-7-7_{at.gone}.parquet")
    clean(at.path)
    assert left in paths(orphans(at, dry_run=False))
    assert "replaced are still there" not in archive(at.path).why
    assert read_rows(at.path) == rows


# Log files: on version 6 several writes share one.


def _after(at: Scene) -> str:
    return at.table.load_timeline().latest_completed


LOGS: dict[str, tuple[Callable[[Scene], bytes], bool]] = {
    "its own": (lambda at: log_of(at.gone, at.gone), True),
    "an undone one": (lambda at: log_of(at.gone, str(int(at.gone) + 1)), True),
    "none": (lambda at: b"", True),
    "a completed one": (lambda at: log_of(at.gone, _after(at)), False),
    "a torn one": (lambda at: log_of(at.gone) + log_of(_after(at))[:30], False),
    "a later one": (lambda at: log_of(at.gone, at.later()), False),
}


@pytest.mark.parametrize("blocks", LOGS)
@pytest.mark.parametrize("version", [6, 9])
def test_a_log_file_stays_if_a_block_of_it_may_count(version: int, blocks: str, tmp_path: Path) -> None:
    """Its base file stays too. From version 8 on the name of a log file is of the only write in it."""
    at = scene(version, tmp_path)
    make, is_orphan = LOGS[blocks]
    at.put(at.log, make(at))
    assert paths(orphans(at)) == ({at.base, at.log} if is_orphan or version == 9 else set())


def test_a_log_file_of_an_upgraded_table_is_one_of_version_6(tmp_path: Path) -> None:
    at = scene(9, tmp_path)
    at.put(at.log, log_of(at.gone, _after(at)))
    properties = at.path / ".hoodie/hoodie.properties"
    lines = properties.read_text().splitlines(keepends=True)
    properties.write_text("".join(line for line in lines if "initial.version" not in line))
    assert paths(orphans(at)) == set()


def test_a_log_file_of_an_undone_resize_has_rows_of_other_writes(tmp_path: Path) -> None:
    """While buckets are resized, Hudi's writers write into the new ones too, whose log files have the resize's name."""
    at = scene(9, tmp_path)
    at.put(at.log, log_of(_after(at)))
    at.put(f"{HASHING_METADATA}/a/00000000000000.hashing_meta", b"{}")
    assert paths(orphans(at)) == set()
    at.put(at.log, log_of(at.gone))
    assert paths(orphans(at)) == {at.base, at.log}


def test_on_version_6_log_files_stay_while_a_write_is_pending(tmp_path: Path) -> None:
    """It may append to one of them."""
    at = scene(6, tmp_path)
    at.put_instant(f"{at.later()}.deltacommit.inflight")
    assert paths(orphans(at)) == set()
    at.put(at.log).unlink()
    assert paths(orphans(at)) == {at.base}


def test_a_pending_compaction_of_version_6_appends_to_no_log_file(tmp_path: Path) -> None:
    """One is pending nearly always where compactions are asynchronous."""
    at = scene(6, tmp_path)
    _plan(at, "compaction", encode_plan(CompactionPlan(operations=())))
    assert paths(orphans(at)) == {at.base, at.log}


# Other kinds of files, and those of others.


@one_of("version", 9, 6)
def test_what_writers_left_besides_data_files(version: int, tmp_path: Path) -> None:
    at = scene(version, tmp_path)
    rows, done = read_rows(at.path), _after(at)
    pending = at.later()
    at.put_instant(f"{pending}.deltacommit.inflight")
    left = [f"{WRITES}/{at.gone}/0-abc.log", f"{marker_folder(at.gone)}/a/x.parquet.marker.CREATE"]
    kept = [f"{WRITES}/{pending}/0-abc.log", f"{marker_folder(pending)}/a/{_FILE_ID}_0-1-1_1.parquet.marker.CREATE"]
    left += [f"{WRITES}/{done}/0-abc.log", heartbeat_path(at.gone), heartbeat_path(done)]
    kept += [heartbeat_path(pending), f".hoodie/.phantombase/tmp/{'x' * 32}", ".hoodie/.temp/other/a"]
    left += [f".hoodie/.phantombase/tmp/{'0' * 32}.log", f".hoodie/.phantombase/tmp/clock-{'a' * 32}"]
    kept += ["a/part-00000.parquet", "a/notes.txt", "a/.x.parquet.crc", "notes.txt"]
    for name in (*left, *kept):
        at.put(name)
    young = at.put(f"{marker_folder(at.first)}/a/x.parquet.marker.CREATE", age_s=60)
    found = orphans(at, dry_run=False)
    why = {one.path: one.why for one in found.orphans}
    # On version 6 the pending write may append to the log file of the same file slice.
    assert why.get(at.base) == {9: f"instant {at.gone} is gone", 6: None}[version]
    assert why[heartbeat_path(done)] == f"instant {done} has ended"
    assert not [name for name in left if (at.path / name).exists()]
    assert [name for name in kept if not (at.path / name).exists()] == []
    assert young.exists()
    assert set(found.foreign) == {"a/part-00000.parquet", "a/notes.txt", "notes.txt", ".hoodie/.temp/other"}
    assert read_rows(at.path) == rows


def test_a_data_file_outside_of_partitions_is_found(tmp_path: Path) -> None:
    """A writer that died before it made the partition metadata file."""
    at = scene(9, tmp_path)
    at.put(lone := f"b/c/{_FILE_ID}_0-77-777_{at.gone}.parquet")
    assert lone in paths(orphans(at))


@pytest.mark.parametrize("name", NEWEST_AND_OLDEST)
def test_tables_of_hudi_have_none(name: str, tmp_path: Path) -> None:
    """Pending, rolled back, archived, replaced, savepointed, upgraded: all files are named, however old they are."""
    path = unzip_golden(name, tmp_path)
    before = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    make_old({p for p in path.rglob("*") if p.is_file()}, 30 * DAY_S)
    found = remove_orphans(open_table(path), OrphanOptions(), LOCK)
    assert {one.kind for one in found.orphans} <= {"heartbeat", "markers"}
    after = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert {file for file in before - after if ".hoodie" not in file} == set()
    assert found.foreign == ()


# Processes that die, and others that are at work meanwhile.


@one_of("version", 9, 6)
def test_a_run_that_dies_is_finished_by_the_next(version: int, tmp_path: Path) -> None:
    at = scene(version, tmp_path)
    at.put(f"{WRITES}/{at.gone}/0-abc.log")
    rows, kept = read_rows(at.path), data_files(at.path) - {at.base, at.log}

    def work(storage: Storage) -> OrphanResult:
        return remove_orphans(Table.on(storage), OrphanOptions(), LOCK)

    died = 0
    for _, path in Faults.of(at.path, work).deaths():
        assert read_rows(path) == rows
        remove_orphans(open_table(path), OrphanOptions(), LOCK)
        assert data_files(path) == kept
        died += 1
    assert died > 3
    for _, _, path, error in Faults.of(at.path, work).errors():
        assert read_rows(path) == rows
        if error:
            remove_orphans(open_table(path), OrphanOptions(), LOCK)
        assert data_files(path) == kept


MEANWHILE = ["pending write", "clean plan", "savepoint", "heartbeat of Hudi", "young marker", "pin", "age"]


@pytest.mark.parametrize("source", MEANWHILE)
def test_what_names_a_file_between_listing_and_removal_keeps_it(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = scene(9, tmp_path)

    class Lock:
        def hold(self, purpose: str) -> Any:
            SOURCES[source](at)
            return LOCK.hold(purpose)

    done = remove_orphans(at.table, OrphanOptions(), Lock())
    assert paths(done) == set()
    assert {at.base, at.log} <= {kept.path for kept in done.kept}
    assert sum(done.reasons.values()) == len(done.kept)
    assert {at.base, at.log} <= data_files(at.path)


def test_a_snapshot_has_its_timeline_before_its_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or `status`, which reads the files of completed writes from the same listings, would call new ones lost."""
    seen, late = open_table(unzip_golden("v9_plain", tmp_path)).snapshot(), "20300101000000000"
    listed = folders

    def meanwhile(*asked: Any) -> Any:
        found = list(listed(*asked))
        done = f"{seen.config.timeline_folder}/{late}_20300101000000001.deltacommit"
        assert LocalStorage(seen.storage.base_path).put_if_absent(done, b"")
        return found

    monkeypatch.setattr(orphan_facts, "folders", meanwhile)
    orphan_facts.list_items(seen)
    assert late not in seen.timeline.completed_writes


def test_without_the_lock_nothing_is_removed(tmp_path: Path) -> None:
    at = scene(9, tmp_path)
    at.put(f"{WRITES}/{at.gone}/0-abc.log")
    before = data_files(at.path)
    with pytest.raises(LockError):
        remove_orphans(at.table, OrphanOptions(), LockLostAt(0))
    assert data_files(at.path) == before
    with pytest.raises(LockError):  # lost behind the data files
        remove_orphans(at.table, OrphanOptions(), LockLostAt(1))
    assert (at.path / WRITES / at.gone).exists()
    assert len(orphans(at, dry_run=False).orphans) > 0
    assert orphans(at).orphans == ()


def test_batches_hold_the_lock_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = scene(9, tmp_path)
    more = [f"a/{_FILE_ID.replace('0', str(n))}_0-7-7_{at.gone}.parquet" for n in range(1, 5)]
    for name in more:
        at.put(name)
    monkeypatch.setattr(remove, "_AT_ONCE", 2)
    held = []

    class Lock:
        def hold(self, purpose: str) -> Any:
            held.append(purpose)
            return LOCK.hold(purpose)

    done = remove_orphans(at.table, OrphanOptions(), Lock())
    assert (paths(done), len(held)) == ({at.base, at.log, *more}, 3)


# Archiving, which stopped before the files of a dead writer for ever.


@one_of("version", 9, 6)
def test_archiving_goes_on_behind_them(version: int, tmp_path: Path) -> None:
    at = scene(version, tmp_path)
    for number in range(6):
        upsert(at.path, one_row("k0", 200 + number))
        compact(at.path)
    rows = read_rows(at.path)
    stopped = archive(at.path)
    assert f"instant {at.gone} is gone" in stopped.why
    assert "compactor-daemon orphans" in stopped.why
    assert paths(orphans(at, dry_run=False)) == {at.base, at.log}
    went_on = archive(at.path)
    assert len(went_on.archived) > 2
    assert read_rows(at.path) == rows


@pytest.mark.parametrize("name", ["daily_report_{}.parquet", "a_b_{}0.parquet"])
def test_a_file_of_a_user_that_stops_archiving_is_not_said_to_be_an_orphan(name: str, tmp_path: Path) -> None:
    """Readers would count it, so archiving stops; no service removes it."""
    at = scene(9, tmp_path)
    for file in (at.base, at.log):
        (at.path / file).unlink()
    at.put(report := f"a/{name.format(at.gone)}")
    (cutoff,) = gone_but_there(at.table.snapshot())
    assert cutoff.why.endswith(f"is gone and has files, as {report}: move it away, if it is no data file")
    assert orphans(at).foreign == (report,)


@pytest.mark.parametrize("version", [6, 9])
def test_an_open_attempt_at_a_plan_that_is_gone_is_closed_by_the_next_run(version: int, tmp_path: Path) -> None:
    """Its process died before it staged a file, and Hudi restored the table: nothing else shows the attempt."""
    at = scene(version, tmp_path)
    _attempt(at, None)
    assert paths(orphans(at)) == set()
    finish_completed(at.table, LOCK)
    assert paths(orphans(at)) == {at.base, at.log}


# The command.


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["orphans", *arguments])


def test_the_command_shows_them_and_removes_them_with_remove(tmp_path: Path) -> None:
    at = scene(9, tmp_path)
    at.put("a/notes.txt")
    before = data_files(at.path)
    shown = run(str(at.path))
    assert (shown.exit_code, data_files(at.path)) == (0, before), shown.output
    text = " ".join(shown.stdout.split())
    assert "2 files" in text
    assert "--remove removes them" in text
    assert "1 file with names of neither Hudi nor phantombase" in text
    refused = run(str(at.path), "--remove")
    assert isinstance(refused.exception, UsageError)
    assert json.loads(run(str(at.path), "--remove", "--dry-run", "--json").stdout)["files"] == 2
    assert data_files(at.path) == before
    done = json.loads(run(str(at.path), "--remove", "--sole-writer", "--older-than", "84h", "--json").stdout)
    assert (done["files"], {one["path"] for one in done["orphans"]}) == (2, {at.base, at.log})
    assert before - data_files(at.path) == {at.base, at.log}
    assert "no orphan files" in run(str(at.path)).stdout


@pytest.mark.parametrize("text", ["", "0d", "3", "59m", "-3d", "1w"])
def test_an_age_that_is_none_or_too_short(text: str) -> None:
    with pytest.raises(UsageError):
        OrphanOptions(older_than=text)
