"""Which partitions are listed again when a timeline has moved on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from bench.service import commit, make_table
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.format.table_config import TableConfig
from phantombase.timeline.instants.instant_files import InstantFiles
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.service.loading import above, forgotten, load_state, touched
from phantombase.timeline.service.recorded import ANYTHING, NOTHING, InstantRecords, Recorded
from phantombase.timeline.service.table_state import (
    ClientState,
    PartitionFiles,
    ServedState,
    agree,
    counted,
    digest,
    digests,
    may_stay_behind,
)
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import FileGroup, FileSlice, ViewFacts
from tests.support.golden_tables import unzip_golden

FACTS = ViewFacts(pending_plans={}, replaced={}, compacted={})


def at(number: int, action: str = "deltacommit", state: State = State.COMPLETED) -> Instant:
    time = f"2026112109000{number}000"
    done = f"2026112109000{number}500" if state is State.COMPLETED else None
    return Instant(requested_time=time, action=action, state=state, completion_time=done)


def names(*partitions: str, **more: object) -> Recorded:
    return replace(Recorded(partitions=frozenset(partitions)), **more)  # type: ignore[arg-type]


Told = dict[Instant, Recorded]


def timeline(told: Iterable[Instant]) -> Timeline:
    return Timeline(layout=LAYOUT_2, instants=tuple(sorted(told, key=lambda i: i.requested_time)))


def state(told: Told, files: dict[str, set[int]]) -> ServedState:
    """`files`: by partition, the numbers of the instants in the names of its files."""
    found = {
        p: PartitionFiles(groups=(), facts=FACTS, modified={}, times=frozenset(at(n).requested_time for n in numbers))
        for p, numbers in files.items()
    }
    records = InstantRecords(records=list(told.items()), known={})
    return ServedState(config=TableConfig(properties={}), timeline=timeline(told), partitions=found, records=records)


FILES = {"a": {1}, "b": {1, 2}, "c": {3}}
FIRST: Told = {at(1): names("a", "b"), at(2): names("b")}
PENDING: Told = {**FIRST, at(3, state=State.INFLIGHT): NOTHING}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (FIRST, FIRST, set()),
        (FIRST, {**FIRST, at(4): names("b", "new")}, {"b", "new"}),
        (FIRST, {**FIRST, at(4, state=State.INFLIGHT): NOTHING}, set()),
        (PENDING, {**FIRST, at(3): names("a")}, {"a", "c"}),  # c has a file of it that the commit does not name
        (PENDING, FIRST, {"c"}),  # it is gone: undone
        (FIRST, {at(1): names("a", "b")}, {"b"}),
        ({**FIRST, at(4): names("c")}, FIRST, {"c"}),
        (FIRST, {**FIRST, at(4, "clean"): names("a")}, {"a"}),
        (FIRST, {**FIRST, at(4, "rollback", State.REQUESTED): names("c")}, {"c"}),
        (FIRST, {**FIRST, at(4, "compaction", State.REQUESTED): names("a")}, {"a"}),
        (FIRST, {**FIRST, at(4, "savepoint"): NOTHING}, set()),
        (FIRST, {**FIRST, at(4, "restore"): ANYTHING}, None),
        ({**FIRST, at(4, "restore"): ANYTHING}, {**FIRST, at(5): names("a")}, {"a"}),
        (FIRST, {at(2): names("b")}, set()),  # the first was archived
        ({**FIRST, at(1, "commit"): names("a")}, FIRST, None),  # two writes of one time
    ],
)
def test_what_is_listed_again(before: Told, now: Told, expected: set[str] | None) -> None:
    found = touched(state(before, FILES), timeline(now), list(now.items()))
    assert (None if found is None else set(found)) == expected


def test_a_stray_file_counts_once_the_timeline_starts_behind_it() -> None:
    before = {at(1): names("a"), at(3): names("a"), at(5): names("a")}
    now = {at(5): names("a")}
    found = touched(state(before, {"a": {1}, "b": {2}, "c": {4, 1}, "d": {6}}), timeline(now), list(now.items()))
    assert found == frozenset("bc")


def test_an_archived_write_without_a_known_completion_is_looked_at_again() -> None:
    legacy = replace(at(1), completion_time=None)
    before, now = {legacy: names("a"), at(2): names("b")}, {at(2): names("b")}
    assert touched(state(before, {"a": {1}, "b": {2}, "c": {1}}), timeline(now), list(now.items())) == frozenset("ac")


@pytest.mark.parametrize(("slices", "expected"), [(1, {"a"}), (0, set())])
def test_files_of_a_replaced_group_come_back_when_its_commit_is_archived(slices: int, expected: set[str]) -> None:
    replacing = names("b", replaced={"a": frozenset({"f"})})
    before, now = {at(1, "replacecommit"): replacing, at(2): names("b")}, {at(2): names("b")}
    found = state(before, {"a": {1}, "b": {1}})
    slice_ = FileSlice(partition="a", file_id="f", base_instant=at(1).requested_time, base=None, logs=())
    group = FileGroup(partition="a", file_id="f", slices=(slice_,) * slices)
    partitions = {**found.partitions, "a": replace(found.partitions["a"], groups=(group,))}
    held = replace(found, partitions=partitions)
    assert touched(held, timeline(now), list(now.items())) == frozenset(expected)
    assert forgotten(held, list(now.items())) == frozenset("a")


@pytest.mark.parametrize(
    ("partition", "others", "expected"),
    [("a/b", ["a"], True), ("a/b", ["a/b", "ab", "a/bc"], False), ("a", [""], True), ("a", ["a/b"], False)],
)
def test_no_partition_is_in_another(partition: str, others: list[str], expected: bool) -> None:
    assert above(partition, others) is expected


def test_a_load_lists_the_partition_again_that_was_listed_longest_ago(tmp_path: Path) -> None:
    path = unzip_golden("v9_compacted_cleaned", tmp_path)
    table = Table.open(str(path))
    held = load_state(table)
    doomed = max(path.glob("*/*.parquet"), key=lambda p: p.name.rpartition("_")[2])
    doomed.unlink()

    state = held
    for _ in held.partitions:
        state = load_state(table, state)
    assert state.refused == {doomed.parent.name}


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(str(unzip_golden("v9_pending", tmp_path)))
    first = load_state(table)
    read: list[Instant] = []
    monkeypatch.setattr(InstantFiles, "recorded", lambda self, instant: read.append(instant))
    second = load_state(table, first)
    assert (second.records.known, read) == (first.records.known, [])


def test_a_new_write_costs_what_it_touches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten partitions the three that it names are listed, and the one whose turn it is; of the timeline its own file
    is read."""
    table = make_table(tmp_path / "t", 1000)
    held = load_state(table)
    time = "20270101000000000"
    commit(table, time, range(3))
    listed, read = watched(monkeypatch, "list"), watched(monkeypatch, "read")
    state = load_state(table.snapshot(cached=False), held, sweep=False)
    partitions = [path for path in listed if path.startswith("p")]
    assert partitions == ["p0000", "p0001", "p0002"]
    assert {path.partition("_")[0].rpartition("/")[2] for path in read if "/timeline/" in path} == {time}
    assert (len(state.partitions), time in state.timeline.completed_writes) == (10, True)
    listed.clear()
    load_state(table.snapshot(cached=False), state, sweep=True)
    assert [path for path in listed if path.startswith("p")] == ["p0003"]


def watched(monkeypatch: pytest.MonkeyPatch, method: str) -> list[str]:
    """The paths of all calls of a method of local storages from now on."""
    paths: list[str] = []
    plain = getattr(LocalStorage, method)

    def call(self: LocalStorage, path: str, *more: object) -> object:
        paths.append(path)
        return plain(self, path, *more)

    monkeypatch.setattr(LocalStorage, method, call)
    return paths


# When a client and a state agree, and who may stay behind.


LAYOUT = LAYOUT_2


def synchronisation_timeline(*instants: Instant) -> Timeline:
    return Timeline(layout=LAYOUT, instants=instants)


def client(known: Timeline) -> ClientState:
    """What a client with this timeline sends; it counts no pending log compaction."""
    last = counted(known)[-1:]
    return ClientState(last=last[0].requested_time if last else "0", digest=digest(counted(known)))


def agrees(server: Timeline, known: Timeline) -> bool:
    return agree(times(server), digests(server), client(known))


def times(known: Timeline) -> list[str]:
    return [i.requested_time for i in counted(known)]


REQUESTED, INFLIGHT = State.REQUESTED, State.INFLIGHT


def test_the_hash_is_of_times_actions_and_states() -> None:
    text = "20261121090001000_deltacommit_COMPLETED20261121090002000_compaction_REQUESTED"
    known = synchronisation_timeline(
        at(1), at(2, "compaction", REQUESTED), at(3, "clustering", INFLIGHT), at(4, state=INFLIGHT)
    )
    assert digest(counted(known)) == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("server", "known", "expected"),
    [
        (synchronisation_timeline(at(1), at(2)), synchronisation_timeline(at(1), at(2)), True),
        (synchronisation_timeline(at(1), at(2)), synchronisation_timeline(at(1)), False),
        (synchronisation_timeline(at(1)), synchronisation_timeline(at(1), at(2)), False),
        (synchronisation_timeline(), synchronisation_timeline(), True),
        (synchronisation_timeline(at(1), at(2, "clean")), synchronisation_timeline(at(1)), True),
        (synchronisation_timeline(at(1), at(2, "clean"), at(3)), synchronisation_timeline(at(1), at(3)), False),
        (synchronisation_timeline(at(1), at(2, "logcompaction", REQUESTED)), synchronisation_timeline(at(1)), True),
        (synchronisation_timeline(at(1), at(2, "compaction", REQUESTED)), synchronisation_timeline(at(1)), False),
    ],
)
def test_agreement(server: Timeline, known: Timeline, expected: bool) -> None:
    assert agrees(server, known) is expected


def test_the_hash_of_hudis_server_is_accepted() -> None:
    server = synchronisation_timeline(at(1), at(2, "logcompaction", REQUESTED))
    with_it = ClientState(last=at(1).requested_time, digest=digest(server.instants))
    assert agree(times(server), digests(server), with_it)


def test_an_unknown_last_instant_disagrees_unless_it_is_before_the_timeline() -> None:
    server = synchronisation_timeline(at(2), at(3))
    for last, expected in ((at(9).requested_time, False), (at(1).requested_time, True), ("0", True)):
        assert agree(times(server), digests(server), replace(client(server), last=last)) is expected


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ((at(1), at(2, "compaction", INFLIGHT), at(3)), True),
        ((at(1), at(2, "commit"), at(3)), True),  # its slice was known
        ((at(1), at(2, "compaction", REQUESTED), at(3, "savepoint")), True),
        ((at(2, "compaction", REQUESTED), at(3)), True),  # the first was archived
        ((at(1),), False),  # the compaction was taken back
        ((at(1), at(2, "compaction", REQUESTED), at(3, "compaction", REQUESTED)), False),  # new slices are open
        ((at(1), at(2, "compaction", REQUESTED), at(3, "commit")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "clean")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "replacecommit")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "rollback")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "restore")), False),
    ],
)
def test_who_may_stay_behind(new: tuple[Instant, ...], expected: bool) -> None:
    old = synchronisation_timeline(at(1), at(2, "compaction", REQUESTED))
    assert may_stay_behind(old, synchronisation_timeline(*new)) is expected
