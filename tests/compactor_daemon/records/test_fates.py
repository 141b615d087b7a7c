"""Records of attempts: a fate is written once and known by its nonce, and what cannot be read is no "none"."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.records.fate import (
    Go,
    dead_record,
    declare_dead,
    find_go,
    open_next,
    read_fate,
    revoke_decision,
    void_record,
    write_fate,
)
from phantombase.timeline.errors import AttemptDeadError, ConflictError, MalformedError, StorageError
from phantombase.timeline.format.instant import format_time, later
from phantombase.timeline.instants.attempt_names import DEAD, FATE, GO, attempt_folder, attempts
from phantombase.timeline.instants.reserved_times import reserve
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden

C = "20260101000000000"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """An instant without records."""
    return LocalStorage(str(tmp_path))


def a_go(attempt: int, nonce: str = "mine", completion: str | None = None) -> Go:
    """A decision without files."""
    return Go(
        instant=C,
        attempt=attempt,
        nonce=nonce,
        table_version=9,
        completion_time=completion,
        completed_path=f".hoodie/timeline/{C}_x.commit",
        content=b"commit",
    )


def decide_go(storage: LocalStorage, attempt: int, completion: str | None = None) -> Go:
    """Writes a decision."""
    go = a_go(attempt, completion=completion)
    write_fate(storage, C, attempt, go.to_json(), go.nonce)
    return go


def at_put(storage: LocalStorage, instead: Callable[[Call], Any]) -> HookedStorage:
    """A storage whose `put_if_absent` of a fate does something else."""

    def hook(call: Call) -> Any:
        return instead(call) if call.name == "put_if_absent" and call.path.endswith(FATE) else call.do()

    return HookedStorage(storage, hook)


def fate_of(storage: LocalStorage, attempt: int) -> str | None:
    """What an attempt's fate is."""
    fate = read_fate(storage, C, attempt)
    return None if fate is None else fate.kind


# --- one fate -------------------------------------------------------------------------------------------------------


def test_the_second_fate_is_an_error_and_the_first_stays(storage: LocalStorage) -> None:
    """Also of the same kind: a nonce says whose it is."""
    open_next(storage, C, "a")
    write_fate(storage, C, 1, dead_record("theirs", "b"), "theirs")
    for record in (a_go(1).to_json(), dead_record("mine", "a")):
        with pytest.raises(AttemptDeadError, match=r"another process wrote the fate.*dead"):
            write_fate(storage, C, 1, record, "mine")
    assert fate_of(storage, 1) == DEAD
    write_fate(storage, C, 1, dead_record("theirs", "b"), "theirs")  # a put that was tried again finds its own record


def test_a_put_that_took_effect_and_failed_has_decided(storage: LocalStorage) -> None:
    """Its nonce is there: the decision stands, and is published."""

    def fail(call: Call) -> None:
        call.do()
        raise StorageError("injected")

    open_next(storage, C, "a")
    write_fate(at_put(storage, fail), C, 1, a_go(1).to_json(), "mine")
    assert find_go(storage, C) == a_go(1)


@pytest.mark.parametrize("first", [None, "theirs"])
def test_a_put_that_failed_decides_nothing(storage: LocalStorage, first: str | None) -> None:
    """Nothing is there, or another's record: nobody goes on as if it were ours."""

    def fail(call: Call) -> None:
        raise StorageError("injected")

    open_next(storage, C, "a")
    if first is not None:
        write_fate(storage, C, 1, dead_record(first, "b"), first)
    with pytest.raises(StorageError, match="injected"):
        write_fate(at_put(storage, fail), C, 1, a_go(1).to_json(), "mine")
    assert find_go(storage, C) is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"fate": "live", "nonce": "n"}', b'{"fate": "go", "nonce": "n"}', b"{}"]
)
def test_a_fate_that_cannot_be_read_is_an_error(storage: LocalStorage, text: bytes) -> None:
    """Taken for none it would be decided again, and for dead it would not be published."""
    open_next(storage, C, "a")
    storage.put_if_absent(f"{attempt_folder(C, 1)}/{FATE}", text)
    for ask in (lambda: read_fate(storage, C, 1), lambda: find_go(storage, C), lambda: open_next(storage, C, "b")):
        with pytest.raises(MalformedError):
            ask()


def test_an_unreadable_fate_before_the_last_attempt_counts_as_dead(storage: LocalStorage) -> None:
    """None would have been opened behind it else. So does one that was revoked; the last one does not."""
    for number, text in ((1, b"{"), (2, b"{")):
        storage.put_if_absent(f"{attempt_folder(C, number)}/open", b"{}")
        storage.put_if_absent(f"{attempt_folder(C, number)}/{FATE}", text)
    with pytest.raises(MalformedError):
        open_next(storage, C, "a")
    revoke_decision(storage, C, 2, "unreadable", "b")
    assert open_next(storage, C, "a") == 3
    assert find_go(storage, C) is None


# --- who may open ---------------------------------------------------------------------------------------------------


def test_none_is_opened_beside_one_that_is_undecided_or_decided(storage: LocalStorage) -> None:
    assert open_next(storage, C, "a") == 1
    with pytest.raises(ConflictError, match="another attempt is at work"):
        open_next(storage, C, "b")
    decide_go(storage, 1)
    with pytest.raises(ConflictError, match="decided already"):
        open_next(storage, C, "b")
    revoke_decision(storage, C, 1, "restored", "c")
    assert find_go(storage, C) is None
    assert open_next(storage, C, "b") == 2
    assert decide_go(storage, 2) == find_go(storage, C)


@pytest.mark.parametrize("record", [dead_record, void_record])
def test_one_is_opened_behind_the_dead_and_the_void(record: Callable[[str, str], bytes], storage: LocalStorage) -> None:
    open_next(storage, C, "a")
    write_fate(storage, C, 1, record("n", "b"), "n")
    assert open_next(storage, C, "b") == 2


def test_of_two_that_open_the_same_one_does(storage: LocalStorage) -> None:
    """Both have listed the attempts before."""
    other = list[int]()

    def overtaken(call: Call) -> Any:
        if call.name == "put_if_absent" and not other:
            other.append(0)
            other.append(open_next(storage, C, "b"))
        return call.do()

    with pytest.raises(ConflictError, match="opened the same attempt"):
        open_next(HookedStorage(storage, overtaken), C, "a")
    assert other == [0, 1]
    assert attempts(storage, C) == (1,)


def test_a_number_is_never_used_again(storage: LocalStorage) -> None:
    """Also where folders of earlier attempts were lost: a zombie's files carry their attempt's number."""
    for number in (1, 2, 3):
        open_next(storage, C, "a")
        write_fate(storage, C, number, dead_record("n", "b"), "n")
    for lost in (1, 2):
        storage.delete_folder(attempt_folder(C, lost))
    assert open_next(storage, C, "b") == 4


def test_every_undecided_attempt_is_declared_dead(storage: LocalStorage) -> None:
    """Two may be open: one opens again while another that had opened sleeps before its record was seen."""
    for number in (1, 2, 10):
        storage.put_if_absent(f"{attempt_folder(C, number)}/open", b"{}")
    write_fate(storage, C, 2, void_record("n", "b"), "n")
    assert declare_dead(storage, C, "c") == [1, 10]
    assert [fate_of(storage, n) for n in (1, 2, 10)] == [DEAD, "void", DEAD]
    assert declare_dead(storage, C, "c") == []


def test_an_attempt_that_was_decided_meanwhile_is_not_dead(storage: LocalStorage) -> None:
    """Looked at as undecided; its `go` came first: that is an error, and the `go` stays."""

    def overtaken(call: Call) -> Any:
        decide_go(storage, 1)
        return call.do()

    open_next(storage, C, "a")
    with pytest.raises(AttemptDeadError, match="go"):
        declare_dead(at_put(storage, overtaken), C, "b")
    assert fate_of(storage, 1) == GO


# --- used times -----------------------------------------------------------------------------------------------------


def used_times(path: Path) -> set[str]:
    """Those behind the ordinary ones of a table's timeline."""
    table = open_table(path)
    return set(table.times.reserved(table.load_timeline()))


def test_times_of_tombstones_and_of_every_decision_are_used(tmp_path: Path) -> None:
    """Of each attempt, by a name or, of an earlier release, by its fate; a revoked one's may be in use by now."""
    path = unzip_golden("v9_plain", tmp_path)
    storage = LocalStorage(str(path))
    instant, tombstone = "20980101000000000", "20970101000000000"
    by_name, by_fate = "20980101000000007", "20980101000000008"
    for number, completion in ((1, by_name), (2, by_fate), (3, None)):
        open_next(storage, instant, "a")
        go = replace(a_go(number, completion=None if number == 1 else completion), instant=instant)
        write_fate(storage, instant, number, go.to_json(), go.nonce)
        revoke_decision(storage, instant, number, "restored", "b")
    reserve(storage, instant, 1, by_name)
    storage.put_if_absent(f".hoodie/.phantombase/{tombstone}/1/open", b"{}")
    storage.put_if_absent(".hoodie/.phantombase/audit/20990101000000000.json", b"{}")
    assert used_times(path) == {instant, by_name, by_fate, tombstone}


@pytest.mark.parametrize("chosen", ["next_time", "completion_time", "plan"])
def test_every_time_that_is_chosen_is_above_reserved_ones(chosen: str, tmp_path: Path) -> None:
    """Without that the caller asks for it."""
    path = unzip_golden("v9_plain", tmp_path)
    table = open_table(path)
    soon = format_time(table.now() + timedelta(seconds=20))
    reserve(LocalStorage(str(path)), soon, 1, soon)
    timeline = table.load_timeline()
    choose: dict[str, Callable[[Timeline], str | None]] = {
        "next_time": table.next_time,
        "completion_time": table.completion_time,
        "plan": lambda timeline: table.times.next_plan_time(timeline, dry_run=True),
    }
    assert choose[chosen](timeline) == later(soon, 1)


def test_a_fate_that_cannot_be_read_reserves_the_time_it_was_made(tmp_path: Path) -> None:
    """Its completion time is not known; it was chosen above all in use then."""
    path = unzip_golden("v9_plain", tmp_path)
    storage, instant = LocalStorage(str(path)), "20980101000000000"
    open_next(storage, instant, "a")
    fate = path / attempt_folder(instant, 1) / FATE
    fate.write_bytes(b"{")
    os.utime(fate, (4_100_000_000, 4_100_000_000))
    assert max(used_times(path))[:4] == "2099"
