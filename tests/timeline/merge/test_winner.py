"""Which log entry of a key wins, in all four merge modes: real Hudi's answers by name, and a row-by-row model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.log_fold import EntryKind, winners
from tests.support.builders import INTEGER_0, HudiFails, Kind, LogEntry, reference_log
from tests.support.selection import for_each

KINDS = {Kind.ROW: EntryKind.ROW, Kind.DELETED_ROW: EntryKind.DELETED_ROW, Kind.DELETE: EntryKind.DELETE}
ZERO_X = (MergeMode.OVERWRITE_WITH_LATEST_0X, MergeMode.EVENT_TIME_0X, MergeMode.EVENT_TIME_AVRO_0X)


def entry(text: str) -> LogEntry:
    """`upd5`, `isdel5`, `del5` on a long column; `del0`, `isdel-` are natural (Integer 0)."""
    kind = next(k for k in (Kind.DELETED_ROW, Kind.DELETE, Kind.ROW) if text.startswith(k.value))
    value = text.removeprefix(kind.value)
    natural = value == "-" or text == "del0"
    return LogEntry(kind=kind, order=INTEGER_0 if natural else ("Long", int(value)), label=text)


def winner(mode: MergeMode, entries: Sequence[LogEntry]) -> str:
    """The label of the winning entry of one key."""
    return entries[winners_of(mode, [0] * len(entries), entries)[0]].label


def winners_of(mode: MergeMode, codes: Sequence[int], entries: Sequence[LogEntry]) -> list[int]:
    natural = [e.commit_time_delete for e in entries]
    return [
        int(i)
        for i in winners(
            mode,
            np.array(codes, np.int64),
            np.array([KINDS[e.kind] for e in entries], np.uint8),
            np.array(natural, np.bool_),
            np.array([rank(e, mode) for e in entries], np.int64),
            len(set(codes)),
        )
    ]


def rank(e: LogEntry, mode: MergeMode) -> int:
    """The ordering value; that of a natural delete must not matter: as the greatest of all it would show."""
    hidden = e.commit_time_delete and (mode is MergeMode.EVENT_TIME or e.kind is Kind.DELETE)
    return 99 if hidden else int(e.order[1])


@for_each(
    [
        # The greatest ordering value wins, ties go to the later.
        ("upd5 upd6", "upd6"),
        ("upd6 upd5", "upd6"),
        ("upd5 isdel5", "isdel5"),
        ("isdel5 upd5", "upd5"),
        ("isdel5 upd3", "isdel5"),
        ("upd5 isdel3", "upd5"),
        ("upd-3 upd-5", "upd-3"),
        # A typed delete is one more entry with an ordering value.
        ("upd5 del5", "del5"),
        ("upd6 del5", "upd6"),
        ("del5 upd5", "upd5"),
        ("del5 upd3", "del5"),
        ("del5 upd3 upd4", "del5"),
        ("del5 del3", "del5"),
        ("del3 del5", "del5"),
        # A natural delete beats all before it, and any row beats it.
        ("upd9 del0", "del0"),
        ("del9 del0", "del0"),
        ("del0 upd2", "upd2"),
        ("upd9 del0 upd2", "upd2"),
        ("upd9 del0 upd2 upd1", "upd2"),
        # Behind a natural delete a delete block changes nothing, a row marked deleted does.
        ("del0 del5", "del0"),
        ("del0 del5 upd2", "upd2"),
        ("del0 isdel5", "isdel5"),
        ("del0 del5 isdel2", "isdel2"),
        # ... until a row has come in between.
        ("del0 upd2 del5", "del5"),
        ("del0 upd2 del1", "upd2"),
        ("del0 del9 upd2 del5", "del5"),
        # A row marked deleted without an ordering value is a natural delete too.
        ("upd9 isdel-", "isdel-"),
        ("isdel- upd2", "upd2"),
        ("isdel- del5", "isdel-"),
        ("del0 isdel-", "isdel-"),
        ("del0 del0", "del0"),
    ]
)
def test_event_time(log: str, expected: str) -> None:
    """Hudi 1.2.0, EVENT_TIME_ORDERING: what its merger does between log entries."""
    entries = [entry(e) for e in log.split()]
    assert reference_log(MergeMode.EVENT_TIME, entries).label == expected
    assert winner(MergeMode.EVENT_TIME, entries) == expected


@for_each(
    [
        ("upd5 upd6", "upd6"),
        ("upd6 upd5", "upd6"),
        ("upd5 isdel5", "isdel5"),
        ("isdel5 upd3", "isdel5"),
        ("upd5 isdel3", "upd5"),
        # A delete takes effect unless a row since the last effective delete is greater.
        ("upd5 del5", "del5"),
        ("upd6 del5", "upd6"),
        ("upd6 del5 upd3", "upd6"),
        ("upd9 del0", "del0"),
        # Any row beats an effective delete, a smaller one too.
        ("del5 upd3", "upd3"),
        ("del0 isdel5", "isdel5"),
        ("del5 isdel3 upd4", "upd4"),
        ("del5 upd3 upd2", "upd3"),
        # Rows before an effective delete are forgotten: `upd4` may lose to nothing but `upd3` behind it.
        ("upd4 del5 upd1 del2 upd0", "upd0"),
        ("upd4 del5 upd3 del2 upd2", "upd3"),
        ("upd4 del4 upd3 del3 upd2 del2 upd1", "upd1"),
        ("upd9 del5 del9 upd1", "upd1"),
    ]
)
def test_hudi_0x(log: str, expected: str) -> None:
    """Hudi 0.15, either payload class: what its log scanner does between log entries."""
    entries = [entry(e) for e in log.split()]
    for mode in ZERO_X:
        assert reference_log(mode, entries).label == expected, mode
        assert winner(mode, entries) == expected, mode


@for_each(["upd6 upd5", "upd6 del5", "del0 upd1", "upd9 isdel1", "del5 del3", "isdel9 upd1"])
def test_commit_time_takes_the_last_entry(log: str) -> None:
    """Under COMMIT_TIME_ORDERING ordering values and deletes do not matter."""
    assert winner(MergeMode.COMMIT_TIME, [entry(e) for e in log.split()]) == log.split()[-1]


long_entries = st.builds(LogEntry, kind=st.sampled_from(Kind), order=st.integers(-3, 4).map(lambda v: ("Long", v)))
int_entries = st.builds(LogEntry, kind=st.sampled_from(Kind), order=st.integers(-3, 4).map(lambda v: ("Integer", v)))
natural_entries = st.builds(
    LogEntry, kind=st.sampled_from([Kind.DELETE, Kind.DELETED_ROW]), order=st.just(INTEGER_0), null=st.just(True)
)
natural_deletes = st.just(LogEntry(kind=Kind.DELETE, order=INTEGER_0))


@st.composite
def logs(draw: st.DrawFn, mode: MergeMode) -> list[tuple[int, LogEntry]]:
    """Entries of up to four keys, on a long column (natural ones apart) or an int column (0 is natural)."""
    kinds = [int_entries] if draw(st.booleans()) else [long_entries, natural_deletes]
    if mode is MergeMode.EVENT_TIME and len(kinds) > 1:
        kinds.append(natural_entries)
    drawn = draw(st.lists(st.tuples(st.integers(0, 3), st.one_of(kinds)), max_size=30))
    names: dict[int, int] = {}
    return [(names.setdefault(code, len(names)), replace(e, label=str(i))) for i, (code, e) in enumerate(drawn)]


@pytest.mark.parametrize("mode", list(MergeMode))
@settings(deadline=None)
@given(data=st.data())
def test_every_sequence_ends_as_in_the_model(mode: MergeMode, data: st.DataObject) -> None:
    """Random entry sequences of several keys have the winners the row-by-row model has."""
    log = data.draw(logs(mode))
    codes = [code for code, _ in log]
    found = winners_of(mode, codes, [e for _, e in log])
    for code in sorted(set(codes)):
        own = [i for i, c in enumerate(codes) if c == code]
        try:
            expected = reference_log(mode, [log[i][1] for i in own])
        except HudiFails:
            continue
        winning = log[found[code]][1]
        # Which of several such deletes survives shows nowhere: each deletes whatever base row there is.
        if mode in ZERO_X and expected.kind is Kind.DELETE:
            assert winning.kind is Kind.DELETE
        elif mode is MergeMode.EVENT_TIME and expected.commit_time_delete:
            assert winning.commit_time_delete
        else:
            assert found[code] == next(i for i in own if log[i][1] is expected)
