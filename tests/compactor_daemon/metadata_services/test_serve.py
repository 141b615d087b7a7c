"""The metadata table's compaction: entries stay the same, and a process that died is followed by one that finishes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from phantombase import writer
from phantombase.compactor_daemon.metadata_services.due import MetadataDue, MetadataOptions, clean_waits, due
from phantombase.compactor_daemon.metadata_services.serve import serve_metadata
from phantombase.timeline.dashboard.overview import commits_to_compact
from phantombase.timeline.errors import ConflictError, LockError, MissingFileError, PhantombaseError, UsageError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import Layout
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.table_lock import ProcessLock
from phantombase.timeline.metadata_table.create import drop_metadata_table
from phantombase.timeline.metadata_table.valid_instants import blocked_by
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import open_metadata_table
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, Failure, Hook, HookedStorage, ProcessDied, die_at, fail_at
from tests.support.faults import LockLostBehind
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.metadata_tables import AT_ONCE, entries, files_of, rows, serve
from tests.support.metadata_tables import path as path
from tests.support.selection import ALL

STEP = 1 if ALL else 4


def test_entries_stay_the_same(path: Path) -> None:
    table = open_table(path)
    before = entries(table)
    (done,) = serve(table).compactions
    table = open_table(path)
    assert entries(table) == before
    view = open_metadata_table(table).load_view(exactly=set(before))
    assert {s.base_instant for g in view.groups for s in g.slices[-1:]} == {done.instant}
    assert not [log for g in view.groups for log in g.slices[-1].logs]
    assert done.files == len(view.groups)
    assert serve(table).compactions == ()
    for ts in (1, 2):  # again, above a base file of its own
        writer(rows(range(6), 10**6 + ts)).upsert(str(path))
        before = entries(open_table(path))
        assert len(serve(open_table(path)).compactions) == 1
        assert entries(open_table(path)) == before
        assert validate(open_table(path)).differences == ()


def test_writes_compact_it_in_passing(tmp_path: Path) -> None:
    """Never do more delta commits wait than the option says; by option none is merged."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    serve(open_table(path))
    waiting = []
    for ts in range(1, 8):
        write = writer(rows(range(6), 10**6 + ts))
        options = MetadataOptions(max_delta_commits=3) if ts < 5 else None
        write.option(metadata=options).upsert(str(path))
        waiting.append(commits_to_compact(open_table(path)))
    assert waiting == [1, 2, 0, 1, 2, 3, 4]
    assert validate(open_table(path)).differences == ()


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_dry_run_changes_nothing(path: Path) -> None:
    before = files_of(path)
    (planned,) = serve(open_table(path), dry_run=True).compactions
    assert files_of(path) == before
    (done,) = serve(open_table(path)).compactions
    assert (planned.files, planned.log_files, planned.log_bytes) == (done.files, done.log_files, done.log_bytes)


def test_not_before_it_is_due(path: Path) -> None:
    found = serve(open_table(path), MetadataOptions(max_delta_commits=100))
    assert found.compactions == ()
    assert "of 100 delta commits" in found.why


def test_a_table_without_it(path: Path) -> None:
    drop_metadata_table(open_table(path), ProcessLock("x"))
    assert serve(open_table(path)).why == "the table has no metadata table"


def test_a_pending_compaction_of_the_table_is_waited_for_on_version_6(tmp_path: Path) -> None:
    found = serve(open_table(unzip_golden("v6_with_metadata_table", tmp_path)))
    assert found.compactions == ()
    assert "is pending on the table" in found.why


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_death_at_a_storage_call(path: Path, tmp_path: Path) -> None:
    """The next run finishes it, also with a write in between; readers see the same all the time."""
    before = entries(open_table(path))
    calls = HookedStorage(LocalStorage(str(shutil.copytree(path, tmp_path / "whole"))), lambda call: call.do())
    serve(open_table(tmp_path / "whole", calls))
    changing = [n for n, name in enumerate(calls.calls) if Failure.AFTER.can_hit(name)]
    assert len(changing) > 4
    for number in changing[::STEP] + changing[-1:]:
        copied = shutil.copytree(path, tmp_path / "died", dirs_exist_ok=False)
        with pytest.raises(ProcessDied):
            serve(open_table(copied, HookedStorage(LocalStorage(str(copied)), die_at(number))))
        assert entries(open_table(copied)) == before, calls.calls[number]
        between = shutil.copytree(copied, tmp_path / "between")
        serve(open_table(copied))  # nothing, where only the heartbeat was left
        check_finished(copied, before)
        writer(rows(range(6), 10**6)).upsert(str(between))
        after = entries(open_table(between))
        assert serve(open_table(between)).compactions
        check_finished(between, after)
        shutil.rmtree(copied)
        shutil.rmtree(between)


def check_finished(path: Path, expected: dict[str, list[str]]) -> None:
    """One base file of each file group and instant, nothing pending, the same entries, and the listing is right."""
    table = open_table(path)
    assert entries(table) == expected
    assert validate(table).differences == ()
    metadata = open_metadata_table(table)
    instants = metadata.load_timeline().instants
    assert not [i for i in instants if not i.completed]
    assert [i for i in instants if i.action == "commit"]
    made = [f.name.split("_") for f in Path(metadata.storage.base_path).rglob("*.hfile")]
    assert len({(name[0], name[2]) for name in made}) == len(made)


def test_a_storage_call_that_fails(path: Path, tmp_path: Path) -> None:
    before = entries(open_table(path))
    calls = HookedStorage(LocalStorage(str(shutil.copytree(path, tmp_path / "whole"))), lambda call: call.do())
    serve(open_table(tmp_path / "whole", calls))
    cases = [(n, f) for n, name in enumerate(calls.calls) for f in Failure if f.can_hit(name)]
    for number, failure in cases[:: STEP * 8]:
        copied = shutil.copytree(path, tmp_path / "failed")
        inner = LocalStorage(str(copied))
        try:
            serve(open_table(copied, HookedStorage(inner, fail_at(number, failure, inner))))
        except PhantombaseError:
            assert entries(open_table(copied)) == before
            serve(open_table(copied))
        check_finished(copied, before)
        shutil.rmtree(copied)


def test_a_base_file_of_a_dead_process_goes_first(path: Path) -> None:
    """Also one that Hudi has left, under another name: two base files of one instant are not readable."""
    with pytest.raises(ProcessDied):
        serve(open_table(path, HookedStorage(LocalStorage(str(path)), _dead_before(".commit"))))
    (ours,) = [f for f in (path / ".hoodie/metadata/files").glob("*.hfile") if "-990000000_" in f.name]
    ours.rename(ours.with_name(ours.name.replace("0-0-990000000", "0-7-9")))
    before = entries(open_table(path))
    serve(open_table(path))
    check_finished(path, before)


def test_a_partition_that_was_built_anew_has_no_base_files_of_before(tmp_path: Path) -> None:
    """Hudi removes the folder. Where nothing was filled since, the base file is lost."""
    path = unzip_golden("v9_with_metadata_table", tmp_path)
    (done,) = serve(open_table(path)).compactions
    folder = path / ".hoodie/metadata/files"
    for file in folder.glob(f"*_{done.instant}.hfile"):
        file.unlink()
    with pytest.raises(MissingFileError, match="base file that does not exist"):
        entries(open_table(path))
    timeline = path / ".hoodie/metadata/.hoodie/timeline"
    (filled,) = timeline.glob("00000000000000000_*.deltacommit")
    filled.rename(filled.with_name(f"00000000000000000_{int(done.instant) + 10**6}.deltacommit"))
    assert entries(open_table(path))


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_a_planned_file_that_is_gone_is_an_error(path: Path) -> None:
    with pytest.raises(ProcessDied):
        serve(open_table(path, HookedStorage(LocalStorage(str(path)), _dead_before(".inflight"))))
    metadata = open_metadata_table(open_table(path))
    (pending,) = metadata.load_timeline().pending_compactions
    operation = metadata.compaction_plan(pending.requested_time).operations[0]
    metadata.storage.delete(f"{operation.partition_path}/{operation.delta_file_paths[0]}")
    with pytest.raises(MissingFileError, match="pending compaction of the metadata table"):
        serve(open_table(path))
    assert metadata.load_timeline().pending_compactions


def test_another_process_that_completes_it_is_noticed(path: Path) -> None:
    """Without the lock: its completed commit stays."""

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and call.path.endswith(".hfile"):
            LocalStorage(str(path)).put_if_absent(call.path, b"of another process")
        return call.do()

    with pytest.raises(ConflictError, match="same compaction of the metadata table"):
        serve(open_table(path, HookedStorage(LocalStorage(str(path)), hook)))


def test_a_file_that_is_removed_after_the_lock_was_lost_is_put_again(path: Path) -> None:
    """A dead process left one of another content; another process replaced and completed it while this one slept."""
    with pytest.raises(ProcessDied):
        serve(open_table(path, HookedStorage(LocalStorage(str(path)), _dead_before(".commit"))))
    before = entries(open_table(path))
    for file in (path / ".hoodie/metadata/files").glob("*-990000000_*.hfile"):
        file.write_bytes(b"of another release")
    slept: list[str] = []

    def hook(call: Call) -> object:
        if call.name == "delete" and call.path.endswith(".hfile") and not slept:
            serve(open_table(path))
            slept.append(call.path)
        return call.do()

    table = open_table(path, HookedStorage(LocalStorage(str(path)), hook))
    with pytest.raises(LockError):
        serve_metadata(table, AT_ONCE, LockLostBehind(slept))
    assert slept
    check_finished(path, before)


def _dead_before(ending: str) -> Hook:
    """Dies before it puts a file of that ending in the metadata table."""

    def hook(call: Call) -> object:
        if call.name == "put_if_absent" and "metadata/" in call.path and call.path.endswith(ending):
            raise ProcessDied(call.path)
        return call.do()

    return hook


# When the metadata table's compaction is due, and at which instant.


NEW = "20260102000000000"


def at(number: int) -> str:
    """An instant time."""
    return f"202601010000{number:02d}000"


def timeline(version: int, done: Iterable[int] = (), pending: Iterable[int] = (), *more: Instant) -> Timeline:
    """Completed and pending delta commits; on versions with completion times each took half a second."""
    layout = Layout.of(version)
    completed = [
        Instant(
            requested_time=at(n),
            action="deltacommit",
            state=State.COMPLETED,
            completion_time=f"{at(n)[:-3]}500" if layout.has_completion_times else None,
        )
        for n in done
    ]
    begun = [Instant(requested_time=at(n), action="deltacommit", state=State.INFLIGHT) for n in pending]
    return Timeline(layout=layout, instants=tuple(sorted((*completed, *begun, *more))))


def decide(data: Timeline, metadata: Timeline, building: tuple[str, ...] = (), least: int = 3) -> MetadataDue:
    return due(data, metadata, building=building, max_delta_commits=least, new_time=lambda: NEW)


@pytest.mark.parametrize(("version", "instant"), [(6, f"{at(3)}001"), (8, NEW), (9, NEW)])
def test_after_so_many_delta_commits(version: int, instant: str) -> None:
    data = timeline(version, range(1, 4))
    assert decide(data, timeline(version, range(1, 3))).instant is None
    assert decide(data, timeline(version, range(1, 4))).instant == instant


@one_of("version", 9, 6)
def test_waits_for_what_is_half_done_here(version: int) -> None:
    data = timeline(version, range(1, 4))
    found = decide(data, timeline(version, range(1, 4), [5]))
    assert found.instant is None
    assert at(5) in found.why
    found = decide(data, timeline(version, range(1, 4)), building=("column_stats",))
    assert found.instant is None
    assert "column_stats" in found.why


def test_a_pending_log_compaction_of_hudi_shows_what_ends_it() -> None:
    """Phantombase makes and executes none there."""
    merge = Instant(requested_time=at(2), action="logcompaction", state=State.REQUESTED)
    metadata = timeline(9, range(3, 7), (), merge)
    for why in (decide(timeline(9, range(3, 7)), metadata).why, clean_waits(metadata), blocked_by(metadata)):
        assert why is not None
        assert f"logcompaction {at(2)} of the metadata table is pending: a writer of Hudi executes it" in why
        assert "--drop-metadata-table" in why
    assert blocked_by(timeline(9, range(3, 7))) is None


def test_version_6_waits_while_an_instant_of_the_table_up_to_the_last_delta_commit_is_pending() -> None:
    metadata = timeline(6, range(1, 4))
    for pending in (1, 3):
        found = decide(timeline(6, {1, 2, 3} - {pending}, [pending]), metadata)
        assert found.instant is None
        assert at(pending) in found.why
    assert decide(timeline(6, range(1, 4), [4]), metadata).instant == f"{at(3)}001"


def test_version_6_compacts_also_behind_a_clean_of_the_last_delta_commit() -> None:
    clean = Instant(requested_time=f"{at(3)}002", action="clean", state=State.COMPLETED)
    assert decide(timeline(6, range(1, 4)), timeline(6, range(1, 4), (), clean)).instant == f"{at(3)}001"


def test_an_entry_of_a_pending_instant_stays_above() -> None:
    """Versions 8 and 9: only where the metadata table holds it already."""
    data = timeline(9, [1, 2], [3])
    assert decide(data, timeline(9, [1, 2, 3])).instant == "20260101000002999"
    assert decide(data, timeline(9, [0, 1, 2])).instant == NEW
    last = Instant(requested_time="20260101000002999", action="commit", state=State.COMPLETED, completion_time=at(4))
    found = decide(data, timeline(9, [1, 2, 3, 5, 6, 7], [], last))
    assert found.instant is None
    assert at(3) in found.why


@pytest.mark.parametrize("version", [6, 9])
def test_no_entry_that_may_still_be_removed_is_merged(version: int) -> None:
    """Every delta commit that completed before the compaction's instant is of no instant that is pending."""
    chosen = beside_pending = 0
    for states in product(("both", "data pending", "metadata only"), repeat=5):
        numbers = range(1, len(states) + 1)
        pending = {n for n, state in zip(numbers, states, strict=True) if state == "data pending"}
        data = timeline(version, {n for n, s in zip(numbers, states, strict=True) if s == "both"}, pending)
        found = decide(data, timeline(version, numbers), least=1)
        if found.instant is not None:
            assert all(at(n) > found.instant for n in pending)
            chosen, beside_pending = chosen + 1, beside_pending + bool(pending)
    assert chosen > 30
    assert (beside_pending > 0) is (version == 9)  # version 6 waits


def test_less_than_one_delta_commit_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        MetadataOptions(max_delta_commits=0)
