"""Which blocks of a slice count: every row of hudi-format.md 6.2, with log compaction and rollbacks.

A log is written as words: `10` a data block of instant 10, `del10` a delete block, `cdc10` change data, `!`
a corrupt block, `-10` a rollback of 10, `30(10,20)` a block of instant 30 that replaces those of 10 and 20."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.log_block import (
    BlockKind,
    HeaderKey,
    LogBlock,
    Selection,
    Skipped,
    Visibility,
    select_blocks,
)
from tests.support.selection import for_each

EVERYTHING = Visibility(latest="99", completed=frozenset(), pending=frozenset(), start="", by_file=True)
_WORD = re.compile(r"(?P<kind>-|del|cdc|parquet|hfile)?(?P<instant>\d+)(?:\((?P<compacted>[\d,]+)\))?")
_KINDS = {
    "-": BlockKind.COMMAND,
    "del": BlockKind.DELETE,
    "cdc": BlockKind.CDC_DATA,
    "parquet": BlockKind.PARQUET_DATA,
    "hfile": BlockKind.HFILE_DATA,
}


def block(word: str, at: int) -> LogBlock:
    if word == "!":
        return LogBlock(path=word, offset=at, kind=BlockKind.CORRUPT)
    match = _WORD.fullmatch(word)
    assert match is not None, word
    instant, compacted = match["instant"], match["compacted"]
    kind = _KINDS.get(match["kind"] or "", BlockKind.AVRO_DATA)
    headers = {HeaderKey.INSTANT_TIME: instant}
    if kind is BlockKind.COMMAND:
        # The rollback's own instant is later than all: it must not hide the command.
        headers = {HeaderKey.INSTANT_TIME: "999", HeaderKey.TARGET_INSTANT_TIME: instant}
    if compacted:
        headers[HeaderKey.COMPACTED_BLOCK_TIMES] = compacted
    return LogBlock(path=word, offset=at, kind=kind, headers=headers)


def select(log: str, visibility: Visibility = EVERYTHING) -> Selection:
    return select_blocks([block(word, at) for at, word in enumerate(log.split())], visibility)


def kept(log: str, visibility: Visibility = EVERYTHING) -> str:
    return " ".join(b.path for b in select(log, visibility).blocks)


def skipped(log: str, visibility: Visibility = EVERYTHING) -> list[tuple[str, Skipped]]:
    return [(b.path, reason) for b, reason in select(log, visibility).skipped]


# --- visibility -------------------------------------------------------------------------------------------------


def test_all_kinds_of_entries_keep_their_order() -> None:
    """Data and delete blocks of one instant stay in file order."""
    assert kept("10 del10 parquet20 hfile20 del30") == "10 del10 parquet20 hfile20 del30"


def test_corrupt_blocks_are_skipped() -> None:
    """Whatever stands in a torn block is lost; what stands around it is not."""
    assert kept("10 ! 20") == "10 20"
    assert skipped("10 ! 20") == [("!", Skipped.CORRUPT)]


def test_change_data_is_skipped() -> None:
    """Change-data blocks repeat what data blocks say."""
    assert kept("10 cdc10") == "10"
    assert skipped("10 cdc10") == [("cdc10", Skipped.CHANGE_DATA)]


V6 = Visibility(
    latest="60", completed=frozenset({"40", "60", "70"}), pending=frozenset({"20", "50"}), start="30", by_file=False
)


@for_each(
    [
        ("40", None),
        ("60", None),
        ("70", Skipped.NOT_YET),
        ("50", Skipped.UNCOMMITTED),
        ("55", Skipped.UNCOMMITTED),
        ("30", Skipped.UNCOMMITTED),
        ("10", None),
        ("20", Skipped.UNCOMMITTED),
    ]
)
def test_v6_visibility(instant: str, reason: Skipped | None) -> None:
    """Completed, or older than the timeline and not pending in it (archived); nothing newer than the query."""
    assert kept(instant, V6) == ("" if reason else instant)
    assert skipped(instant, V6) == ([(instant, reason)] if reason else [])
    assert kept(f"del{instant}", V6) == ("" if reason else f"del{instant}")


def test_a_newer_block_does_not_hide_what_is_behind_it() -> None:
    """0.15 stops reading at a newer block; we go on, as 1.x does."""
    assert kept("40 70 40 60", V6) == "40 40 60"


def test_hidden_instants_never_count() -> None:
    """A reader at an earlier completion time: the file counts, one instant in it does not yet."""
    hidden = replace(EVERYTHING, hidden=frozenset({"40"}))
    assert kept("30 40 50", hidden) == "30 50"
    assert skipped("40", hidden) == [("40", Skipped.NOT_YET)]


def test_v8_judges_by_the_query_instant_and_what_is_pending() -> None:
    """The view has dropped files of instants that are not completed; as-of still applies. A file that is named after a
    resize of buckets can have a block of a write that is not completed."""
    v8 = Visibility(latest="60", completed=frozenset(), pending=frozenset({"50"}), start="30", by_file=True)
    assert kept("10 30 40 50 60 61", v8) == "10 30 40 60"
    assert skipped("50 61", v8) == [("50", Skipped.UNCOMMITTED), ("61", Skipped.NOT_YET)]


# --- rollback ---------------------------------------------------------------------------------------------------


def test_a_rollback_revokes_what_was_read_of_its_target() -> None:
    """All blocks of the target so far, and of no other instant; its own instant is not looked at."""
    assert kept("10 20 del20 30 -20") == "10 30"
    assert skipped("10 20 del20 -20") == [("20", Skipped.ROLLED_BACK), ("del20", Skipped.ROLLED_BACK)]
    assert kept("10 -20") == "10"


def test_a_rollback_reaches_a_completed_instant() -> None:
    """A command block counts although the delta commit's file says completed."""
    assert kept("40 60 -60", V6) == "40"


def test_blocks_behind_a_rollback_are_another_attempts() -> None:
    """The same instant may write again behind its rollback, and then stands where it wrote again."""
    assert kept("10 20 30 -10 10") == "20 30 10"


def test_a_rollback_without_a_target_is_malformed() -> None:
    """Its meaning is in the header alone."""
    command = LogBlock(path="p", offset=0, kind=BlockKind.COMMAND, headers={HeaderKey.INSTANT_TIME: "20"})
    with pytest.raises(MalformedError, match="TARGET_INSTANT_TIME"):
        select_blocks([command], EVERYTHING)


def test_a_block_without_an_instant_is_malformed() -> None:
    """It cannot be judged."""
    with pytest.raises(MalformedError, match="INSTANT_TIME"):
        select_blocks([LogBlock(path="p", offset=0, kind=BlockKind.AVRO_DATA)], EVERYTHING)


# --- log compaction ---------------------------------------------------------------------------------------------


@for_each(
    [
        # The compacted block takes the place of the newest block it replaces, and those fall out.
        ("10 20 30(10,20)", "30(10,20)"),
        ("10 20 25 30(10,20)", "30(10,20) 25"),
        ("10 15 20 25 30(10,20)", "15 30(10,20) 25"),
        ("10 15 30(10)", "30(10) 15"),
        # All blocks of a replaced instant fall out, all blocks of the compacted instant move.
        ("10 del10 20 30(10) del30(10)", "30(10) del30(10) 20"),
        # What is written behind a compaction stays behind it.
        ("10 20 30(10,20) 40", "30(10,20) 40"),
        # A compacted block compacted again: the chain is followed to its end.
        ("10 20 30(10,20) 40 50(30,40)", "50(30,40)"),
        ("10 20 30(10,20) 40 45 50(30,40)", "50(30,40) 45"),
        ("10 20 30(10,20) 50(30)", "50(30)"),
        # Some originals were cleaned away.
        ("20 25 30(10,20)", "30(10,20) 25"),
        # Two compactions beside each other.
        ("10 20 30 40(10) 50(30)", "40(10) 20 50(30)"),
        # None of the originals is there: they were compacted, with what came behind them, and their rows are older.
        ("30(10,20) 40", "40"),
        ("25 30(10,20) 40", "25 40"),
        # Blocks of one instant stand together, where the first of them stands.
        ("10 20 10", "10 10 20"),
    ]
)
def test_log_compaction(log: str, expected: str) -> None:
    """Placement of compacted blocks, as Hudi 1.x scans."""
    assert kept(log) == expected
    missing = set(log.split()) - set(expected.split())
    assert {(word, Skipped.LOG_COMPACTED) for word in missing} == set(skipped(log))


def test_log_compaction_chain_goes_to_the_place_of_an_original() -> None:
    """1.x never places anything where a compacted block stood: 40 replaces 30, and so 10, and stands there."""
    assert kept("10 20 30(10) 40(30)") == "40(30) 20"


def test_a_rolled_back_log_compaction_replaces_nothing() -> None:
    """The compaction at 30 was revoked: the originals count again."""
    assert kept("10 20 30(10,20) -30") == "10 20"


def test_a_hidden_log_compaction_replaces_nothing() -> None:
    """As of 25 the compaction at 30 has not happened; nor has one that is not completed."""
    as_of = Visibility(latest="25", completed=frozenset(), pending=frozenset(), start="", by_file=True)
    assert kept("10 20 30(10,20)", as_of) == "10 20"
    pending = Visibility(
        latest="99", completed=frozenset({"10", "20"}), pending=frozenset({"30"}), start="10", by_file=False
    )
    assert kept("10 20 30(10,20)", pending) == "10 20"


def test_a_rolled_back_original_does_not_attract_its_compaction() -> None:
    """20 was revoked before: 30 stands at 10, the newest of its originals that is there."""
    assert kept("10 15 20 -20 30(10,20)") == "30(10,20) 15"


@pytest.mark.parametrize("log", ["10(10)", "10(20) 20(10)", "10(20) 20(30) 30(10) 40"])
def test_circular_log_compactions_end(log: str) -> None:
    """Headers that replace each other in a circle do not hang the reader."""
    select(log)


def hudi(words: list[str]) -> list[str]:
    """The scan of Hudi 1.2 (BaseHoodieLogRecordReader.scanInternal) on data blocks, one block an instant."""
    final: dict[str, str] = {}
    placed: list[str] = []
    by_instant = {re.split(r"\(", w)[0]: w for w in words}
    for instant in reversed(by_instant):
        word = by_instant[instant]
        if "(" in word:
            for original in word[:-1].split("(")[1].split(","):
                final[original] = final.get(instant, instant)
        elif instant not in final:
            placed.append(word)
        elif by_instant[final[instant]] not in placed:
            placed.append(by_instant[final[instant]])
    return placed[::-1]


@settings(deadline=None)
@given(st.data())
def test_log_compaction_as_the_scan_of_hudi(data: st.DataObject) -> None:
    """Random logs with compactions of what stands in front of them, compacted or not, end as Hudi scans them."""
    words: list[str] = []
    open_: list[str] = []
    for i in range(10, 10 + data.draw(st.integers(0, 9))):
        originals = data.draw(st.lists(st.sampled_from(open_), unique=True, max_size=3)) if open_ else []
        words.append(f"{i}({','.join(originals)})" if originals else str(i))
        open_ = [o for o in open_ if o not in originals] + [str(i)]
    assert kept(" ".join(words)).split() == hudi(words)
    assert len(select(" ".join(words)).skipped) + len(hudi(words)) == len(words)
