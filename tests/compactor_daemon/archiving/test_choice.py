"""Which instants may be archived: each rule alone, and what holds of any timeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.archiving.archived_files import _forget_old
from phantombase.compactor_daemon.archiving.choice import ArchiveChoice, ArchiveFacts, ArchiveOptions, choose
from phantombase.compactor_daemon.archiving.history import newest_manifest, put_manifest, set_version
from phantombase.timeline.errors import ConflictError, LockError, UsageError
from phantombase.timeline.format.instant import State
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from phantombase.timeline.instants.archived_timeline import HistoryFile
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.snapshot import GuardedStorage
from tests.support.archived_tables import FOLDER
from tests.support.builders import timeline_of
from tests.support.failing_storage import Call, HookedStorage

OPTIONS = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=100, compaction_commits=1)
WRITES = [f"{n}.deltacommit" for n in range(10, 18)]


def gone(*names: str, layout: Layout = LAYOUT_1, options: ArchiveOptions = OPTIONS, **facts: Any) -> list[str]:
    """Times of the instants that go."""
    return [i.requested_time for i in chosen(*names, layout=layout, options=options, **facts).archived]


def chosen(*names: str, layout: Layout = LAYOUT_1, options: ArchiveOptions = OPTIONS, **facts: Any) -> ArchiveChoice:
    """The choice. On layout 2 completed names get a completion time right after the requested one."""
    if layout is LAYOUT_2:
        names = tuple(_with_completion(name) for name in names)
    return choose(timeline_of(layout, *names), ArchiveFacts(**facts), options)


def _with_completion(name: str) -> str:
    time, _, rest = name.partition(".")
    return name if "." in rest or "_" in time else f"{time}_{time}5.{rest}"


def times(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


def times_of(first: int, last: int) -> list[str]:
    return [f"{n}.deltacommit" for n in range(first, last + 1)]


def test_all_but_the_newest_go_once_there_are_enough() -> None:
    assert gone(*WRITES) == times(10, 15)
    assert gone(*WRITES[:3]) == []
    assert gone(*WRITES[:4]) == times(10, 11)
    assert chosen(*WRITES[:3]).why == "3 commits are completed, archiving begins above 3"


@pytest.mark.parametrize("layout", [LAYOUT_1, LAYOUT_2])
def test_a_compaction_stays_with_the_write_that_replaced_what_it_left_out(layout: Layout) -> None:
    names = [*times_of(10, 12), "13.commit", *times_of(14, 17)]
    assert gone(*names, layout=layout) == times(10, 15)
    assert gone(*names, layout=layout, left_out={"13": "16"}) == times(10, 12)
    assert gone(*names, layout=layout, left_out={"13": "15"}) == times(10, 15)
    assert gone(*names, layout=layout, left_out={"13": "16", "11": "14"}) == ["10"]


def test_two_more_than_the_cleaner_retains_stay() -> None:
    """Only where there are more commits than it retains."""

    def retaining(commits: int) -> ArchiveOptions:
        return ArchiveOptions(min_instants=2, max_instants=3, commits_retained=commits, compaction_commits=1)

    assert gone(*WRITES, options=retaining(4)) == times(10, 11)
    assert gone(*WRITES, options=retaining(5)) == []
    assert gone(*WRITES, options=retaining(8)) == times(10, 15)


@pytest.mark.parametrize(
    "pending", ["135.deltacommit.inflight", "135.compaction.requested", "135.clean.requested", "135.rollback.inflight"]
)
def test_the_last_commit_before_a_pending_instant_stays(pending: str) -> None:
    assert gone(*WRITES, pending) == times(10, 12)
    assert gone("09.deltacommit.requested", *WRITES) == []


def test_what_completed_since_a_pending_write_began_stays() -> None:
    """The write asks for it before it completes, on the active timeline."""
    beside = ("11_158.deltacommit", "12_155.deltacommit")
    assert gone("10.deltacommit", *beside, *WRITES[3:], layout=LAYOUT_2) == times(10, 15)
    assert gone("10.deltacommit", *beside, *WRITES[3:], "146.compaction.inflight", layout=LAYOUT_2) == times(10, 10)
    assert gone(*WRITES, "155.deltacommit.inflight") == times(10, 14)
    written = {"11": "158", "12": "155"}
    assert gone(*WRITES, "155.deltacommit.inflight", written=written, begun={"155": "157"}) == times(10, 10)
    assert gone(*WRITES, "155.deltacommit.inflight", written=written, begun={"155": "159"}) == times(10, 14)


def test_a_savepoint_stays_with_all_behind_it() -> None:
    choice = chosen(*WRITES, "13.savepoint")
    assert [i.requested_time for i in choice.archived] == times(10, 12)
    assert {choice.why_kept(i) for i in choice.kept if i.action == "savepoint"} == {
        "a savepoint stays on the active timeline"
    }


@pytest.mark.parametrize("layout", [LAYOUT_1, LAYOUT_2], ids=["v6", "v9"])
def test_what_a_trigger_counts_stays(layout: Layout) -> None:
    """The last delta commits, or the last compaction if there are fewer behind it."""
    few = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=100, compaction_commits=4)
    assert gone(*WRITES, options=few, layout=layout) == times(10, 13)
    assert gone(*WRITES, "145.commit", options=few, layout=layout) == times(10, 14)
    many = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=100, compaction_commits=9)
    assert gone(*WRITES, options=many, layout=layout) == []


def test_a_delta_commit_that_completed_behind_a_compaction_counts() -> None:
    """From version 8 on, by its completion."""
    names = ["10_100.deltacommit", "11_111.deltacommit", "12_180.deltacommit", "13_131.commit", "14_141.deltacommit"]
    options = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=100, compaction_commits=2)
    assert gone(*names, "15_190.deltacommit", layout=LAYOUT_2, options=options) == times(10, 13)[:4]
    options = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=100, compaction_commits=3)
    assert gone(*names, "15_190.deltacommit", layout=LAYOUT_2, options=options) == times(10, 11)


def test_replace_commits_wait_for_a_clean() -> None:
    names = ["10.deltacommit", "11.replacecommit", "12.deltacommit", "13.replacecommit", *WRITES[4:]]
    assert gone(*names) == times(10, 10)
    assert gone(*names, cleaned_to="12") == times(10, 12)
    assert gone(*names, cleaned_to="13") == times(10, 12)
    assert gone(*names, cleaned_to="14") == times(10, 15)
    assert gone(*names, cleaned_to="14", replaced_there={"11": "a/f.parquet"}) == times(10, 10)


def test_the_metadata_table_must_hold_what_goes() -> None:
    assert gone(*WRITES, metadata=True) == []
    assert gone(*WRITES, metadata=True, metadata_compacted="12001") == times(10, 12)
    assert gone(*WRITES, layout=LAYOUT_2, metadata=True, metadata_compacted="126") == times(10, 12)
    assert gone(*WRITES, layout=LAYOUT_2, metadata=True, metadata_compacted="125") == times(10, 11)
    for compacted in (None, "12001"):
        choice = chosen(*WRITES, metadata=True, metadata_compacted=compacted, metadata_blocked="x is pending: do y")
        assert choice.why.endswith("; its next one waits, x is pending: do y")


def test_a_compaction_that_is_not_cleaned_up_stays() -> None:
    choice = chosen(*WRITES, "135.commit", unfinished=frozenset({"135"}))
    assert [i.requested_time for i in choice.archived] == times(10, 13)
    assert choice.why == "phantombase has not cleaned up behind compaction 135"


def test_a_pin_holds_writes_of_version_6() -> None:
    """From version 8 on readers find them in the archive."""
    assert gone(*WRITES, held="12") == times(10, 12)
    assert gone(*WRITES, held="") == []
    assert gone(*WRITES, held="12", layout=LAYOUT_2) == times(10, 15)


def test_two_completed_files_of_an_instant_stay() -> None:
    assert gone(*WRITES, doubled=frozenset({"12"})) == times(10, 11)


def test_what_completed_last_stays() -> None:
    """A new time must exceed all completions, and is compared with what is active."""
    assert gone("10_109.deltacommit", "11_185.deltacommit", *WRITES[2:], layout=LAYOUT_2) == times(10, 10)
    assert gone("10_109.deltacommit", "11_175.deltacommit", *WRITES[2:], layout=LAYOUT_2) == times(10, 15)
    assert gone(*WRITES, written={"12": "20"}) == times(10, 11)
    assert gone(*WRITES, written={"12": "20", "17": "20"}) == times(10, 15)


def test_cleans_and_rollbacks_of_version_6_go_by_their_number() -> None:
    cleans = [f"{n}1.clean" for n in range(10, 15)]
    assert gone(*WRITES[:2], *cleans) == ["101", "111", "121"]
    assert gone(*WRITES[:2], *cleans[:3]) == []
    assert gone(*WRITES[:2], *cleans, "115.rollback.requested") == ["101", "111"]


def test_cleans_and_rollbacks_wait_for_the_metadata_table() -> None:
    """Its entries of theirs are passed over by Hudi's readers once they are archived: real Hudi lost the logs."""
    rollbacks = [f"{n}1.rollback" for n in range(10, 16)]
    assert gone(*WRITES[:2], *rollbacks) == ["101", "111", "121", "131"]
    assert gone(*WRITES[:2], *rollbacks, metadata=True) == []
    assert gone(*WRITES[:2], *rollbacks, metadata=True, metadata_compacted="115") == ["101", "111"]
    names = [*WRITES, "101_102.rollback", "121_164.rollback"]
    assert {"101", "121"} <= set(gone(*names, layout=LAYOUT_2))
    assert gone(*names, layout=LAYOUT_2, metadata=True, metadata_compacted="150") == ["10", "101", "11", "12"]


def test_cleans_and_rollbacks_of_version_9_go_with_the_commits() -> None:
    """The newest clean and restores too: Hudi knows no completion time of what is archived behind an active instant."""
    names = [*WRITES, "101.clean", "121.clean", "122.rollback", "131.indexing", "141.restore", "161.rollback"]
    choice = chosen(*names, layout=LAYOUT_2)
    want = ["10", "101", *times(11, 12), "121", "122", "13", "131", "14", "141", "15"]
    assert [i.requested_time for i in choice.archived] == want
    assert [i.requested_time for i in choice.kept if not i.is_write] == ["161"]


def test_writes_behind_another_instant_that_stays_are_not_archived() -> None:
    choice = chosen(*WRITES, "131.schemacommit", "141.schemacommit", layout=LAYOUT_2)
    assert [i.requested_time for i in choice.archived] == times(10, 13)
    assert choice.why == "schemacommit 131 stays on the active timeline"
    assert gone(*WRITES, "131.schemacommit") == times(10, 15)
    assert gone(*WRITES, "131.indexing") == times(10, 15)
    choice = chosen(*WRITES, "131.indexing.inflight", layout=LAYOUT_2)
    assert choice.why == "indexing 131 is pending: Hudi's indexer executes it, or drops the index"


def test_two_writes_of_one_time_go_together() -> None:
    assert gone(*WRITES[:6], "14.replacecommit", cleaned_to="20") == times(10, 13)


@pytest.mark.parametrize("given", [{"min_instants": 1}, {"min_instants": 30}, {"commits_retained": 0}])
def test_impossible_options(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ArchiveOptions(**given)


_ACTIONS = st.sampled_from(
    ["deltacommit", "deltacommit", "deltacommit", "commit", "replacecommit", "clean", "rollback", "savepoint",
     "deltacommit.inflight", "compaction.requested", "clean.requested", "logcompaction.requested"]
)  # fmt: skip


@given(
    actions=st.lists(_ACTIONS, max_size=25),
    layout=st.sampled_from([LAYOUT_1, LAYOUT_2]),
    least=st.integers(2, 5),
    cleaned=st.one_of(st.none(), st.integers(100, 130).map(str)),
    late=st.lists(st.integers(0, 40), min_size=25, max_size=25),
)
def test_what_holds_of_any_timeline(
    actions: list[str], layout: Layout, least: int, cleaned: str | None, late: list[int]
) -> None:
    """No hole, nothing at or behind what pends, enough stay, and no time is forgotten that a new one must exceed."""
    names = []
    for n, action in enumerate(actions):
        completion = f"_{100 + n + late[n]}" if layout is LAYOUT_2 and "." not in action else ""
        names.append(f"{100 + n}{completion}.{action}")
    timeline = timeline_of(layout, *names)
    options = ArchiveOptions(min_instants=least, max_instants=least + 1, commits_retained=3, compaction_commits=2)
    choice = choose(timeline, ArchiveFacts(cleaned_to=cleaned), options)
    left = [i for i in timeline.instants if i not in choice.archived]
    writes = [i for i in choice.archived if i.is_write]
    assert all(i.state is State.COMPLETED for i in choice.archived)
    assert set(choice.kept) == {i for i in left if i.completed}
    if writes:
        first = min(i.requested_time for i in left if i.is_write or not i.completed)
        assert max(i.requested_time for i in writes) < first
        assert layout is LAYOUT_1 or min(i.requested_time for i in left) == first
        assert sum(i.is_write and i.completed for i in left) >= least
        used = max(max(i.requested_time, i.completion_time or "") for i in left)
        assert all((i.completion_time or "") <= used for i in writes)
    assert all(choice.why_kept(i) for i in choice.kept)


# What is removed from the history when its files were merged.


LEFT = "20260101000000000_20260102000000000_0.parquet"
"""A dead archiver placed it, and died before a manifest named it."""


def named(storage: Storage, *names: str) -> None:
    """The next manifest: of these files."""
    files = tuple(HistoryFile(name=name, size=4) for name in names)
    put_manifest(storage, FOLDER, newest_manifest(storage, FOLDER), files)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    storage = LocalStorage(str(tmp_path))
    for number in range(1, 7):
        name = f"2025010{number}000000000_2025010{number}000000000_0.parquet"
        named(storage, name)
        storage.put_if_absent(f"{FOLDER}/{name}", b"rows")
    storage.put_if_absent(f"{FOLDER}/{LEFT}", b"left")
    return tmp_path


def test_what_no_manifest_left_names_goes(path: Path) -> None:
    storage = LocalStorage(str(path))
    _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1)
    assert sorted(f.name[:8] for f in (path / FOLDER).glob("*.parquet")) == [f"2025010{n}" for n in range(3, 7)]
    assert len(list((path / FOLDER).glob("manifest_*"))) == 4
    assert not [f for f in (path / ".hoodie").rglob("*.parquet") if f.parent != path / FOLDER]


def test_a_torn_manifest_that_a_writer_passed_over_is_no_error(path: Path) -> None:
    """Or archiving fails once behind its work, and says that the history cannot be read."""
    storage = LocalStorage(str(path))
    (path / FOLDER / "manifest_7").write_text('{"fil')
    named(storage, "20250106000000000_20250106000000000_0.parquet")
    assert newest_manifest(storage, FOLDER).number == 8
    _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1)
    assert sorted(f.name[:8] for f in (path / FOLDER).glob("*.parquet")) == [f"2025010{n}" for n in (5, 6)]


def test_a_leftover_that_another_archiver_named_meanwhile_stays(path: Path) -> None:
    """It archived the same instants while this process slept right before it removed the file."""
    slept = False

    def hook(call: Call) -> Any:
        nonlocal slept
        if call.name.startswith("delete") and LEFT in str(call.path) and not slept:
            slept = True
            named(LocalStorage(str(path)), LEFT)
        return call.do()

    def check() -> None:
        if slept:
            raise LockError("the lock was lost")

    storage = GuardedStorage(HookedStorage(LocalStorage(str(path)), hook), check)
    with pytest.raises(LockError):
        _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1)
    assert slept
    assert (path / FOLDER / LEFT).read_bytes() == b"left"


def test_a_leftover_that_is_moved_away_is_put_back(path: Path) -> None:
    """As above, where placing is a rename, and the process slept right before that."""
    others = LocalStorage(str(path))
    slept = False

    def hook(call: Call) -> Any:
        nonlocal slept
        if call.name != "place" or slept:
            return call.do()
        slept = True
        named(others, LEFT)
        done = call.do()
        others.delete(f"{FOLDER}/{LEFT}")
        return done

    def check() -> None:
        if slept:
            raise LockError("the lock was lost")

    storage = GuardedStorage(HookedStorage(others, hook), check)
    with pytest.raises(LockError):
        _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1)
    assert (path / FOLDER / LEFT).read_bytes() == b"left"


def test_a_leftover_that_is_gone_is_no_error(path: Path) -> None:
    def hook(call: Call) -> Any:
        if call.name == "place":
            (path / FOLDER / LEFT).unlink()
        return call.do()

    storage = HookedStorage(LocalStorage(str(path)), hook)
    _forget_old(storage, FOLDER, newest_manifest(storage, FOLDER), 1)
    assert not (path / FOLDER / LEFT).exists()


# The manifest that counts, where a process sleeps right before it puts `_version_` and others archive meanwhile.


def lost() -> None:
    raise LockError("the lock was lost")


def put(storage: Storage) -> int:
    """The next manifest, by a process of its own; its number."""
    before = newest_manifest(storage, FOLDER)
    file = HistoryFile(name=f"f{before.number}", size=1)
    return put_manifest(storage, FOLDER, before, (*before.files, file)).number


def counts(path: Path) -> int:
    """What Hudi's readers take."""
    version = path / FOLDER / "_version_"
    if version.exists():
        return int(version.read_text())
    return max(int(f.name.partition("_")[2]) for f in (path / FOLDER).glob("manifest_*"))


def asleep(path: Path, meanwhile: Callable[[], object]) -> Storage:
    """The storage of a process that sleeps before its first put of `_version_`."""
    slept = False

    def hook(call: Call) -> Any:
        nonlocal slept
        if call.name == "put_if_absent" and call.path.endswith("_version_") and not slept:
            slept = True
            meanwhile()
        return call.do()

    return HookedStorage(LocalStorage(str(path)), hook)


@pytest.fixture
def manifest_path(tmp_path: Path) -> Path:
    """A table with two manifests."""
    storage = LocalStorage(str(tmp_path))
    assert (put(storage), put(storage)) == (1, 2)
    return tmp_path


@pytest.mark.parametrize("removed", [True, False], ids=["while it is missing", "while it is there"])
def test_a_number_that_comes_too_late_does_not_count(manifest_path: Path, removed: bool) -> None:
    """Another one archived; a third slept before it removed `_version_`, so that the late number finds none."""
    is_lost = False

    def meanwhile() -> None:
        nonlocal is_lost
        assert put(LocalStorage(str(manifest_path))) == 4
        if removed:
            (manifest_path / FOLDER / "_version_").unlink()
        is_lost = True

    with pytest.raises(LockError):
        put(GuardedStorage(asleep(manifest_path, meanwhile), lambda: lost() if is_lost else None))
    assert counts(manifest_path) == 4
    assert put(LocalStorage(str(manifest_path))) == 5
    assert counts(manifest_path) == 5


def test_a_late_number_is_replaced(manifest_path: Path) -> None:
    """By the process that has the lock, whose put finds it."""
    late = manifest_path / FOLDER / "_version_"
    assert put(asleep(manifest_path, lambda: late.write_text("1"))) == 3
    assert counts(manifest_path) == 3


def test_a_newer_number_stays(manifest_path: Path) -> None:
    """It is of a process that has not got the same lock."""
    storage = asleep(manifest_path, lambda: put(LocalStorage(str(manifest_path))))
    with pytest.raises(ConflictError, match="archives this table"):
        put(storage)
    assert counts(manifest_path) == 4


def test_what_counts_already_is_not_touched(manifest_path: Path) -> None:
    set_version(GuardedStorage(LocalStorage(str(manifest_path)), lost), FOLDER, 2)
    assert counts(manifest_path) == 2
