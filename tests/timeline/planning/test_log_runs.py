"""Pieces of a slice's logs, and which neighbours may be merged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import StalePlanError, UsageError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.log_block import BlockKind, HeaderKey, LogBlock, Visibility
from phantombase.timeline.format.merge_settings import NotGiven
from phantombase.timeline.format.record_key import KeySource
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.gaps import Unset
from phantombase.timeline.merge.rule import MergeRule, SliceRules
from phantombase.timeline.planning.limits import BoundOptions, Cost, Filled, fill
from phantombase.timeline.planning.log_compaction import (
    LogPiece,
    LogRun,
    folds_exactly,
    log_operation,
    log_runs,
    planned_pieces,
)
from phantombase.timeline.view.view import DataFile, FileSlice
from tests.support.selection import for_each

ALL = Visibility(latest="99", completed=frozenset(), pending=frozenset(), start="", by_file=True)


def blocks(log: str) -> Iterator[LogBlock]:
    """Log files `10 20-del 30(10,20) /20 -20`: rows, with `-del` deletes, `(..)` compacted, `-20` a rollback of 20.
    Each word is a file, named by its number in the row; `+` puts two blocks into one."""
    for number, word in enumerate(log.split(), 1):
        for offset, part in enumerate(word.split("+")):
            path = f"d=0/.fg_10.log.{number}_0-0-1"
            if part.startswith("-"):
                headers = {HeaderKey.INSTANT_TIME: "98", HeaderKey.TARGET_INSTANT_TIME: part[1:]}
                yield LogBlock(path=path, offset=offset, kind=BlockKind.COMMAND, headers=headers)
                continue
            found = re.fullmatch(r"(\d+)(?:\((.*)\))?(-del)?", part)
            assert found is not None
            headers = {HeaderKey.INSTANT_TIME: found[1]}
            if found[2]:
                headers[HeaderKey.COMPACTED_BLOCK_TIMES] = found[2]
            kind = BlockKind.DELETE if found[3] else BlockKind.AVRO_DATA
            yield LogBlock(path=path, offset=offset, kind=kind, headers=headers)


def slice_of(log: str) -> FileSlice:
    """The slice with these files."""
    names = (LogFileName(file_id="fg", instant="10", version=n, token="0-0-1") for n in range(1, len(log.split()) + 1))
    logs = tuple(DataFile(partition="d=0", name=name, size=100) for name in names)
    return FileSlice(partition="d=0", file_id="fg", base_instant="10", base=None, logs=logs)


def runs(log: str, *pending: str) -> tuple[LogRun, ...]:
    """Of a slice."""
    return log_runs(slice_of(log), list(blocks(log)), ALL, pending)


def shown(found: tuple[LogRun, ...]) -> str:
    """`[10 20] 30`: runs with their pieces, a run that is the bottom in brackets."""
    texts = (" ".join(p.instant for p in run.pieces) for run in found)
    return " | ".join(f"[{t}]" if run.bottom else t for t, run in zip(texts, found, strict=True))


@for_each(
    [
        ("", "", ""),
        ("10 20 30", "", "[10 20 30]"),
        # A write that began between two others may still come between them.
        ("10 20 30", "25", "[10 20] | 30"),
        ("10 20 30", "15 25", "[10] | 20 | 30"),
        # One that began before all of them will lie under them, one that began after them on top.
        ("10 20 30", "05", "10 20 30"),
        ("10 20 30", "35", "[10 20 30]"),
        # A log compaction stands where its newest original stood.
        ("10 20 30(10,20) 40", "", "[30 40]"),
        ("10 20 25 30(10,20)", "", "[30 25]"),
        ("10 20 30(10,20) 40", "25", "[30] | 40"),
        ("10 20 30(10,20) 40 50(30,40) 60", "55", "[50] | 60"),
        ("10 20 30(10,20) 40", "05", "30 40"),
        # Several files of one instant are one piece; a file of two instants is none.
        ("10 10 20", "", "[10 20]"),
        ("10 20+30 40 50", "", "[10] | 40 50"),
        # Of what was rolled back nothing is left; of what was rolled back in part, not all may be taken.
        ("10 20 -20 30", "", "[10 30]"),
        ("10 20 -20 20 30 40", "", "[10] | 30 40"),
    ]
)
def test_runs(log: str, pending: str, expected: str) -> None:
    """Which pieces may be merged with each other."""
    assert shown(runs(log, *pending.split())) == expected


def test_a_piece_names_what_it_stands_for() -> None:
    """Its own files, and those of all log compactions in it; sizes are of what readers merge."""
    ((piece, last),) = (run.pieces for run in runs("10 20 20 30(10,20) 40-del 50(30,40)+50(30,40)-del 60"))
    assert [f.name.version for f in piece.files] == [6]
    assert sorted(f.name.version for f in piece.replaced) == [1, 2, 3, 4, 5]
    assert (piece.log_bytes, piece.place, piece.deletes) == (100, "40", True)
    assert (last.instant, last.deletes) == ("60", False)


def test_the_plan_of_pieces_finds_them_again() -> None:
    """Whatever came behind them since."""
    log = "10 20 30(10,20) 40 50"
    (run,) = runs(log)
    operation = log_operation(slice_of(log), run.pieces[:2])
    assert [LogFileName.parse(n).version for n in operation.delta_file_paths] == [1, 2, 3, 4]
    assert planned_pieces(runs(log + " 60 70"), operation, "C") == (run.pieces[:2], True)
    assert planned_pieces(runs(log + " 60", "05"), operation, "C") == (run.pieces[:2], False)
    upper = log_operation(slice_of(log), run.pieces[1:])
    assert planned_pieces(runs(log), upper, "C") == (run.pieces[1:], False)


@pytest.mark.parametrize(
    ("names", "log", "pending"),
    [
        ((1, 2), "10 20 30", "15"),  # a write may come between
        ((1, 3), "10 20 30", ""),  # not neighbours
        ((1, 2), "10 20 20 30", ""),  # a file of 20 is left out
        ((1, 2), "10 20 30(10)", ""),  # somebody merged 10 with others
    ],
)
def test_what_are_no_neighbours_is_refused(names: tuple[int, ...], log: str, pending: str) -> None:
    """By whoever executes a plan, as by whoever requests it."""
    slice_ = slice_of(log)
    operation = log_operation(slice_, runs("10 20")[0].pieces)
    named = tuple(str(f.name) for f in slice_.logs if f.name.version in names)
    with pytest.raises(StalePlanError, match="cannot be merged with each other"):
        planned_pieces(runs(log, *pending.split()), replace(operation, delta_file_paths=named), "C")


COLUMNS = {"plain": ["id", "ts"], "marked": ["id", "ts", "_hoodie_is_deleted"], "lacking": ["id", "ts"]}


@pytest.mark.parametrize(
    ("mode", "columns", "log", "bottom", "expected"),
    [
        # Rows that lack columns may take them from below, unless a delete in between forgets these.
        (MergeMode.COMMIT_TIME, "lacking", "10 20", True, False),
        (MergeMode.COMMIT_TIME, "marked", "10-del 20", False, True),
        (MergeMode.EVENT_TIME, "plain", "10 20", False, True),
        (MergeMode.EVENT_TIME, "plain", "10-del 20", True, True),
        # A delete without an ordering value, beaten by a row: that row would lose against an older one below.
        (MergeMode.EVENT_TIME, "plain", "10-del 20", False, False),
        (MergeMode.EVENT_TIME, "marked", "10 20", True, False),
        # Readers of 0.15 and 1.x would not agree.
        (MergeMode.EVENT_TIME_0X, "plain", "10 20", True, False),
        (MergeMode.OVERWRITE_WITH_LATEST_0X, "plain", "10 20", True, False),
    ],
)
def test_what_is_folded(mode: MergeMode, columns: str, log: str, bottom: bool, expected: bool) -> None:
    """Only what readers cannot tell from all its entries."""
    rules = SliceRules(
        schema=pa.schema([(name, pa.string()) for name in COLUMNS[columns]]),
        keys=KeySource.of(True, ("id",)),
        ordering_fields=("ts",),
        merge=MergeRule(
            mode=mode, ordering_types=(pa.string(),), unset=Unset(values=NotGiven()) if columns == "lacking" else None
        ),
        visibility=ALL,
        float_text_in_logs=True,
    )
    pieces: tuple[LogPiece, ...] = runs(log)[0].pieces
    assert folds_exactly(rules, pieces, bottom=bottom) is expected
    assert not folds_exactly(rules, [replace(piece, partial=True) for piece in pieces], bottom=bottom)


# Filling plans: literal costs in, plans out. A candidate is a name and a size in bytes, like `a5`.


def cost_of(candidate: str) -> Cost:
    """A slice of so many bytes, twice as much to read and write, a tenth as many rows."""
    size = int(candidate[1:])
    return Cost(slices=1, source_bytes=size, io_bytes=2 * size, rows=size // 10)


def filled(candidates: Iterable[str], **said: Any) -> Filled[str]:
    return fill(candidates, cost_of, BoundOptions(**said))


@pytest.mark.parametrize(
    ("story", "said", "expected"),
    [
        ("no limit: everything in one plan", {}, ["a5 b5 c5 d5"]),
        ("two slices a plan", {"max_file_slices": 2}, ["a5 b5"]),
        ("two slices a plan, two plans", {"max_file_slices": 2, "max_plans": 2}, ["a5 b5", "c5 d5"]),
        ("three plans, and only enough for two", {"max_file_slices": 2, "max_plans": 3}, ["a5 b5", "c5 d5"]),
        ("exactly full", {"max_source_bytes": 10}, ["a5 b5"]),
        ("the next one does not fit", {"max_source_bytes": 14}, ["a5 b5"]),
        ("the first is always in", {"max_source_bytes": 3}, ["a5"]),
        ("what is read and written", {"target_io_bytes": 30}, ["a5 b5 c5"]),
        ("the tighter of two limits", {"target_io_bytes": 30, "max_source_bytes": 10}, ["a5 b5"]),
        ("a first that is too large, hard: an empty plan", {"max_source_bytes": 3, "hard": True}, []),
        ("no limit, two plans: evenly", {"max_plans": 2}, ["a5 b5", "c5 d5"]),
    ],
)
def test_plans_are_filled(story: str, said: dict[str, Any], expected: list[str]) -> None:
    assert [" ".join(p) for p in filled(["a5", "b5", "c5", "d5"], **said).plans] == expected, story


def test_what_is_too_large_is_left_out_and_the_rest_goes_on() -> None:
    """Hard: the giant never fits, and does not stand in the way of those behind it."""
    found = filled(["a5", "g99", "b5", "c5"], max_source_bytes=10, hard=True)
    assert found.plans == (("a5", "b5"),)
    assert [c for c, _ in found.left] == ["g99"]
    assert "by itself larger than max_source_bytes=10" in found.left[0][1]


def test_a_giant_is_a_plan_of_its_own_when_its_turn_comes() -> None:
    """Soft: it closes the plan before it, and is the first of the next."""
    assert filled(["a5", "g99", "b5"], max_source_bytes=10).plans == (("a5",),)
    assert filled(["g99", "b5"], max_source_bytes=10).plans == (("g99",),)
    assert filled(["a5", "g99", "b5"], max_source_bytes=10, max_plans=3).plans == (("a5",), ("g99",), ("b5",))


def test_nothing_behind_the_end_of_the_last_plan_is_asked_for() -> None:
    asked: list[str] = []

    def candidates() -> Iterator[str]:
        for name in "abcdef":
            asked.append(name)
            yield f"{name}5"

    found = fill(candidates(), cost_of, BoundOptions(max_file_slices=2))
    assert asked == ["a", "b"]
    assert found.closed == "max_file_slices=2"
    assert found.left == ()


COSTS = st.lists(st.integers(1, 200), max_size=30)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_file_slices": st.integers(1, 10),
        "max_source_bytes": st.integers(1, 500),
        "max_source_rows": st.integers(1, 50),
        "target_io_bytes": st.integers(1, 1000),
    },
)


@given(COSTS, LIMITS, st.integers(1, 4), st.booleans())
def test_limits_are_kept(costs: list[int], limits: dict[str, int], plans: int, hard: bool) -> None:
    """Never exceeded when hard; else by no more than the first of a plan. Nobody is in two plans, or lost."""
    options = BoundOptions(**limits, max_plans=plans, hard=hard and bool(limits))  # type: ignore[arg-type]
    given_ = [f"{chr(97 + n)}{size}" for n, size in enumerate(costs)]
    found = fill(given_, cost_of, options)
    assert len(found.plans) <= plans
    for plan in found.plans:
        total = sum((cost_of(c) for c in plan), Cost())
        if options.exceeded(total) is not None:
            assert len(plan) == 1
            assert not options.hard
    taken = [c for plan in found.plans for c in plan]
    left = [c for c, _ in found.left]
    assert len({*taken, *left}) == len(taken) + len(left)
    assert all(why for _, why in found.left)
    if found.closed is None:
        assert sorted(taken + left) == sorted(given_)
    if not options.hard:
        assert taken == given_[: len(taken)]
        assert bool(taken) == bool(given_)


@given(st.lists(st.integers(1, 200), min_size=2, max_size=30), st.integers(1, 6))
def test_plans_share_evenly(costs: list[int], plans: int) -> None:
    """No plan is larger than its share by more than the largest candidate."""
    given_ = [f"{chr(97 + n)}{size}" for n, size in enumerate(costs)]
    found = filled(given_, max_plans=plans)
    assert [c for plan in found.plans for c in plan] == given_
    for plan in found.plans:
        assert sum(cost_of(c).io_bytes for c in plan) <= 2 * sum(costs) / plans + 2 * max(costs)


@pytest.mark.parametrize(
    "name", ["max_file_slices", "max_source_bytes", "max_source_rows", "target_io_bytes", "max_plans"]
)
@pytest.mark.parametrize("value", [0, -1])
def test_zero_and_less_are_refused(name: str, value: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        BoundOptions(**{name: value})  # type: ignore[arg-type]


def test_hard_without_a_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="no limit is set"):
        BoundOptions(hard=True)
