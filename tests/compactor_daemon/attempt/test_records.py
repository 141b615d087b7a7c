"""Records of ours in storage and ZooKeeper: read leniently, so that two releases can serve one table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.attempt.failures import (
    Failure,
    FailureClass,
    Parked,
    Ready,
    RetryOptions,
    Waits,
    WorkNote,
    classify,
    failure_of,
    read_failures,
    readiness,
    record_failure,
    release_failures,
)
from phantombase.compactor_daemon.attempt.outcome import (
    CommitDecision,
    Placement,
    cancelled_record,
    dead_record,
    declare_dead,
    find_decision,
    open_next,
    read_outcome,
    read_outcomes,
    revoke_decision,
    write_outcome,
)
from phantombase.compactor_daemon.attempt.slice_record import SliceDone, done_slices
from phantombase.compactor_daemon.fleet.claims import Claim
from phantombase.compactor_daemon.options import output_from_json, output_to_json
from phantombase.timeline.codec.output_options import Bloom, Codec, OutputOptions
from phantombase.timeline.errors import (
    AttemptDeadError,
    BarrierError,
    ClaimedError,
    ConflictError,
    LedgerError,
    LockError,
    MalformedError,
    MissingFileError,
    SparkError,
    StalePlanError,
    StoppedError,
    StorageError,
    TableChangedError,
    UnknownStateError,
)
from phantombase.timeline.format.instant import format_time
from phantombase.timeline.format.instant import later as fates_later
from phantombase.timeline.format.ledger import Identity, Ledger
from phantombase.timeline.instants.reserved_times import (
    CANCELLED,
    COMMITTED,
    DEAD,
    OUTCOME,
    attempt_folder,
    attempts,
    reserve,
)
from phantombase.timeline.locks.heartbeat import Process, heartbeat_path, read_heartbeat
from phantombase.timeline.metadata_table.column_range import ColumnRange, ranges_from_json, ranges_to_json
from phantombase.timeline.metadata_table.indexed_columns import Kind, ValueType
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden
from tests.support.selection import for_each

C = "20261122130000000"
LEDGER = Ledger(
    base_rows=2,
    untouched=1,
    kept=0,
    replaced=1,
    deleted=0,
    duplicate_hits=0,
    log_entries=1,
    log_keys=1,
    update_keys=1,
    update_keys_in_base=1,
    delete_keys_in_base=0,
    inserts=0,
    deletes_of_absent=0,
    rows_out=2,
    identity=Identity(base=1, removed=0, added=0, out=1),
)
DONE = SliceDone(
    position=3,
    partition="p",
    file_id="f",
    base_instant="1",
    base_file="f_0-0-0_1.parquet",
    inputs=("a", "b"),
    fingerprint="x",
    staged="s.parquet",
    final="p/f.parquet",
    size=7,
    ledger=LEDGER,
    log_bytes=1,
    log_files=1,
    log_blocks=1,
    corrupt_blocks=0,
    rolled_back_blocks=0,
    skipped={"uncommitted": 1},
    seconds=0.5,
    ranges=(ColumnRange(column="v", type=ValueType(kind=Kind.LONG), low=1, high=2, nulls=0, values=2),),
    uncommitted=("9",),
    output=OutputOptions(codec=Codec.NONE, memory_limit=64 << 20),
)
GONE = CommitDecision(
    instant=C,
    attempt=1,
    nonce="n",
    table_version=9,
    completion_time="20261122130500000",
    completed_path=".hoodie/timeline/c.commit",
    content=b"\x00commit",
    placements=(Placement(staged="s.parquet", final="p/f.parquet", size=7, output=OutputOptions(bloom=Bloom.OFF)),),
)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """An empty one."""
    return LocalStorage(str(tmp_path))


def later(record: Any) -> Any:
    """The record with a field more in each of its objects, as a later release may write it."""
    if isinstance(record, dict):
        return {**{k: later(v) for k, v in record.items()}, "of_a_later_release": {"x": [1]}}
    return [later(one) for one in record] if isinstance(record, list) else record


def _of_decision(storage: Storage, data: bytes) -> object:
    storage.put_if_absent(f"{attempt_folder(C, 1)}/{OUTCOME}", data)
    outcome = read_outcome(storage, C, 1)
    return outcome.decision if outcome is not None else None


def _of_slice(storage: Storage, data: bytes) -> object:
    return SliceDone.from_json(data, "1/3.ok")


@pytest.mark.parametrize(
    "change",
    [{"codec": "brotli"}, {"codec": None}, {"batch_rows": "many"}, {"row_group_rows": 0}, {"memory_limit": None}],
)
def test_output_options_that_are_not_understood_leave_a_decision_readable(
    storage: Storage, change: dict[str, object]
) -> None:
    """They serve to make a lost file again; the decision itself needs none."""
    record = json.loads(GONE.to_json())
    record["placements"][0]["output"] |= change
    (plain,) = (replace(p, output=None) for p in GONE.placements)
    assert _of_decision(storage, json.dumps(record).encode()) == replace(GONE, placements=(plain,))


def test_records_of_an_earlier_release_have_no_output_options(storage: Storage) -> None:
    """Neither a `commit` nor a finished slice."""
    decision, slice_ = json.loads(GONE.to_json()), json.loads(DONE.to_json())
    del decision["placements"][0]["output"], slice_["output"]
    (plain,) = (replace(p, output=None) for p in GONE.placements)
    assert _of_decision(storage, json.dumps(decision).encode()) == replace(GONE, placements=(plain,))
    assert _of_slice(storage, json.dumps(slice_).encode()) == replace(DONE, output=None)


def test_a_spill_folder_that_is_not_on_this_machine_is_left_out(tmp_path: Path) -> None:
    """Another machine may publish what one has decided."""
    output = OutputOptions(spill_dir=str(tmp_path))
    assert output_from_json(output_to_json(output)) == output
    tmp_path.rmdir()
    assert output_from_json(output_to_json(output)) == OutputOptions()


def test_fields_of_a_later_release_are_ignored(storage: Storage) -> None:
    """A `commit`, with its placements, a finished slice, with ledger and ranges, read as without them."""
    assert _of_decision(storage, json.dumps(later(json.loads(GONE.to_json()))).encode()) == GONE
    slice_ = json.loads(DONE.to_json())
    more = {**later(slice_), "skipped": slice_["skipped"]}  # names there are causes, not fields
    assert _of_slice(storage, json.dumps(more).encode()) == DONE
    counts = json.loads(DONE.to_json())["ranges"]
    counts[0]["counts"].append(99)
    assert ranges_from_json(counts) == DONE.ranges
    assert ranges_from_json(ranges_to_json(DONE.ranges)) == DONE.ranges


def test_a_slice_record_of_an_earlier_release() -> None:
    """What it does not say is not known; what is said to be none is none."""
    later_fields = ("ranges", "uncommitted", "merged")
    record = {k: v for k, v in json.loads(DONE.to_json()).items() if k not in later_fields}
    unknown = replace(DONE, ranges=None, uncommitted=None, merged=None)
    assert SliceDone.from_json(json.dumps(record).encode(), "1/3.ok") == unknown
    none = replace(DONE, uncommitted=(), merged=())
    assert SliceDone.from_json(none.to_json(), "1/3.ok") == none


@pytest.mark.parametrize(("record", "read"), [(GONE, _of_decision), (DONE, _of_slice)])
def test_a_known_field_that_is_absent_or_of_another_type_is_an_error(
    record: CommitDecision | SliceDone, read: Callable[[Storage, bytes], object], tmp_path: Path
) -> None:
    """It names the file, and what ends the state; the record as it is reads."""
    fields = json.loads(record.to_json())
    lenient = {"output"}  # see `output_from_json`
    optional = {"ranges", "uncommitted", "merged", "oldest", "passed", *lenient}  # not known to earlier releases
    nullable = {"completion_time", "base_instant", "base_file", "staged", "final"}
    assert read(LocalStorage(str(tmp_path / "whole")), json.dumps(fields).encode()) == record
    broken = [{k: v for k, v in fields.items() if k != name} for name in fields.keys() - optional]
    broken += [{**fields, name: True} for name in fields.keys() - lenient]
    broken += [{**fields, name: None} for name in fields.keys() - optional - nullable]
    for number, one in enumerate(broken):
        with pytest.raises(MalformedError) as error:
            read(LocalStorage(str(tmp_path / str(number))), json.dumps(one).encode())
        assert error.value.path is not None
        assert error.value.todo


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"outcome": "paused", "nonce": "n"}', b'{"outcome": "commit"}', b"\xff\xfe"]
)
def test_an_unreadable_outcome_names_the_command_that_ends_it(storage: Storage, data: bytes) -> None:
    """Nothing is decided anew: not by opening, not by declaring dead."""
    storage.put_if_absent(f"{attempt_folder(C, 1)}/{OUTCOME}", data)
    for do in (
        lambda: find_decision(storage, C),
        lambda: declare_dead(storage, C, "x"),
        lambda: open_next(storage, C, "x"),
    ):
        with pytest.raises(MalformedError, match="release TABLE INSTANT --unreadable"):
            do()
    assert attempts(storage, C) == (1,)


def test_an_unreadable_outcome_behind_which_an_attempt_was_opened_was_not_go(storage: Storage) -> None:
    """Nobody opens one where a outcome is `commit` or missing, so the earlier one is known to be over."""
    number = open_next(storage, C, "x")
    write_outcome(storage, C, number, dead_record("n", "x"), "n")
    assert open_next(storage, C, "x") == 2
    storage.overwrite(f"{attempt_folder(C, 1)}/{OUTCOME}", b"")
    assert [f.kind if f else None for f in read_outcomes(storage, C).values()] == [DEAD, None]
    assert find_decision(storage, C) is None
    assert declare_dead(storage, C, "x") == [2]
    assert open_next(storage, C, "x") == 3
    with pytest.raises(ConflictError):
        open_next(storage, C, "x")
    assert {DEAD, CANCELLED, COMMITTED} >= {f.kind for f in read_outcomes(storage, C).values() if f is not None}


def test_a_finished_slice_whose_record_is_unreadable_is_not_finished(storage: Storage) -> None:
    """It is merged again; the others are adopted."""
    folder = attempt_folder(C, 1)
    storage.put_if_absent(f"{folder}/3.ok", DONE.to_json())
    storage.put_if_absent(f"{folder}/4.ok", b"")
    assert done_slices(storage, C, 1) == {3: DONE}


def test_failures_of_a_later_release_count_as_any(storage: Storage) -> None:
    """One that cannot be read parks the instant, and is released by name."""
    failure = Failure(at_ms=5, error="StorageError", what="full", who="h:1")
    record_failure(storage, C, failure)
    path = f".hoodie/.phantombase/{C}/failures/1"
    storage.overwrite(path, json.dumps(later(json.loads(storage.read(path)))).encode())
    assert read_failures(storage, C) == (failure,)
    storage.overwrite(path, b"")
    (unreadable,) = read_failures(storage, C)
    assert unreadable.park
    assert "release TABLE INSTANT" in unreadable.what
    assert release_failures(storage, C) == 1


def test_claims_and_heartbeats_of_a_later_release_show_who_works() -> None:
    """Their notes too."""
    claim = Claim.of_this_process(C, "me")
    assert Claim.from_json(json.dumps(later(json.loads(claim.to_json()))).encode(), C) == claim
    assert Claim.from_json(b"[]", C).holder == "unknown"


def test_heartbeats_of_a_later_release_show_who_works(storage: Storage) -> None:
    """Process and note are known."""
    me, note = Process.current(), WorkNote(attempt=2, since_ms=3)
    fields = {"boot": me.boot, "host": me.host, "pid": me.pid, "started": me.started, "note": note.to_note(), "new": 1}
    storage.put_if_absent(heartbeat_path(C), b"phantombase\n" + json.dumps(later(fields)).encode())
    beat = read_heartbeat(storage, C)
    assert beat is not None
    assert beat.owner == me
    assert WorkNote.from_note(beat.note) == note


# Records of attempts: an outcome is written once and known by its nonce, and what cannot be read is no "none".


OUTCOMES_C = "20260101000000000"


@pytest.fixture
def fates_storage(tmp_path: Path) -> LocalStorage:
    """An instant without records."""
    return LocalStorage(str(tmp_path))


def a_decision(attempt: int, nonce: str = "mine", completion: str | None = None) -> CommitDecision:
    """A decision without files."""
    return CommitDecision(
        instant=OUTCOMES_C,
        attempt=attempt,
        nonce=nonce,
        table_version=9,
        completion_time=completion,
        completed_path=f".hoodie/timeline/{OUTCOMES_C}_x.commit",
        content=b"commit",
    )


def decide_commit(storage: LocalStorage, attempt: int, completion: str | None = None) -> CommitDecision:
    """Writes a decision."""
    decision = a_decision(attempt, completion=completion)
    write_outcome(storage, OUTCOMES_C, attempt, decision.to_json(), decision.nonce)
    return decision


def at_put(storage: LocalStorage, instead: Callable[[Call], Any]) -> HookedStorage:
    """A storage whose `put_if_absent` of a outcome does something else."""

    def hook(call: Call) -> Any:
        return instead(call) if call.name == "put_if_absent" and call.path.endswith(OUTCOME) else call.do()

    return HookedStorage(storage, hook)


def outcome_of(storage: LocalStorage, attempt: int) -> str | None:
    """What an attempt's outcome is."""
    outcome = read_outcome(storage, OUTCOMES_C, attempt)
    return None if outcome is None else outcome.kind


# --- one outcome
# -------------------------------------------------------------------------------------------------------


def test_the_second_outcome_is_an_error_and_the_first_stays(fates_storage: LocalStorage) -> None:
    """Also of the same kind: a nonce says whose it is."""
    open_next(fates_storage, OUTCOMES_C, "a")
    write_outcome(fates_storage, OUTCOMES_C, 1, dead_record("theirs", "b"), "theirs")
    for record in (a_decision(1).to_json(), dead_record("mine", "a")):
        with pytest.raises(AttemptDeadError, match=r"another process wrote the outcome.*dead"):
            write_outcome(fates_storage, OUTCOMES_C, 1, record, "mine")
    assert outcome_of(fates_storage, 1) == DEAD
    write_outcome(
        fates_storage, OUTCOMES_C, 1, dead_record("theirs", "b"), "theirs"
    )  # a put that was tried again finds its own record


def test_a_put_that_took_effect_and_failed_has_decided(fates_storage: LocalStorage) -> None:
    """Its nonce is there: the decision stands, and is published."""

    def fail(call: Call) -> None:
        call.do()
        raise StorageError("injected")

    open_next(fates_storage, OUTCOMES_C, "a")
    write_outcome(at_put(fates_storage, fail), OUTCOMES_C, 1, a_decision(1).to_json(), "mine")
    assert find_decision(fates_storage, OUTCOMES_C) == a_decision(1)


@pytest.mark.parametrize("first", [None, "theirs"])
def test_a_put_that_failed_decides_nothing(fates_storage: LocalStorage, first: str | None) -> None:
    """Nothing is there, or another's record: nobody goes on as if it were ours."""

    def fail(call: Call) -> None:
        raise StorageError("injected")

    open_next(fates_storage, OUTCOMES_C, "a")
    if first is not None:
        write_outcome(fates_storage, OUTCOMES_C, 1, dead_record(first, "b"), first)
    with pytest.raises(StorageError, match="injected"):
        write_outcome(at_put(fates_storage, fail), OUTCOMES_C, 1, a_decision(1).to_json(), "mine")
    assert find_decision(fates_storage, OUTCOMES_C) is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"outcome": "live", "nonce": "n"}', b'{"outcome": "commit", "nonce": "n"}', b"{}"]
)
def test_a_outcome_that_cannot_be_read_is_an_error(fates_storage: LocalStorage, text: bytes) -> None:
    """Taken for none it would be decided again, and for dead it would not be published."""
    open_next(fates_storage, OUTCOMES_C, "a")
    fates_storage.put_if_absent(f"{attempt_folder(OUTCOMES_C, 1)}/{OUTCOME}", text)
    for ask in (
        lambda: read_outcome(fates_storage, OUTCOMES_C, 1),
        lambda: find_decision(fates_storage, OUTCOMES_C),
        lambda: open_next(fates_storage, OUTCOMES_C, "b"),
    ):
        with pytest.raises(MalformedError):
            ask()


def test_an_unreadable_outcome_before_the_last_attempt_counts_as_dead(fates_storage: LocalStorage) -> None:
    """None would have been opened behind it else. So does one that was revoked; the last one does not."""
    for number, text in ((1, b"{"), (2, b"{")):
        fates_storage.put_if_absent(f"{attempt_folder(OUTCOMES_C, number)}/open", b"{}")
        fates_storage.put_if_absent(f"{attempt_folder(OUTCOMES_C, number)}/{OUTCOME}", text)
    with pytest.raises(MalformedError):
        open_next(fates_storage, OUTCOMES_C, "a")
    revoke_decision(fates_storage, OUTCOMES_C, 2, "unreadable", "b")
    assert open_next(fates_storage, OUTCOMES_C, "a") == 3
    assert find_decision(fates_storage, OUTCOMES_C) is None


# --- who may open ---------------------------------------------------------------------------------------------------


def test_none_is_opened_beside_one_that_is_undecided_or_decided(fates_storage: LocalStorage) -> None:
    assert open_next(fates_storage, OUTCOMES_C, "a") == 1
    with pytest.raises(ConflictError, match="another attempt is at work"):
        open_next(fates_storage, OUTCOMES_C, "b")
    decide_commit(fates_storage, 1)
    with pytest.raises(ConflictError, match="decided already"):
        open_next(fates_storage, OUTCOMES_C, "b")
    revoke_decision(fates_storage, OUTCOMES_C, 1, "restored", "c")
    assert find_decision(fates_storage, OUTCOMES_C) is None
    assert open_next(fates_storage, OUTCOMES_C, "b") == 2
    assert decide_commit(fates_storage, 2) == find_decision(fates_storage, OUTCOMES_C)


@pytest.mark.parametrize("record", [dead_record, cancelled_record])
def test_one_is_opened_behind_the_dead_and_the_void(
    record: Callable[[str, str], bytes], fates_storage: LocalStorage
) -> None:
    open_next(fates_storage, OUTCOMES_C, "a")
    write_outcome(fates_storage, OUTCOMES_C, 1, record("n", "b"), "n")
    assert open_next(fates_storage, OUTCOMES_C, "b") == 2


def test_of_two_that_open_the_same_one_does(fates_storage: LocalStorage) -> None:
    """Both have listed the attempts before."""
    other = list[int]()

    def overtaken(call: Call) -> Any:
        if call.name == "put_if_absent" and not other:
            other.append(0)
            other.append(open_next(fates_storage, OUTCOMES_C, "b"))
        return call.do()

    with pytest.raises(ConflictError, match="opened the same attempt"):
        open_next(HookedStorage(fates_storage, overtaken), OUTCOMES_C, "a")
    assert other == [0, 1]
    assert attempts(fates_storage, OUTCOMES_C) == (1,)


def test_a_number_is_never_used_again(fates_storage: LocalStorage) -> None:
    """Also where folders of earlier attempts were lost: a zombie's files carry their attempt's number."""
    for number in (1, 2, 3):
        open_next(fates_storage, OUTCOMES_C, "a")
        write_outcome(fates_storage, OUTCOMES_C, number, dead_record("n", "b"), "n")
    for lost in (1, 2):
        fates_storage.delete_folder(attempt_folder(OUTCOMES_C, lost))
    assert open_next(fates_storage, OUTCOMES_C, "b") == 4


def test_every_undecided_attempt_is_declared_dead(fates_storage: LocalStorage) -> None:
    """Two may be open: one opens again while another that had opened sleeps before its record was seen."""
    for number in (1, 2, 10):
        fates_storage.put_if_absent(f"{attempt_folder(OUTCOMES_C, number)}/open", b"{}")
    write_outcome(fates_storage, OUTCOMES_C, 2, cancelled_record("n", "b"), "n")
    assert declare_dead(fates_storage, OUTCOMES_C, "c") == [1, 10]
    assert [outcome_of(fates_storage, n) for n in (1, 2, 10)] == [DEAD, "cancelled", DEAD]
    assert declare_dead(fates_storage, OUTCOMES_C, "c") == []


def test_an_attempt_that_was_decided_meanwhile_is_not_dead(fates_storage: LocalStorage) -> None:
    """Looked at as undecided; its `commit` came first: that is an error, and the `commit` stays."""

    def overtaken(call: Call) -> Any:
        decide_commit(fates_storage, 1)
        return call.do()

    open_next(fates_storage, OUTCOMES_C, "a")
    with pytest.raises(AttemptDeadError, match="commit"):
        declare_dead(at_put(fates_storage, overtaken), OUTCOMES_C, "b")
    assert outcome_of(fates_storage, 1) == COMMITTED


# --- used times -----------------------------------------------------------------------------------------------------


def used_times(path: Path) -> set[str]:
    """Those behind the ordinary ones of a table's timeline."""
    table = open_table(path)
    return set(table.times.reserved(table.load_timeline()))


def test_times_of_tombstones_and_of_every_decision_are_used(tmp_path: Path) -> None:
    """Of each attempt, by a name or, of an earlier release, by its outcome; a revoked one's may be in use by now."""
    path = unzip_golden("v9_plain", tmp_path)
    fates_storage = LocalStorage(str(path))
    instant, tombstone = "20980101000000000", "20970101000000000"
    by_name, by_outcome = "20980101000000007", "20980101000000008"
    for number, completion in ((1, by_name), (2, by_outcome), (3, None)):
        open_next(fates_storage, instant, "a")
        decision = replace(a_decision(number, completion=None if number == 1 else completion), instant=instant)
        write_outcome(fates_storage, instant, number, decision.to_json(), decision.nonce)
        revoke_decision(fates_storage, instant, number, "restored", "b")
    reserve(fates_storage, instant, 1, by_name)
    fates_storage.put_if_absent(f".hoodie/.phantombase/{tombstone}/1/open", b"{}")
    fates_storage.put_if_absent(".hoodie/.phantombase/audit/20990101000000000.json", b"{}")
    assert used_times(path) == {instant, by_name, by_outcome, tombstone}


@pytest.mark.parametrize("chosen", ["next_time", "completion_time", "plan"])
def test_every_time_that_is_chosen_is_above_reserved_ones(chosen: str, tmp_path: Path) -> None:
    """Without that the caller asks for it."""
    path = unzip_golden("v9_plain", tmp_path)
    table = open_table(path)
    soon = format_time(table.now() + timedelta(seconds=20))
    reserve(LocalStorage(str(path)), soon, 1, soon)
    seen = table.snapshot()
    choose: dict[str, Callable[[], str | None]] = {
        "next_time": seen.next_time,
        "completion_time": seen.completion_time,
        "plan": lambda: table.times.next_plan_time(seen.timeline, dry_run=True),
    }
    assert choose[chosen]() == fates_later(soon, 1)


def test_a_outcome_that_cannot_be_read_reserves_the_time_it_was_made(tmp_path: Path) -> None:
    """Its completion time is not known; it was chosen above all in use then."""
    path = unzip_golden("v9_plain", tmp_path)
    fates_storage, instant = LocalStorage(str(path)), "20980101000000000"
    open_next(fates_storage, instant, "a")
    outcome = path / attempt_folder(instant, 1) / OUTCOME
    outcome.write_bytes(b"{")
    os.utime(outcome, (4_100_000_000, 4_100_000_000))
    assert max(used_times(path))[:4] == "2099"


# Failed tries: what counts, how long an instant waits, when it is parked.


OPTIONS = RetryOptions(retries=3, backoff_s=10.0, backoff_max_s=25.0)


def failed(at_ms: int, *, park: bool = False) -> Failure:
    return Failure(at_ms=at_ms, error="StorageError", what="disk full", who="host:1", park=park)


@for_each(
    [
        ([], 0, Ready()),
        ([failed(1000)], 1000, Waits(11_000)),
        ([failed(1000)], 11_000, Ready()),
        ([failed(0), failed(1000)], 20_999, Waits(21_000)),
        ([failed(0), failed(0), failed(1000)], 25_000, Waits(26_000)),  # 40 s, capped
        ([failed(0)] * 4, 10**9, Parked("StorageError: disk full")),
        ([failed(0, park=True)], 10**9, Parked("StorageError: disk full")),
        ([failed(1_000_000)], 1000, Ready()),  # its clock, or ours, was put back
    ]
)
def test_standing(failures: list[Failure], now_ms: int, expected: object) -> None:
    assert readiness(failures, now_ms, OPTIONS) == expected


@given(st.integers(1, 8), st.integers(0, 10**7), st.integers(0, 10**7))
def test_nobody_waits_longer_than_the_longest_backoff(count: int, at_ms: int, now_ms: int) -> None:
    found = readiness([failed(at_ms)] * count, now_ms, RetryOptions(retries=9, backoff_s=7.0, backoff_max_s=60.0))
    assert isinstance(found, Ready) or (isinstance(found, Waits) and 0 < found.until_ms - now_ms <= 120_000)


@for_each(
    [
        (LedgerError("books"), FailureClass.PARK),
        (StorageError("disk full"), FailureClass.RETRY),
        (UnknownStateError("?"), FailureClass.RETRY),
        (MissingFileError("gone"), FailureClass.RETRY),
        (LockError("busy"), FailureClass.RETRY),
        (SparkError("lost"), FailureClass.RETRY),
        (TableChangedError("upgraded"), FailureClass.RETRY),
        (ValueError("a bug"), FailureClass.RETRY),
        (StoppedError("limit"), FailureClass.NOTHING),
        (AttemptDeadError("taken over"), FailureClass.NOTHING),
        (BarrierError("a write pends"), FailureClass.NOTHING),
        (StalePlanError("no neighbours"), FailureClass.PARK),
        (ConflictError("Hudi is at work"), FailureClass.NOTHING),
        (ClaimedError("busy"), FailureClass.NOTHING),
    ]
)
def test_what_counts_as_a_failure(error: Exception, expected: FailureClass) -> None:
    assert classify(error) is expected


def test_failures_are_kept_in_order_and_released(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    assert read_failures(storage, "001") == ()
    for at_ms in range(12):  # more than nine: numbers are no texts
        record_failure(storage, "001", failed(at_ms))
    assert [f.at_ms for f in read_failures(storage, "001")] == list(range(12))
    assert release_failures(storage, "001") == 12
    assert read_failures(storage, "001") == ()
    assert release_failures(storage, "001") == 0


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"at_ms": "soon", "error": "E", "what": "w", "who": "h"}'])
def test_an_unreadable_failure_parks(tmp_path: Path, data: bytes) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put_if_absent(".hoodie/.phantombase/001/failures/1", data)
    assert isinstance(readiness(read_failures(storage, "001"), 10**12, OPTIONS), Parked)


def test_a_failure_says_what_was_found() -> None:
    kept = failure_of(LedgerError("books do not balance", path="p", instant="001"), "host:1", 5)
    assert kept == Failure(
        at_ms=5, error="LedgerError", what="books do not balance; at p; instant 001", who="host:1", park=True
    )
